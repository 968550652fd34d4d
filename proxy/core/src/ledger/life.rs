//! How a session ends early: it is reset, or it may move and does so when idle.

use std::time::{Duration, Instant};

use meshport_config::planted::{Bug, is_planted};

use crate::policy::reset_after;

/// A session without traffic for this long is probably between two exchanges: the best moment to
/// end it.
pub const QUIET: Duration = Duration::from_millis(200);
/// The same if the client sent last and may wait for an answer: twice what Kubernetes' service
/// level objectives allow for 99 % of all calls except lists.
const QUIET_WAITING: Duration = Duration::from_secs(2);
/// How long a session that should move may stay busy before another one goes instead.
pub const MAX_UNREST: Duration = Duration::from_secs(10);

/// Interval at which a session that will be reset is checked: a client that sends a request need
/// not wait for the rest of the window.
const LOOK: Duration = Duration::from_millis(50);

/// The traffic of a session.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Total bytes in both directions; only a difference counts.
    pub bytes: u64,
    /// Whether its client may be waiting for an answer: it sent last.
    pub waits: bool,
    /// Whether bytes are buffered in either direction, or a side has ended: however long that
    /// lasts, the session is not idle.
    pub holds: bool,
}

impl Traffic {
    fn quiet_time(self) -> Duration {
        if self.waits { QUIET_WAITING } else { QUIET }
    }
}

/// How sessions are reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// Each at a different moment.
    Within {
        /// Within this time.
        window: Duration,
        /// Whether a session continues if its origin still answers.
        forgives: bool,
    },
    /// At once, including those that are still being opened.
    ForGood,
}

/// Why a session must end now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Its path or instance no longer works.
    Cut,
    /// Its client is better served elsewhere.
    Moved {
        /// Whether it was idle, so that most likely nothing is in flight.
        quiet: bool,
    },
}

/// A reset that is due.
#[derive(Debug, Clone, Copy)]
struct Due {
    since: Instant,
    window: Duration,
    forgives: bool,
    /// Time of the last check.
    looked: Instant,
}

impl Due {
    fn at(&self, place: f64, waits: bool) -> Instant {
        self.since + reset_after(self.window, place, waits)
    }
}

/// Leave to move.
#[derive(Debug, Clone, Copy)]
struct Leave {
    until: Instant,
    /// Whether it ends even if it is never quiet.
    insist: bool,
    /// The number of bytes carried, and when it last changed or bytes were last buffered.
    bytes: Option<u64>,
    since: Instant,
    /// How long it must have been idle since then.
    quiet_time: Duration,
}

/// The pending ends of one session.
#[derive(Debug)]
pub(super) struct Life {
    /// Its place in a window of resets, from 0 to 1.
    place: f64,
    /// Whether its client was waiting at the last check.
    waits: bool,
    due: Option<Due>,
    leave: Option<Leave>,
}

impl Life {
    pub(super) fn new(place: f64) -> Self {
        Self { place: place.clamp(0.0, 1.0), waits: false, due: None, leave: None }
    }

    /// Schedules a reset; an earlier one stands.
    pub(super) fn handle_cut(&mut self, how: Cut, now: Instant) {
        let (window, forgives) = match how {
            Cut::Within { window, forgives } => (window, forgives),
            Cut::ForGood => (Duration::ZERO, false),
        };
        let new = Due { since: now, window, forgives, looked: now };
        if is_planted(Bug::Reset) {
            return;
        }
        let first = match self.due {
            Some(due) if due.at(self.place, false) <= new.at(self.place, false) => due,
            Some(_) | None => new,
        };
        let forgives = forgives && self.due.is_none_or(|it| it.forgives);
        self.due = Some(Due { forgives, ..first });
    }

    /// Handles an answer of its origin: an earlier order to end no longer applies, unless its line
    /// has ended permanently or an answer proves nothing.
    pub(super) fn handle_answer(&mut self) {
        self.due = self.due.filter(|it| !it.forgives);
    }

    /// Permits it to move.
    pub(super) fn grant(&mut self, insist: bool, now: Instant) {
        let (until, quiet_time) = (now + MAX_UNREST, QUIET);
        self.leave = Some(Leave { until, insist, bytes: None, since: now, quiet_time });
    }

    pub(super) fn has_leave(&self) -> bool {
        self.leave.is_some()
    }

    /// Sets whether it ends even if it is never quiet.
    pub(super) fn insist(&mut self, insist: bool) {
        if let Some(leave) = &mut self.leave {
            leave.insist = insist;
        }
    }

    /// Withdraws the permission to move.
    pub(super) fn recall(&mut self) {
        self.leave = None;
    }

