//! Faults: the nodes that were hit, and the reactions of the others.
//!
//! An event of a scenario is one fault, however many nodes it hits and however long it takes to
//! reach all of them. Times count from when each of them was hit.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{Cut, FOLLOWED_FOR, MAX_FAULTS};
use crate::scenario::Happening;
use crate::scenario::timeline::Planned;

/// Most pairs of a node and a victim that are followed for one fault: some megabytes. If there were
/// more, only every second victim is watched, or every third.
const MAX_PAIRS: usize = 200_000;

/// A node, and the victim that it follows; the node itself if the fault affects a path.
pub type Pair = (usize, usize);

/// The change of a victim that other nodes must notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Notice {
    /// Its instance is not healthy.
    Instance,
    /// It is no longer a member.
    Gone,
    /// It is a member.
    Came,
    /// It is revoked.
    Revoked,
    /// A path is down, which nodes show by using another one.
    Path,
    /// There is nothing to notice.
    Nothing,
}

/// The nodes whose first choice is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Users {
    /// Nodes that use a victim, until they use none.
    Theirs,
    /// The victims, until they use another origin.
    Own,
    /// The victims, until they use an origin.
    Joining,
    /// Nodes that use an origin behind the cut path.
    Ways,
}

/// An event that may affect nodes.
#[derive(Debug, Clone)]
pub struct Fault {
    /// The key of the event.
    pub kind: &'static str,
    /// The event in words.
    pub what: String,
    /// Start time.
    pub at: Duration,
    /// The nodes that were hit, and when; empty if it affects paths.
    pub victims: BTreeMap<usize, Duration>,
    /// The victims that have not been restored yet.
    pub(crate) out: BTreeSet<usize>,
    /// The affected paths, if it affects paths.
    pub cut: Cut,
    /// Pairs of a node and a victim that the node should notice and has not noticed yet.
    pub unaware: BTreeSet<Pair>,
    /// The time it took each pair to notice.
    pub detected: BTreeMap<Pair, Duration>,
    /// Pairs of a node and the victim that it used and still uses.
    pub staying: BTreeSet<Pair>,
    /// The time it took each pair until the node used another origin.
    pub moved: BTreeMap<Pair, Duration>,
    /// End time, past or planned, if known.
    pub over: Option<Duration>,
    /// The number of its event.
    event: usize,
    /// Every n-th victim is watched by all other nodes.
    stride: usize,
    /// The last victim, and when it was hit.
    last: (Option<usize>, Duration),
}

/// The first of these is about to happen: returns the fault that it belongs to, if any.
pub(crate) fn begin(
    faults: &mut Vec<Fault>,
    plan: &[Planned],
    nodes: usize,
    now: Duration,
) -> Option<usize> {
    let planned = plan.first()?;
    let kind = planned.fault?;
    let index = match faults.iter().rposition(|fault| fault.event == planned.event) {
        Some(index) => index,
        None if faults.len() >= MAX_FAULTS => return None,
        None => {
            faults.push(Fault::new(kind, plan, nodes, now));
            faults.len() - 1
        }
    };
    faults[index].hits(&planned.happening, now);
    Some(index)
}

impl Fault {
    fn new(kind: &'static str, plan: &[Planned], nodes: usize, now: Duration) -> Self {
        let event = plan[0].event;
        let all = plan.iter().filter(|it| it.event == event && it.fault.is_some()).count();
        let mut what = plan[0].words.clone();
        if all > 1 {
            what = format!("{what} and {} more", all - 1);
        }
        Self {
            kind,
            what,
            at: now,
            victims: BTreeMap::new(),
            out: BTreeSet::new(),
            cut: Cut::of(plan),
            unaware: BTreeSet::new(),
            detected: BTreeMap::new(),
            staying: BTreeSet::new(),
            moved: BTreeMap::new(),
            over: None,
            event,
            stride: (all * nodes).div_ceil(MAX_PAIRS).max(1),
            last: (None, now),
        }
    }

    fn hits(&mut self, happening: &Happening, now: Duration) {
        let victim = subject(happening);
        self.last = (victim, now);
        self.over = match happening {
            Happening::Starve { until, .. } => Some(*until),
            _ => None,
        };
        if let Some(victim) = victim {
            self.victims.insert(victim, now);
            self.out.insert(victim);
        }
    }

    /// The last victim; none if the fault is of paths.
    pub(crate) fn newest(&self) -> Option<usize> {
        self.last.0
    }

    /// Whether the other nodes watch the last victim.
    pub(crate) fn is_watched(&self) -> bool {
        self.victims.len() % self.stride == 1 % self.stride
    }

    /// The change that others must notice.
    pub(crate) fn notice(&self) -> Notice {
        match self.kind {
            "kill" | "hang" | "stall" | "unready" => Notice::Instance,
            "crash" | "leave" | "rolling-restart" => Notice::Gone,
            "join" => Notice::Came,
            "revoke" => Notice::Revoked,
            "cut" | "isolate" | "flap" => Notice::Path,
            _ => Notice::Nothing,
        }
    }

    /// The nodes whose first choice is followed.
    pub(crate) fn users(&self) -> Users {
        match self.kind {
            "join" => Users::Joining,
            "configure" | "clock-step" | "rebind" | "roam" => Users::Own,
            _ if self.victims.is_empty() => Users::Ways,
            _ => Users::Theirs,
        }
    }

    /// Whether the nodes that used it must switch. Otherwise they may.
    pub fn must_leave(&self) -> bool {
        let may_stay = matches!(self.kind, "starve" | "lie" | "degrade");
        !may_stay && self.users() != Users::Own
    }

