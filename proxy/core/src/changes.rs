//! Recent changes of a service's route, and their causes.
//!
//! A change is another first candidate, or none while all are down. If the previous one has become
//! worse, that is the cause; otherwise the new one has become better. Bounded by [`MAX_CHANGES`].

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use meshport_discovery::OriginState;

use super::route::{self, Candidate, Line, OriginView, PathView, Preference, Route};

/// Changes remembered per service: what an operator reads at a glance.
pub const MAX_CHANGES: usize = 10;

/// The first candidate of a route, with its name for later display.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The path to it.
    pub line: Line,
    /// The name of the origin for people.
    pub name: String,
}

impl Choice {
    fn of(candidate: &Candidate) -> Self {
        Self { line: candidate.origin.line, name: candidate.origin.name.clone() }
    }
}

/// A change of the choice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Time of the change.
    pub at: Instant,
    /// The choice before it; `None` if no origin was usable.
    pub from: Option<Choice>,
    /// The choice since.
    pub to: Option<Choice>,
    /// Why, as a phrase.
    pub cause: &'static str,
}

/// What triggered a choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trigger {
    /// New information arrived.
    News,
    /// A gain has lasted for long enough.
    Lasted,
    /// New information arrived, and the policy's list or turns decide, not distance.
    Listed,
    /// The settings have changed.
    Policy,
}

impl Trigger {
    /// The trigger of `route`, which was made with this memory.
    pub fn of(memory: &Preference, route: &Route, now: Instant) -> Self {
        match memory.poll_timeout() {
            _ if memory.preferred.is_none() => Self::Policy,
            Some(due) if due <= now => Self::Lasted,
            _ if !route.is_by_distance() => Self::Listed,
            Some(_) | None => Self::News,
        }
    }
}

/// The last changes, newest first. See the module's doc.
#[derive(Debug, Clone, Default)]
pub struct Changes {
    recent: VecDeque<Change>,
    /// All changes since the start, by cause.
    counts: BTreeMap<&'static str, u64>,
}

impl Changes {
    /// Records a change of the choice; `views` has what is now known about both.
    pub fn note(
        &mut self,
        from: Option<&Candidate>,
        to: Option<&Candidate>,
        views: &[OriginView],
        trigger: Trigger,
        now: Instant,
    ) {
        let former = from.and_then(|from| {
            let mut known = views.iter();
            known.find(|view| view.line == from.origin.line)
        });
        let cause = match (from, to) {
            (Some(from), Some(to)) => cause(from, former, to, trigger),
            (_, None) => former.and_then(lack).unwrap_or("no origin known"),
            (None, Some(_)) if self.counts.is_empty() => "first known",
            (None, Some(_)) => "usable again",
        };
        *self.counts.entry(cause).or_default() += 1;
        if self.recent.len() >= MAX_CHANGES {
            self.recent.pop_back();
        }
        let (from, to) = (from.map(Choice::of), to.map(Choice::of));
        self.recent.push_front(Change { at: now, from, to, cause });
    }

    /// All remembered changes, newest first.
    pub fn iter(&self) -> impl Iterator<Item = &Change> {
        self.recent.iter()
    }

    /// Number of changes by cause.
    pub fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.counts.iter().map(|(cause, count)| (*cause, *count))
    }
}

