//! Hysteresis of a route: the preferred origin, and how long a better one must last before it is
//! used.
//!
//! | the preferred one | something better | followed after |
//! | --- | --- | --- |
//! | gone, refusing, hung, draining, cut off | whatever is left | nothing |
//! | unready, so it still serves | one that is ready | [`UNREADY_LASTING`] |
//! | stalled | one that is ready | [`READY_AGAIN`] |
//! | stalled | one that is only unready | [`DOUBT_LASTING`] |
//! | stands in for one that was left | that one, as good again | `RETURN_LASTING`, doubled |
//! | as healthy | clearly cheaper | `GAIN_LASTING` |
//!
//! The fifth is doubled each time that origin was left again within [`CALM`], like route flap
//! damping (RFC 2439): after a single fault it costs a second; a flapping origin is avoided for
//! longer and longer.

use std::time::{Duration, Instant};

use super::{Candidate, Damping, Line, Standing, is_own, rank};
use crate::damping::READY_AGAIN;
use meshport_config::planted::{Bug, is_planted};
use meshport_discovery::OriginState;

/// An origin counts as calm if it was not left again for this long.
const CALM: Duration = Duration::from_secs(60);
/// A failed shared dependency fails all origins. Each is probed as soon as its node learns of the
/// first failure, and an answer counts as late after 0.5 s: until then it is unknown whether
/// another origin is better.
const UNREADY_LASTING: Duration = Duration::from_millis(750);
/// When one origin has stalled, another that is unready may only be in doubt: if it stalls too, it
/// announces this once a probe has failed, which takes 5 s at most (`ready-timeout`). One that is
/// still unready then is live, or starts.
const DOUBT_LASTING: Duration = Duration::from_secs(6);
/// A node that has just learned of its first origin learns of the others within this time; until
/// then hysteresis does not apply.
pub(super) const SETTLING: Duration = Duration::from_secs(5);

/// Whether an origin is nearer by the required gain, regardless of bursts of load.
fn is_gain(damping: &Damping, current: &Candidate, best: &Candidate) -> bool {
    let cost = current.origin.usual_cost().map_or(current.cost, |usual| usual.min(current.cost));
    let is_nearer = is_own(best) || damping.is_clear(cost, best.cost);
    is_nearer && !is_planted(Bug::Nearness)
}

/// Why the preferred origin goes before one that is nearer, but not by the required gain.
fn kept(damping: &Damping, current: &Candidate, best: &Candidate) -> String {
    let (name, other) = (&current.origin.name, &best.origin.name);
    match damping.is_clear(current.cost, best.cost) {
        true => format!("kept: {other} is clearly nearer only while {name} is slower than usual"),
        false => format!("kept: {other} is hardly nearer"),
    }
}

/// The memory of [`super::choose`] from one call to the next.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Preference {
    damping: Damping,
    /// The origin that goes first, and since when.
    pub preferred: Option<(Line, Instant)>,
    better: Option<Better>,
    home: Option<Home>,
    /// Time at which any origin was first preferred.
    first_at: Option<Instant>,
}

/// An origin is better than the preferred one. Which one does not matter: two equally near ones may
/// alternate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Better {
    /// Since when, without a break.
    since: Instant,
    /// Time at which it is used.
    due: Instant,
    /// Whether it is only unready, while the preferred one stalls.
    is_unready: bool,
}

/// The origin that was preferred until it became worse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Home {
    line: Line,
    left_at: Instant,
    /// How often it was left within [`CALM`] of the last time.
    times: u32,
}

/// The decision of the memory about the candidates.
pub(super) struct Verdict {
    /// The index of the one that goes first.
    pub(super) first: usize,
    pub(super) preference: Preference,
    /// Why it is that one, if it is not the best and its standing does not say it.
    pub(super) why: Option<String>,
}

impl Preference {
    /// For a route that has no preferred origin yet.
    pub fn new(damping: Damping) -> Self {
        Self { damping, ..Self::default() }
    }

    /// The same settings without a preferred origin.
    pub(crate) fn forgotten(&self) -> Self {
        Self::new(self.damping)
    }