    /// Time until which it is followed.
    pub(crate) fn followed_until(&self) -> Duration {
        let until = self.last.1 + FOLLOWED_FOR;
        self.over.map_or(until, |over| over.min(until))
    }

    /// Time until which requests of clients count for it: its end, or a minute if it has none.
    pub(crate) fn counted_until(&self) -> Duration {
        self.over.unwrap_or(self.last.1 + FOLLOWED_FOR)
    }

    fn since(&self, victim: usize) -> Duration {
        self.victims.get(&victim).copied().unwrap_or(self.at)
    }

    fn is_followed(&self, victim: usize, now: Duration) -> bool {
        let is_out = self.victims.is_empty() || self.out.contains(&victim);
        is_out && now.saturating_sub(self.since(victim)) < FOLLOWED_FOR
    }

    /// A node has noticed the fault at a victim.
    pub(crate) fn notices(&mut self, node: usize, victim: usize, now: Duration) {
        let pair = (node, victim);
        if self.is_followed(victim, now) && self.unaware.remove(&pair) {
            self.detected.insert(pair, now.saturating_sub(self.since(victim)));
        }
    }

    /// The victims whose fault a node has not noticed yet.
    pub(crate) fn unnoticed(&self, node: usize) -> Vec<usize> {
        of(&self.unaware, node).collect()
    }

    /// A node leaves the victims that it used. For faults of paths, this is how it shows that
    /// it has noticed.
    pub(crate) fn leaves(&mut self, node: usize, now: Duration) {
        for victim in of(&self.staying, node).collect::<Vec<usize>>() {
            if self.is_followed(victim, now) && self.staying.remove(&(node, victim)) {
                let after = now.saturating_sub(self.since(victim));
                self.moved.insert((node, victim), after);
                if self.notice() == Notice::Path {
                    self.notices(node, victim, now);
                }
            }
        }
    }

    /// A victim recovers.
    pub(crate) fn ends(&mut self, victim: usize, now: Duration) {
        if self.since(victim) < now && self.out.remove(&victim) && self.out.is_empty() {
            self.over = Some(now);
        }
    }

    /// A node's process has ended: it will not notice anything any more.
    pub(crate) fn gone(&mut self, node: usize) {
        for pairs in [&mut self.unaware, &mut self.staying] {
            for victim in of(pairs, node).collect::<Vec<usize>>() {
                pairs.remove(&(node, victim));
            }
        }
    }
}

fn of(pairs: &BTreeSet<Pair>, node: usize) -> impl Iterator<Item = usize> {
    pairs.range((node, 0)..=(node, usize::MAX)).map(|(_, victim)| *victim)
}

/// The node that something happens to, if it happens to a node.
fn subject(happening: &Happening) -> Option<usize> {
    match happening {
        Happening::Instance(node, _)
        | Happening::Crash(node)
        | Happening::Start { node, .. }
        | Happening::Leave(node)
        | Happening::Clock(node, _)
        | Happening::Starve { node, .. }
        | Happening::Rebind(node)
        | Happening::Roam(node, _)
        | Happening::Configure(node, _)
        | Happening::Revoke { node, .. }
        | Happening::Lie(node, _) => Some(*node),
        Happening::Path(..) | Happening::Pair(..) | Happening::Quality(..) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn planned(seconds: u64, node: usize, fault: Option<&'static str>) -> Planned {
        let happening = match fault {
            Some(_) => Happening::Leave(node),
            None => Happening::Start { node, with_state: true },
        };
        Planned { at: at(seconds), words: format!("restart: {node}"), happening, event: 4, fault }
    }

    #[test]
    fn an_event_that_hits_nodes_one_by_one_is_one_fault_with_separate_times() {
        let key = Some("rolling-restart");
        let plan = [planned(5, 1, key), planned(8, 1, None), planned(70, 2, key)];
        let mut faults = Vec::new();
        assert_eq!(begin(&mut faults, &plan, 9, at(5)), Some(0));
        faults[0].unaware.extend([(7, 1), (8, 1)]);
        faults[0].staying.insert((7, 1));
        faults[0].leaves(7, at(6));
        faults[0].notices(7, 1, at(6));
        faults[0].ends(1, at(8));
        assert_eq!(faults[0].over, Some(at(8)));
        faults[0].notices(8, 1, at(9));
        assert_eq!(begin(&mut faults, &plan[1..], 9, at(8)), None, "that is no fault");
        assert_eq!(begin(&mut faults, &plan[2..], 9, at(70)), Some(0));
        let fault = &mut faults[0];
        assert_eq!((fault.what.as_str(), fault.over), ("restart: 1 and 1 more", None));
        fault.unaware.insert((7, 2));
        fault.staying.insert((7, 2));
        fault.notices(7, 2, at(73));
        fault.leaves(7, at(72));
        assert_eq!(fault.detected, [((7, 1), at(1)), ((7, 2), at(3))].into());
        assert_eq!(fault.moved, [((7, 1), at(1)), ((7, 2), at(2))].into());
        assert_eq!(fault.unaware, [(8, 1)].into(), "it came too late: the node was back");
        fault.gone(8);
        assert!(fault.unaware.is_empty());
    }

    #[test]
    fn of_very_many_victims_some_are_watched() {
        let plan: Vec<Planned> = (0..1000).map(|node| planned(5, node, Some("crash"))).collect();
        let mut faults = Vec::new();
        let watched = (0..1000).filter(|index| {
            let fault = begin(&mut faults, &plan[*index..], 1000, at(5)).expect("a fault");
            faults[fault].is_watched()
        });
        assert_eq!(watched.count() * 1000, MAX_PAIRS);
        assert_eq!(faults.len(), 1);
    }
}
