//! The order in which a new session tries origins: a pure function.
//!
//! [`choose`] orders all origins of a service by the directory and this node's measurements, and
//! remembers one preferred origin ([`Preference`]), so that small or short gains change nothing.
//! [`Route::attempt_order`] then spreads sessions over equally near origins. Neither reads a clock
//! or draws a random number.
//!
//! Invariants: an unhealthy or unverified origin never precedes a healthy one, except the preferred
//! one just after it turned unready (it still serves, and the others may be unready too); the order
//! contains each origin once; equal inputs give equal outputs.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use meshport_config::{ServiceSettings, words};
use meshport_discovery::OriginState;

use super::counter_hash::mix;
use super::relay;

pub use super::damping::Damping;
pub use super::view::{Line, OriginView, PathView, Relaying};

use super::view::cost;

mod memory;
mod share;

pub use memory::Preference;
use memory::Verdict;
pub use share::{Weights, client_number};

/// Ending a session costs its client a reconnect and perhaps an error, so an origin is not worth it
/// if it is nearer by less than this...
const MOVING_GAIN: Duration = Duration::from_millis(1);
/// ...or by less than this share, in percent.
const MOVING_GAIN_PERCENT: u32 = 20;
/// Assumed round-trip time of an unmeasured path: worse than any useful path, so that measured ones
/// go first.
const UNMEASURED: Duration = Duration::from_secs(2);

/// How a service's sessions are spread over its healthy origins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Policy {
    /// The nearest; about equally near ones share sessions.
    Nearest {
        /// Origins within this of the preferred one count as equally near...
        band: Duration,
        /// ...or within this share of its cost, in percent, whichever is more.
        band_percent: u32,
    },
    /// All, in turn.
    Spread,
    /// The first healthy one of this list, then the nearest. Names or NodeIds in text form.
    Pinned(Vec<String>),
    /// The one with the fewest sessions of this node.
    LeastSessions,
    /// The same one for each client, as long as it is healthy.
    Source,
}

impl From<&ServiceSettings> for Policy {
    fn from(service: &ServiceSettings) -> Self {
        let band_percent = u32::from(service.band_percent);
        match service.policy {
            meshport_config::Policy::Nearest => Self::Nearest { band: service.band, band_percent },
            meshport_config::Policy::Spread => Self::Spread,
            meshport_config::Policy::Pinned => {
                Self::Pinned(service.pinned.iter().map(ToString::to_string).collect())
            }
            meshport_config::Policy::LeastSessions => Self::LeastSessions,
            meshport_config::Policy::Source => Self::Source,
        }
    }
}

impl Policy {
    /// Its name in settings and tables.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Nearest { .. } => "nearest",
            Self::Spread => "spread",
            Self::Pinned(_) => "pinned",
            Self::LeastSessions => "least-sessions",
            Self::Source => "source",
        }
    }
}

words! {
    /// How usable a candidate is, best first.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Standing {
        /// Announces that it is ready, and its path answers.
        Healthy => "healthy",
        /// Announces that it is ready; its path is not measured yet, or only a relay reports that
        /// it works.
        Unproven => "unproven",
        /// Announces that it is ready, yet sessions find it silent, or its path loses most packets.
        Suspect => "suspect",
        /// Drained by its operator, yet it answers: used when nothing better is left.
        Draining => "draining",
        /// Answers, but is not (or not known to be) ready: used when nothing better is left, and of
        /// these one that stalls last.
        Doubtful => "doubtful",
        /// Outside the mesh, so that only attempts show its state.
        Fallback => "fallback",
        /// Reported as refusing or hung, its path is dead, or it denies this node access: tried
        /// last, since gossip may be wrong and states change.
        Down => "down",
    }
}

/// An origin in the order of a [`Route`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The known facts about it.
    pub origin: OriginView,
    /// Its standing.
    pub standing: Standing,
    /// Its cost: its round-trip time, zero for the local node, and on a lossy path the time that
    /// retransmissions add.
    pub cost: Duration,
}

/// The order in which a new session tries the origins of a service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Route {
    /// Best first; each origin once.
    pub candidates: Vec<Candidate>,
    /// How many of the first candidates share new sessions.
    pub sharing: usize,
    /// Why the first is first, as a phrase.
    pub why: String,
    /// How one of those is selected for a session.
    draw: Draw,
    /// Whether the first candidate is first because it is near.
    by_distance: bool,
}