    /// The decision about it now. A session that is never idle loses its permission to move after
    /// [`MAX_UNREST`], unless it must end.
    pub(super) fn poll(&mut self, traffic: Traffic, now: Instant) -> Option<End> {
        let Traffic { bytes, waits, holds } = traffic;
        self.waits = waits;
        if let Some(due) = &mut self.due {
            due.looked = now;
            if due.at(self.place, waits) <= now {
                return Some(End::Cut);
            }
        }
        let leave = self.leave.as_mut()?;
        if leave.bytes != Some(bytes) || holds {
            (leave.bytes, leave.since) = (Some(bytes), now);
        }
        leave.quiet_time = traffic.quiet_time();
        let quiet = now.saturating_duration_since(leave.since) >= leave.quiet_time;
        let is_over = leave.until <= now;
        if quiet || (is_over && leave.insist) {
            return Some(End::Moved { quiet });
        }
        if is_over {
            self.leave = None;
        }
        None
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let resets = self.due.map(|due| {
            let at = due.at(self.place, self.waits);
            if self.waits { at } else { at.min(due.looked + LOOK) }
        });
        let looks = self.leave.map(|it| (it.since + it.quiet_time).min(it.until));
        resets.into_iter().chain(looks).min()
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "an origin for virtual time")]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn carried(bytes: u64) -> Traffic {
        Traffic { bytes, ..Traffic::default() }
    }

    #[test]
    fn each_is_reset_at_its_place_in_the_window() {
        let now = Instant::now();
        let mut life = Life::new(0.25);
        life.handle_cut(Cut::Within { window: ms(1000), forgives: true }, now);
        assert_eq!(life.poll_timeout(), Some(now + LOOK));
        assert_eq!(
            (life.poll(carried(0), now), life.poll(carried(0), now + ms(250))),
            (None, Some(End::Cut))
        );
        life.handle_cut(Cut::Within { window: ms(4000), forgives: true }, now + ms(1));
        assert_eq!(life.poll(carried(0), now + ms(210)), None);
        assert_eq!(life.poll_timeout(), Some(now + ms(250)), "the earlier one stands");
        life.handle_cut(Cut::ForGood, now + ms(2));
        assert_eq!(life.poll(carried(0), now + ms(2)), Some(End::Cut));
    }

    #[test]
    fn an_answer_spares_a_session_unless_it_shows_nothing() {
        let now = Instant::now();
        for (forgives, later) in [(true, false), (false, false), (true, true), (false, true)] {
            let mut life = Life::new(0.5);
            let cut = Cut::Within { window: Duration::ZERO, forgives };
            if later {
                life.handle_answer();
                life.handle_cut(cut, now);
            } else {
                life.handle_cut(cut, now);
                life.handle_answer();
            }
            assert_eq!(life.poll(carried(0), now).is_some(), later || !forgives);
        }
        // A session that must not be spared is not spared by a later reset that would spare it.
        let mut life = Life::new(1.0);
        life.handle_cut(Cut::Within { window: ms(100), forgives: false }, now);
        life.handle_cut(Cut::Within { window: ms(50), forgives: true }, now);
        life.handle_answer();
        assert_eq!(life.poll(carried(0), now + ms(50)), Some(End::Cut));
    }

    #[test]
    fn a_session_moves_at_a_quiet_moment_or_when_it_has_to() {
        let now = Instant::now();
        for insist in [false, true] {
            let mut life = Life::new(0.0);
            life.grant(insist, now);
            let (mut at, mut bytes, mut end) = (now, 0, None);
            // Never quiet.
            while end.is_none() && life.has_leave() {
                at = life.poll_timeout().expect("it is looked at") - ms(1);
                bytes += 1;
                assert_eq!(life.poll(carried(bytes), at), None);
                end = life.poll(carried(bytes + 1), at + ms(1));
                bytes += 1;
            }
            assert!(at + ms(1) - now >= MAX_UNREST);
            assert_eq!(end, insist.then_some(End::Moved { quiet: false }));
        }
        let mut life = Life::new(0.0);
        life.grant(false, now);
        assert_eq!(life.poll(carried(7), now), None);
        assert_eq!(life.poll(carried(9), now + ms(150)), None, "it was busy");
        assert_eq!(life.poll_timeout(), Some(now + ms(350)));
        assert_eq!(life.poll(carried(9), now + ms(350)), Some(End::Moved { quiet: true }));
        life.recall();
        assert_eq!((life.poll(carried(9), now + ms(900)), life.poll_timeout()), (None, None));
    }

    /// A call that takes half a second is answered first; a client that never gets an answer does
    /// not hold its session for ever.
    #[test]
    fn a_session_whose_client_may_wait_is_quiet_later() {
        let now = Instant::now();
        let mut life = Life::new(0.0);
        life.grant(false, now);
        let asks = Traffic { waits: true, ..carried(7) };
        assert_eq!((life.poll(asks, now), life.poll(asks, now + ms(1999))), (None, None));
        assert_eq!(life.poll_timeout(), Some(now + QUIET_WAITING));
        let moved = Some(End::Moved { quiet: true });
        assert_eq!(life.poll(asks, now + QUIET_WAITING), moved);
        assert_eq!(life.poll(carried(8), now + ms(1000)), None, "answered");
        assert_eq!(life.poll(carried(8), now + ms(1200)), moved);
    }

    /// A side that reads nothing stops the count of bytes, but the data held for it would be lost.
    #[test]
    fn a_session_that_holds_bytes_is_never_quiet() {
        let now = Instant::now();
        for insist in [false, true] {
            let mut life = Life::new(0.0);
            life.grant(insist, now);
            let holds = Traffic { holds: true, ..carried(7) };
            let (mut at, mut end, mut looks) = (now, None, 0);
            while end.is_none() && life.has_leave() {
                end = life.poll(holds, at);
                at = life.poll_timeout().unwrap_or(at);
                looks += 1;
            }
            assert_eq!(at, now + MAX_UNREST);
            assert!(looks < 60, "{looks}");
            assert_eq!(end, insist.then_some(End::Moved { quiet: false }));
        }
    }

    /// A client that sends a request, before the news or while its session waits for its turn, is
    /// not kept waiting.
    #[test]
    fn a_waiting_client_is_reset_before_an_idle_one() {
        let now = Instant::now();
        let mut life = Life::new(0.9);
        life.handle_cut(Cut::Within { window: ms(1000), forgives: true }, now);
        assert_eq!(life.poll(carried(0), now), None);
        assert_eq!(life.poll(Traffic { waits: true, ..carried(0) }, now), None);
        assert_eq!(life.poll_timeout(), Some(now + ms(90)), "nothing to look for until then");
        let asks = Traffic { waits: true, ..carried(7) };
        assert_eq!(life.poll(carried(0), now + ms(300)), None);
        assert_eq!(life.poll(asks, now + ms(350)), Some(End::Cut));
    }
}
