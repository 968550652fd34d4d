//! Recent events in the mesh as this node saw them: members that joined, left, were refused or
//! revoked, and changes of routes and instances.
//!
//! Bounded by [`MAX_OF_KIND`] events of each [`Kind`], so that a flood of one kind never pushes out
//! another, and by [`MAX_TEXT`] characters in each. Events of one kind about several nodes within
//! `TOGETHER` are combined: a lost site is one line.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use meshport_config::{ServiceName, words};

/// Events of one kind that are remembered.
pub const MAX_OF_KIND: usize = 24;
/// Names in one event; the others are counted.
pub const MAX_NAMES: usize = 4;
/// Characters in a detail, which may come from outside.
pub const MAX_TEXT: usize = 200;
/// Events of one kind within this time of the last one are combined.
pub(crate) const TOGETHER: Duration = Duration::from_secs(5);

words! {
    /// Kind of an event.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Kind {
        /// A member answers.
        Came => "came",
        /// A member was found silent.
        Went => "went",
        /// A member left on purpose.
        Left => "left",
        /// A peer was refused, by this node or by the peer.
        Refused => "refused",
        /// The authority has revoked a node or an invite.
        Revoked => "revoked",
        /// Another origin goes first.
        Route => "route",
        /// The local instance changed state.
        Instance => "instance",
        /// Sessions were reset.
        Reset => "reset",
    }
}

impl Kind {
    /// Whether it is about this node itself, and not about others.
    pub fn is_of_this_node(self) -> bool {
        matches!(self, Self::Route | Self::Instance | Self::Reset)
    }

    /// Whether simultaneous events of this kind are combined.
    pub(crate) fn gathers(self) -> bool {
        matches!(self, Self::Came | Self::Went | Self::Left | Self::Refused)
    }
}

/// An event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Time of the event; of the last one if there are several.
    pub at: Instant,
    /// The nodes concerned, at most [`MAX_NAMES`].
    pub names: Vec<String>,
    /// How many more it concerns.
    pub others: u32,
    /// The service, where it is about one.
    pub service: Option<ServiceName>,
    /// The event in words.
    pub detail: String,
}

/// See the module's doc.
#[derive(Debug, Clone, Default)]
pub struct Journal {
    kinds: BTreeMap<Kind, VecDeque<Event>>,
}

impl Journal {
    /// Notes an event of a node. Of events that are combined, the last one's detail is kept.
    pub fn note(&mut self, kind: Kind, name: String, detail: &str, now: Instant) {
        let events = self.kinds.entry(kind).or_default();
        let last = events
            .back_mut()
            .filter(|last| kind.gathers() && now.saturating_duration_since(last.at) < TOGETHER);
        if let Some(last) = last {
            last.at = now;
            last.detail = short(detail);
            match last.names.len() {
                _ if last.names.contains(&name) => {}
                MAX_NAMES.. => last.others = last.others.saturating_add(1),
                _ => last.names.push(name),
            }
            return;
        }
        let (names, detail) = (vec![name], short(detail));
        self.push(kind, Event { at: now, names, others: 0, service: None, detail });
    }

    /// Notes an event of a service.
    pub fn note_service(&mut self, kind: Kind, service: &ServiceName, detail: &str, now: Instant) {
        let (names, service) = (Vec::new(), Some(service.clone()));
        self.push(kind, Event { at: now, names, others: 0, service, detail: short(detail) });
    }

    /// All remembered events, by kind, each kind oldest first.
    pub fn iter(&self) -> impl Iterator<Item = (Kind, &Event)> {
        self.kinds.iter().flat_map(|(kind, events)| events.iter().map(|event| (*kind, event)))
    }

    fn push(&mut self, kind: Kind, event: Event) {
        let events = self.kinds.entry(kind).or_default();
        if events.len() == MAX_OF_KIND {
            events.pop_front();
        }
        events.push_back(event);
    }
}

fn short(text: &str) -> String {
    text.chars().take(MAX_TEXT).collect()
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "an origin for virtual time")]

    use super::*;

    #[test]
    fn a_flood_of_one_kind_pushes_out_no_other() {
        let start = Instant::now();
        let mut journal = Journal::default();
        journal.note(Kind::Revoked, "cp-1".into(), "by the authority", start);
        for number in 0..10_000_u32 {
            let now = start + TOGETHER * number;
            journal.note(Kind::Refused, format!("n{number}"), &"x".repeat(1000), now);
        }
        assert_eq!(journal.iter().count(), 1 + MAX_OF_KIND);
        let (kind, refused) = journal.iter().next().expect("there are some");
        assert_eq!((kind, refused.detail.len()), (Kind::Refused, MAX_TEXT));
        assert_eq!(refused.names, [format!("n{}", 10_000 - MAX_OF_KIND)]);
    }

    #[test]
    fn a_site_that_is_lost_is_one_event() {
        let start = Instant::now();
        let mut journal = Journal::default();
        for number in 0..100_u64 {
            let now = start + Duration::from_millis(number * 40);
            journal.note(Kind::Went, format!("n{}", number % 50), "silent", now);
        }
        let events: Vec<_> = journal.iter().collect();
        let [(Kind::Went, event)] = events.as_slice() else { panic!("{events:?}") };
        assert_eq!(event.names, ["n0", "n1", "n2", "n3"]);
        // Unnamed nodes cannot be distinguished.
        assert_eq!(event.others, 92);
        journal.note(Kind::Went, "n7".into(), "silent", start + Duration::from_secs(60));
        assert_eq!(journal.iter().count(), 2);
    }

    #[test]
    fn changes_of_routes_stay_apart() {
        let now = Instant::now();
        let mut journal = Journal::default();
        for number in 0..3 {
            journal.note_service(
                Kind::Route,
                &ServiceName::kube_apiserver(),
                &number.to_string(),
                now,
            );
        }
        assert_eq!(
            journal.iter().map(|(_, it)| it.detail.as_str()).collect::<Vec<_>>(),
            ["0", "1", "2"]
        );
    }
}