/// How a session's first candidate is selected from those that share, which defines the ticket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Draw {
    /// The less loaded of two random ones. The ticket is a fresh random number.
    #[default]
    TwoChoices,
    /// Each in turn. The ticket is a counter.
    Turns,
    /// The least loaded of all. The ticket is a fresh random number, which decides between equals.
    Least,
    /// By client. The ticket is the client's number.
    Source,
}

impl Draw {
    /// The ticket of a session; `turn` counts the sessions of this node.
    pub fn ticket(self, turn: u64, client: impl FnOnce() -> u64) -> u64 {
        match self {
            Self::Turns => turn,
            Self::TwoChoices | Self::Least => mix(turn),
            Self::Source => client(),
        }
    }
}

impl Route {
    /// The first candidate.
    pub fn first(&self) -> Option<&Candidate> {
        self.candidates.first()
    }

    /// Whether a session has a chance: some candidate is not [`Standing::Down`].
    pub fn is_usable(&self) -> bool {
        self.choice().is_some()
    }

    /// The first candidate, unless it is [`Standing::Down`].
    pub fn choice(&self) -> Option<&Candidate> {
        self.first().filter(|candidate| candidate.standing < Standing::Down)
    }

    /// The first candidate if it is known not to be ready, and neither is any other. While the
    /// preferred one waits for its replacement, another is.
    pub fn unready_choice(&self) -> Option<&Candidate> {
        let is_lacking = |it: &Candidate| it.standing >= Standing::Doubtful;
        let first = self.first().filter(|first| first.standing == Standing::Doubtful)?;
        let is_known = first.origin.state != OriginState::Unknown;
        (is_known && self.candidates.iter().all(is_lacking)).then_some(first)
    }

    /// The candidates that new sessions go to as long as they answer.
    pub fn home(&self) -> &[Candidate] {
        &self.candidates[..self.sharing.min(self.candidates.len())]
    }

    /// Whether the first candidates are so much better that it is worth ending a line's sessions:
    /// they are healthy, and the line is neither one of them nor about as near. A cheaper line that
    /// is not first has only just become cheaper, or sessions recently found it slow: it may soon
    /// be first again, and sessions should not move back and forth.
    pub fn is_away(&self, line: &Line) -> bool {
        let home = self.home();
        let Some(first) = home.first().filter(|first| first.standing == Standing::Healthy) else {
            return false;
        };
        let is_home = home.iter().any(|it| it.origin.line == *line);
        let mut rest = self.candidates[home.len()..].iter();
        let there = rest.find(|it| it.origin.line == *line);
        // Sessions on a line that is no longer a candidate have nothing to wait for.
        !is_home && there.is_none_or(|there| self.is_worth_leaving(there, first))
    }

    fn is_worth_leaving(&self, there: &Candidate, first: &Candidate) -> bool {
        let gain = there.cost.saturating_sub(first.cost);
        let is_nearer = gain >= MOVING_GAIN && gain * 100 >= there.cost * MOVING_GAIN_PERCENT;
        match there.standing {
            Standing::Healthy | Standing::Unproven | Standing::Suspect => {
                // Turns and pins do not depend on distance.
                is_own(first) || is_nearer || !self.by_distance
            }
            Standing::Draining | Standing::Doubtful | Standing::Fallback | Standing::Down => true,
        }
    }

    /// Whether the first precedes equally good candidates because it is near, not because of turns,
    /// load or a list.
    pub fn is_by_distance(&self) -> bool {
        self.by_distance
    }

    /// The order for one session. Among the sharing candidates the less loaded of two random ones
    /// goes first (Mitzenmacher, "The Power of Two Choices"), each in turn for `spread`, the least
    /// loaded of all for `least-sessions`, or the client's own for `source`. Loads are compared,
    /// and turns and clients distributed, by weight. [`Route::draw`] defines `ticket`; `open`
    /// returns how many sessions an origin has.
    pub fn attempt_order(&self, ticket: u64, open: impl Fn(&Line) -> u64) -> Vec<&Candidate> {
        let mut order: Vec<&Candidate> = self.candidates.iter().collect();
        let sharing = self.sharing.min(order.len());
        if sharing < 2 {
            return order;
        }
        let first = match self.draw {
            Draw::TwoChoices => self.lighter(ticket, open),
            Draw::Turns => share::turn(self.home(), ticket),
            Draw::Least => share::least(self.home(), ticket, open),
            Draw::Source => {
                // The rest of the order is fixed for each client too.
                order[..sharing].sort_by(|a, b| share::by_client(a, b, ticket));
                return order;
            }
        };
        order[..sharing].rotate_left(first);
        order
    }

    /// The kind of ticket that the caller must draw.
    pub fn draw(&self) -> Draw {
        self.draw
    }