/// Why `to` goes before `from`, which is now `former`.
fn cause(
    from: &Candidate,
    former: Option<&OriginView>,
    to: &Candidate,
    trigger: Trigger,
) -> &'static str {
    if trigger == Trigger::Policy {
        return "another policy";
    }
    let same = from.origin.line.origin() == to.origin.line.origin();
    let was_relayed = matches!(from.origin.line, Line::Relayed { .. });
    let is_nearer = to.origin.relaying.is_some_and(|it| !it.direct_dead);
    let lost = former.is_some_and(|view| view.path == PathView::Dead);
    match to.origin.line {
        Line::Relayed { .. } if same && is_nearer => return "a relay has been nearer for 10 s",
        // Without sessions, a path through a relay is forgotten when it is no longer chosen.
        Line::Direct(_) if same && was_relayed && !lost => return "the direct path works again",
        _ => {}
    }
    let Some(former) = former else {
        return match from.origin.name == to.origin.name {
            // A node with another key is another node.
            _ if was_relayed => "the relay lost it",
            true => "its key was rotated",
            false => "gone",
        };
    };
    if let Some(lack) = lack(former)
        && (route::rank(former) > route::rank(&to.origin)
            || (same && former.path == PathView::Dead))
    {
        return lack;
    }
    match to.origin.path {
        PathView::Own => "this node's own is ready",
        _ if route::rank(former) > route::rank(&to.origin) => "better",
        _ if trigger == Trigger::Lasted => "nearer for long enough",
        _ if trigger == Trigger::Listed => "preferred by policy",
        _ => "nearer",
    }
}