    /// Time at which [`super::choose`] may decide differently without new input.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.better.map(|better| better.due)
    }

    /// The candidate that goes first. There is at least one, and the first is the best.
    pub(super) fn weigh(&self, candidates: &[Candidate], now: Instant) -> Verdict {
        let best = &candidates[0];
        let place = self.preferred.and_then(|(line, _)| {
            candidates.iter().position(|candidate| candidate.origin.line == line)
        });
        let is_new = self.first_at.is_none_or(|at| now.saturating_duration_since(at) < SETTLING);
        let Some(place) = place.filter(|_| !is_new) else {
            let preference =
                if is_new { self.settled_on(best, now) } else { self.fled_to(best, now) };
            return Verdict { first: 0, preference, why: None };
        };
        let current = &candidates[place];
        let is_equal = rank(&current.origin) == rank(&best.origin);
        // What one that is not healthy lacks matters more than distances.
        let is_healthy = current.standing == Standing::Healthy;
        if place == 0 || (is_equal && !is_gain(&self.damping, current, best)) {
            let why = (place > 0 && is_healthy).then(|| kept(&self.damping, current, best));
            return Verdict {
                first: place,
                preference: Self { better: None, ..self.clone() },
                why,
            };
        }
        let Some(lasting) = self.patience(current, best, is_equal) else {
            return Verdict { first: 0, preference: self.fled_to(best, now), why: None };
        };
        let is_unready = !is_equal && best.standing == Standing::Doubtful;
        let better = self.better.filter(|better| better.is_unready == is_unready);
        let since = better.map_or(now, |better| better.since);
        let due = since + lasting;
        if due > now {
            let name = &best.origin.name;
            let why = if is_equal {
                is_healthy.then(|| format!("kept: {name} has not been nearer for long enough"))
            } else {
                Some(format!("kept: {} just now", current.origin.state))
            };
            let better = Some(Better { since, due, is_unready });
            let preference = Self { better, ..self.clone() };
            return Verdict { first: place, preference, why };
        }
        let preference =
            if is_equal { self.settled_on(best, now) } else { self.fled_to(best, now) };
        Verdict { first: 0, preference, why: None }
    }

    /// How long the best one must have been better than the current one; `None` if it must not be
    /// used.
    fn patience(&self, current: &Candidate, best: &Candidate, equal: bool) -> Option<Duration> {
        if equal || is_planted(Bug::RouteChoice) {
            let home = self.home.filter(|home| home.line == best.origin.line);
            let damping = &self.damping;
            return Some(home.map_or(damping.gain_lasting, |home| home.patience(damping)));
        }
        match current.origin.state {
            _ if current.standing != Standing::Doubtful => None,
            OriginState::Unready => Some(UNREADY_LASTING),
            OriginState::Stalled if best.standing == Standing::Doubtful => Some(DOUBT_LASTING),
            OriginState::Stalled => Some(READY_AGAIN),
            _ => None,
        }
    }

    /// An origin that is preferred on its own merits.
    pub(super) fn settled_on(&self, best: &Candidate, now: Instant) -> Self {
        let home = self.home.filter(|home| home.line == best.origin.line);
        Self { home, ..self.changed_to(best, now) }
    }

    /// The memory with an origin that replaces one that became worse or is gone.
    fn fled_to(&self, best: &Candidate, now: Instant) -> Self {
        let home = match (self.home, self.preferred) {
            (Some(home), Some((left, _))) if home.line == left => Some(home.left_again(now)),
            (None, Some((line, _))) => Some(Home { line, left_at: now, times: 1 }),
            (home, _) => home,
        };
        Self { home, ..self.changed_to(best, now) }
    }

    fn changed_to(&self, best: &Candidate, now: Instant) -> Self {
        let since = match self.preferred {
            Some((line, since)) if line == best.origin.line => since,
            _ => now,
        };
        Self {
            damping: self.damping,
            preferred: Some((best.origin.line, since)),
            better: None,
            home: None,
            first_at: Some(self.first_at.unwrap_or(now)),
        }
    }
}

impl Home {
    fn left_again(self, now: Instant) -> Self {
        let is_calm = now.saturating_duration_since(self.left_at) >= CALM;
        let times = if is_calm { 1 } else { self.times.saturating_add(1) };
        Self { left_at: now, times, ..self }
    }

    fn patience(self, damping: &Damping) -> Duration {
        let doubled = 1_u32.checked_shl(self.times.saturating_sub(1)).unwrap_or(u32::MAX);
        damping.return_lasting.saturating_mul(doubled).min(damping.gain_lasting)
    }
}