    fn lighter(&self, ticket: u64, open: impl Fn(&Line) -> u64) -> usize {
        let one = nth(ticket >> 32, self.sharing);
        let step = 1 + nth(ticket & 0xffff_ffff, self.sharing - 1);
        let two = (one + step) % self.sharing;
        let [a, b] = [one, two].map(|index| &self.candidates[index].origin);
        match share::compare_loads(a, open(&a.line), b, open(&b.line)) {
            Ordering::Greater => two,
            Ordering::Less | Ordering::Equal => one,
        }
    }
}

fn nth(ticket: u64, count: usize) -> usize {
    let count = u64::try_from(count).expect("a list of origins is short");
    usize::try_from(ticket % count).expect("below a list's length")
}

/// Orders `origins` for a service under `policy`. The returned preference is the next call's
/// `memory`; see the module for its purpose.
pub fn choose(
    origins: Vec<OriginView>,
    policy: &Policy,
    memory: &Preference,
    now: Instant,
) -> (Route, Preference) {
    let mut candidates: Vec<Candidate> = origins.into_iter().map(candidate).collect();
    candidates.sort_by(|a, b| by_rank_and_cost(a, b).then(a.origin.line.cmp(&b.origin.line)));
    match policy {
        Policy::Nearest { band, band_percent } => {
            nearest(candidates, *band, *band_percent, memory, now)
        }
        Policy::Spread => spread(candidates, Draw::Turns, memory, now),
        Policy::LeastSessions => spread(candidates, Draw::Least, memory, now),
        Policy::Source => spread(candidates, Draw::Source, memory, now),
        Policy::Pinned(list) => pinned(candidates, list, memory, now),
    }
}

fn candidate(origin: OriginView) -> Candidate {
    let cost = match (origin.path, origin.line) {
        (PathView::Own, _) => Duration::ZERO,
        (PathView::Up(rtt), Line::Relayed { .. }) => {
            let least = origin.relaying.map(|relaying| relaying.least_cost).unwrap_or_default();
            (cost(rtt, origin.loss_percent) + relay::penalty(rtt)).max(least)
        }
        (PathView::Up(rtt), _) => cost(rtt, origin.loss_percent),
        (PathView::Unmeasured | PathView::Dead, _) => UNMEASURED,
    };
    Candidate { standing: standing(&origin), cost, origin }
}

pub(super) fn standing(origin: &OriginView) -> Standing {
    let reachable = match origin.path {
        PathView::Own | PathView::Up(_) => true,
        PathView::Unmeasured => origin.present,
        PathView::Dead => false,
    };
    if !reachable || origin.denied {
        return Standing::Down;
    }
    if matches!(origin.line, Line::Outside(_)) {
        return if origin.suspect { Standing::Down } else { Standing::Fallback };
    }
    match origin.state {
        OriginState::Ready if origin.suspect || origin.broken => Standing::Suspect,
        OriginState::Ready if origin.path == PathView::Unmeasured => Standing::Unproven,
        OriginState::Ready if origin.relaying.is_some_and(|it| !it.trusted) => Standing::Unproven,
        OriginState::Ready => Standing::Healthy,
        // Its instance still serves, while an unready one may answer every request with an error.
        OriginState::Draining if !origin.suspect && !origin.broken => Standing::Draining,
        OriginState::Unready
        | OriginState::Stalled
        | OriginState::Draining
        | OriginState::Unknown => Standing::Doubtful,
        OriginState::Refusing | OriginState::Hung => Standing::Down,
    }
}

/// What matters before distance: its standing, and whether its requests hang while an unready one
/// may answer them.
pub(super) fn rank(origin: &OriginView) -> (Standing, bool) {
    let standing = standing(origin);
    (standing, standing == Standing::Doubtful && origin.state == OriginState::Stalled)
}

fn by_rank_and_cost(a: &Candidate, b: &Candidate) -> Ordering {
    let by_rank = rank(&a.origin).cmp(&rank(&b.origin));
    by_rank.then(is_own(b).cmp(&is_own(a))).then(a.cost.cmp(&b.cost))
}

fn is_own(candidate: &Candidate) -> bool {
    candidate.origin.path == PathView::Own
}