/// The problem with an origin.
fn lack(view: &OriginView) -> Option<&'static str> {
    Some(match (view.path, view.state) {
        (PathView::Dead, _) if matches!(view.line, Line::Relayed { .. }) => "the relay lost it",
        (PathView::Dead, _) => "path dead",
        _ if view.denied => "this node is not allowed there",
        _ if view.suspect => "slow to answer",
        _ if view.broken => "its path loses most",
        (_, OriginState::Hung) => "instance hung",
        (_, OriginState::Refusing) => "refusing",
        (_, OriginState::Draining) => "draining",
        (_, OriginState::Unready) => "unready",
        (_, OriginState::Stalled) => "stalled",
        (PathView::Unmeasured, _) if !view.present => "member down",
        _ if matches!(view.line, Line::Outside(_)) => "the mesh answers",
        (_, OriginState::Unknown) => "not known to be ready",
        (PathView::Unmeasured, _) => "path not measured",
        (_, OriginState::Ready) => return None,
    })
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "an origin for virtual time")]

    use std::time::Duration;

    use super::*;
    use crate::route::tests::origin;
    use crate::route::{Policy, Relaying, choose};

    fn first(view: &OriginView) -> Candidate {
        let policy = Policy::Spread;
        let memory = Preference::default();
        let route = choose(vec![view.clone()], &policy, &memory, Instant::now()).0;
        route.first().cloned().expect("there is one")
    }

    fn ready(number: u8, ms: u64) -> OriginView {
        origin(number, OriginState::Ready, PathView::Up(Duration::from_millis(ms)))
    }

    /// Why `to` goes first when `from` has become `former`.
    fn why(
        from: &OriginView,
        former: Option<&OriginView>,
        to: &OriginView,
        trigger: Trigger,
    ) -> String {
        let mut changes = Changes::default();
        let views: Vec<OriginView> = former.into_iter().chain([to]).cloned().collect();
        let (from, to) = (first(from), first(to));
        changes.note(Some(&from), Some(&to), &views, trigger, Instant::now());
        changes.iter().map(|change| change.cause.to_owned()).collect()
    }

    #[test]
    fn each_cause_has_its_words() {
        let (one, two) = (ready(1, 2), ready(2, 30));
        for (state, cause) in [
            (OriginState::Hung, "instance hung"),
            (OriginState::Refusing, "refusing"),
            (OriginState::Draining, "draining"),
            (OriginState::Unready, "unready"),
            (OriginState::Stalled, "stalled"),
        ] {
            let former = OriginView { state, ..one.clone() };
            assert_eq!(why(&one, Some(&former), &two, Trigger::News), cause);
        }
        let stalled = OriginView { state: OriginState::Stalled, ..one.clone() };
        let unready = OriginView { state: OriginState::Unready, ..two.clone() };
        assert_eq!(why(&one, Some(&stalled), &unready, Trigger::Lasted), "stalled");
        assert_eq!(why(&stalled, Some(&stalled), &unready, Trigger::Lasted), "stalled");
        assert_eq!(why(&unready, Some(&unready), &stalled, Trigger::News), "nearer");
        let dead = OriginView { path: PathView::Dead, ..one.clone() };
        assert_eq!(why(&one, Some(&dead), &two, Trigger::News), "path dead");
        let suspect = OriginView { suspect: true, ..one.clone() };
        assert_eq!(why(&one, Some(&suspect), &two, Trigger::News), "slow to answer");
        assert_eq!(why(&one, None, &two, Trigger::News), "gone");
        let renamed = OriginView { name: one.name.clone(), ..two.clone() };
        assert_eq!(why(&one, None, &renamed, Trigger::News), "its key was rotated");
        assert_eq!(why(&two, Some(&two), &one, Trigger::Lasted), "nearer for long enough");
        assert_eq!(why(&two, Some(&two), &one, Trigger::News), "nearer");
        assert_eq!(why(&one, Some(&one), &two, Trigger::Listed), "preferred by policy");
        let own = origin(3, OriginState::Ready, PathView::Own);
        assert_eq!(why(&two, Some(&two), &own, Trigger::News), "this node's own is ready");
        let outside = OriginView::outside(([192, 0, 2, 1], 1).into());
        assert_eq!(why(&outside, Some(&outside), &one, Trigger::News), "the mesh answers");
    }

    #[test]
    fn relays_come_and_go() {
        let direct = ready(1, 60);
        let relay = ready(2, 1).line.origin().expect("a node");
        let through = |direct_dead| OriginView {
            line: Line::Relayed { origin: direct.line.origin().expect("a node"), relay },
            relaying: Some(Relaying { trusted: true, direct_dead, least_cost: Duration::ZERO }),
            ..direct.clone()
        };
        let dead = OriginView { path: PathView::Dead, ..direct.clone() };
        assert_eq!(why(&direct, Some(&dead), &through(true), Trigger::News), "path dead");
        let nearer = why(&direct, Some(&direct), &through(false), Trigger::News);
        assert_eq!(nearer, "a relay has been nearer for 10 s");
        let back = why(&through(true), Some(&through(true)), &direct, Trigger::News);
        assert_eq!(back, "the direct path works again");
        let back = why(&through(true), None, &direct, Trigger::News);
        assert_eq!(back, "the direct path works again");
        let lost = OriginView { path: PathView::Dead, ..through(true) };
        assert_eq!(
            why(&through(true), Some(&lost), &ready(3, 9), Trigger::News),
            "the relay lost it"
        );
    }

    #[test]
    fn an_only_origin_that_is_lost_is_named_with_what_it_lacks() {
        let (mut changes, now) = (Changes::default(), Instant::now());
        let only = ready(1, 2);
        changes.note(None, Some(&first(&only)), &[], Trigger::News, now);
        let refusing = OriginView { state: OriginState::Refusing, ..only.clone() };
        changes.note(Some(&first(&only)), None, &[refusing], Trigger::News, now);
        changes.note(None, Some(&first(&only)), &[], Trigger::News, now);
        changes.note(Some(&first(&only)), None, &[], Trigger::News, now);
        let causes: Vec<&str> = changes.iter().map(|change| change.cause).collect();
        assert_eq!(causes, ["no origin known", "usable again", "refusing", "first known"]);
    }

    #[test]
    fn the_last_ten_are_kept_newest_first() {
        let (mut changes, now) = (Changes::default(), Instant::now());
        for number in 1..=u8::try_from(MAX_CHANGES).expect("ten") + 5 {
            changes.note(None, Some(&first(&ready(number, 1))), &[], Trigger::News, now);
        }
        assert_eq!(changes.iter().count(), MAX_CHANGES);
        let counts = [("first known", 1), ("usable again", 14)];
        assert_eq!(changes.counts().collect::<Vec<_>>(), counts);
        let newest = changes.iter().next().expect("ten").to.clone().expect("a choice");
        assert_eq!((newest.name.as_str(), newest.line), ("cp-15", ready(15, 1).line));
    }
}