fn nearest(
    mut candidates: Vec<Candidate>,
    band: Duration,
    band_percent: u32,
    memory: &Preference,
    now: Instant,
) -> (Route, Preference) {
    let Some(best) = candidates.first().cloned() else {
        return (Route::default(), memory.forgotten());
    };
    let Verdict { first, preference, why } = memory.weigh(&candidates, now);
    let why = why.unwrap_or_else(|| match first {
        0 => reason(&best, place(&best)),
        _ => reason(&candidates[first], "kept"),
    });
    candidates[..=first].rotate_right(1);
    let width = band.max(candidates[0].cost * band_percent / 100);
    let alone = is_own(&candidates[0]) || candidates[0].standing != best.standing;
    let sharing = if alone { 1 } else { gather_band(&mut candidates, width) };
    (Route { candidates, sharing, why, draw: Draw::TwoChoices, by_distance: true }, preference)
}

/// Moves the candidates of the first one's standing, not ranked lower and within `width` of its
/// cost, next to it; returns their number, including the first.
fn gather_band(candidates: &mut [Candidate], width: Duration) -> usize {
    let first = candidates[0].clone();
    let shares = |candidate: &Candidate| {
        candidate.standing == first.standing
            && rank(&candidate.origin) <= rank(&first.origin)
            && candidate.cost.abs_diff(first.cost) <= width
    };
    candidates[1..].sort_by_key(|candidate| !shares(candidate));
    candidates.iter().take_while(|candidate| shares(candidate)).count()
}

fn spread(
    mut candidates: Vec<Candidate>,
    draw: Draw,
    memory: &Preference,
    now: Instant,
) -> (Route, Preference) {
    let Some(best) = candidates.first().map(|best| rank(&best.origin)) else {
        return (Route::default(), memory.forgotten());
    };
    let sharing = candidates.iter().take_while(|it| rank(&it.origin) == best).count();
    // Turns are fair only in an order that ignores changes of round-trip times.
    candidates[..sharing].sort_by_key(|candidate| candidate.origin.line);
    let preference = memory.settled_on(&candidates[0], now);
    let why = format!("one of {sharing} that share sessions");
    (Route { sharing, why, draw, candidates, by_distance: false }, preference)
}

fn pinned(
    mut candidates: Vec<Candidate>,
    list: &[String],
    memory: &Preference,
    now: Instant,
) -> (Route, Preference) {
    let ranks: BTreeMap<Line, usize> = candidates
        .iter()
        .map(|candidate| (candidate.origin.line, pin_rank(&candidate.origin, list)))
        .collect();
    candidates.sort_by_key(|it| (rank(&it.origin), ranks[&it.origin.line]));
    let Some(first) = candidates.first() else {
        return (Route::default(), memory.forgotten());
    };
    let why = match ranks[&first.origin.line] {
        0 => "pinned first".to_owned(),
        rank if rank < list.len() => format!("pinned as number {}", rank + 1),
        _ => format!("no pinned one is better; {}", reason(first, place(first))),
    };
    let preference = memory.settled_on(first, now);
    (Route { candidates, sharing: 1, why, draw: Draw::TwoChoices, by_distance: false }, preference)
}

fn pin_rank(origin: &OriginView, list: &[String]) -> usize {
    let id = origin.line.origin().map(|node| node.to_string());
    let is_it = |pin: &String| id.as_ref() == Some(pin) || *pin == origin.name;
    list.iter().position(is_it).unwrap_or(list.len())
}

fn place(candidate: &Candidate) -> &'static str {
    if is_own(candidate) { "this node" } else { "nearest" }
}

/// Why a candidate goes first. `place` says why not an equally good one.
fn reason(best: &Candidate, place: &str) -> String {
    match best.standing {
        Standing::Healthy if is_own(best) => "this node's own".to_owned(),
        Standing::Healthy | Standing::Unproven if best.origin.relaying.is_some() => {
            let dead = best.origin.relaying.is_some_and(|it| it.direct_dead);
            let cause = if dead { "its direct path is dead" } else { "that is nearer" };
            format!("through a relay: {cause}")
        }
        Standing::Healthy => "nearest ready".to_owned(),
        Standing::Unproven => "ready, its path not measured yet".to_owned(),
        Standing::Suspect if best.origin.broken => {
            format!("{place}, though its path loses most packets: none is better")
        }
        Standing::Suspect => format!("{place}, though slow to answer: none is better"),
        Standing::Fallback => "outside the mesh: no origin in it answers".to_owned(),
        Standing::Draining => format!("{place}, though it drains: no other is ready"),
        Standing::Doubtful => format!("{place}, though {}: none is ready", best.origin.state),
        Standing::Down if best.origin.denied => "no origin allows this node".to_owned(),
        Standing::Down => "last resort: none answers".to_owned(),
    }
}

#[cfg(test)]
pub(crate) mod tests;
