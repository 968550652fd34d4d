//! How one session that is being carried ends before its time: it is reset, or it has leave to
//! move and goes at a quiet moment.

use std::time::{Duration, Instant};

/// A session that carries nothing for this long is between two exchanges, as far as anyone can tell
/// who does not read them: the best moment to end it.
pub const QUIET: Duration = Duration::from_millis(200);
/// How long a session that is to move may stay busy before another one goes instead.
pub const MAX_UNREST: Duration = Duration::from_secs(10);

/// How sessions are reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// Each at a moment of its own.
    Within {
        /// Not later than after this time.
        window: Duration,
        /// Whether a session whose origin answers after that goes on.
        forgives: bool,
    },
    /// At once, those that are still being opened as well.
    ForGood,
}

/// Why a session is to end now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Nothing can come through it any more.
    Cut,
    /// Its client is better served elsewhere.
    Moved {
        /// Whether nothing has been carried for a while, so that nothing is in flight as far as
        /// anyone can tell.
        quiet: bool,
    },
}

/// A reset that is due.
#[derive(Debug, Clone, Copy)]
struct Due {
    at: Instant,
    forgives: bool,
}

/// Leave to move.
#[derive(Debug, Clone, Copy)]
struct Leave {
    until: Instant,
    /// Whether it goes at the end even if it is never quiet.
    insist: bool,
    /// What was carried when that was last another number, and when that was.
    carried: Option<u64>,
    since: Instant,
}

/// What is to become of one session.
#[derive(Debug)]
pub(super) struct Life {
    /// Its place in a window of resets, from 0 to 1.
    place: f64,
    due: Option<Due>,
    leave: Option<Leave>,
}

impl Life {
    pub(super) fn new(place: f64) -> Self {
        Self { place: place.clamp(0.0, 1.0), due: None, leave: None }
    }

    /// It is to be reset; an earlier reset stands.
    pub(super) fn handle_cut(&mut self, how: Cut, now: Instant) {
        let due = match how {
            Cut::Within { window, forgives } => {
                Due { at: now + window.mul_f64(self.place), forgives }
            }
            Cut::ForGood => Due { at: now, forgives: false },
        };
        let is_earlier = self.due.is_none_or(|it| due.at < it.at);
        let forgives = due.forgives && self.due.is_none_or(|it| it.forgives);
        let at = if is_earlier { due.at } else { self.due.map_or(due.at, |it| it.at) };
        self.due = Some(Due { at, forgives });
    }

    /// Its origin has just answered: what was said before that does not concern it, unless its line
    /// is over for good or an answer shows nothing.
    pub(super) fn handle_answer(&mut self) {
        self.due = self.due.filter(|it| !it.forgives);
    }

    /// It may move.
    pub(super) fn grant(&mut self, insist: bool, now: Instant) {
        self.leave = Some(Leave { until: now + MAX_UNREST, insist, carried: None, since: now });
    }

    pub(super) fn has_leave(&self) -> bool {
        self.leave.is_some()
    }

    /// Whether it goes even if it is never quiet.
    pub(super) fn insist(&mut self, insist: bool) {
        if let Some(leave) = &mut self.leave {
            leave.insist = insist;
        }
    }

    /// It may not move any more.
    pub(super) fn recall(&mut self) {
        self.leave = None;
    }

    /// What becomes of it now, when so much has been carried. One that is never quiet loses its
    /// leave after [`MAX_UNREST`], unless it has to go.
    pub(super) fn poll(&mut self, carried: u64, now: Instant) -> Option<End> {
        if self.due.is_some_and(|it| it.at <= now) {
            return Some(End::Cut);
        }
        let leave = self.leave.as_mut()?;
        if leave.carried != Some(carried) {
            (leave.carried, leave.since) = (Some(carried), now);
        }
        let quiet = now.saturating_duration_since(leave.since) >= QUIET;
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
        let looks = self.leave.map(|it| (it.since + QUIET).min(it.until));
        self.due.map(|it| it.at).into_iter().chain(looks).min()
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "an origin for virtual time")]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn each_is_reset_at_its_place_in_the_window() {
        let now = Instant::now();
        let mut life = Life::new(0.25);
        life.handle_cut(Cut::Within { window: ms(1000), forgives: true }, now);
        assert_eq!(life.poll_timeout(), Some(now + ms(250)));
        assert_eq!((life.poll(0, now), life.poll(0, now + ms(250))), (None, Some(End::Cut)));
        life.handle_cut(Cut::Within { window: ms(4000), forgives: true }, now + ms(1));
        assert_eq!(life.poll_timeout(), Some(now + ms(250)), "the earlier one stands");
        life.handle_cut(Cut::ForGood, now + ms(2));
        assert_eq!(life.poll(0, now + ms(2)), Some(End::Cut));
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
            assert_eq!(life.poll(0, now).is_some(), later || !forgives);
        }
        // One that nothing spares is not spared by another that would be.
        let mut life = Life::new(1.0);
        life.handle_cut(Cut::Within { window: ms(100), forgives: false }, now);
        life.handle_cut(Cut::Within { window: ms(50), forgives: true }, now);
        life.handle_answer();
        assert_eq!(life.poll(0, now + ms(50)), Some(End::Cut));
    }

    #[test]
    fn a_session_moves_at_a_quiet_moment_or_when_it_has_to() {
        let now = Instant::now();
        for insist in [false, true] {
            let mut life = Life::new(0.0);
            life.grant(insist, now);
            let (mut at, mut carried, mut end) = (now, 0, None);
            // Never quiet.
            while end.is_none() && life.has_leave() {
                at = life.poll_timeout().expect("it is looked at") - ms(1);
                carried += 1;
                assert_eq!(life.poll(carried, at), None);
                end = life.poll(carried + 1, at + ms(1));
                carried += 1;
            }
            assert!(at + ms(1) - now >= MAX_UNREST);
            assert_eq!(end, insist.then_some(End::Moved { quiet: false }));
        }
        let mut life = Life::new(0.0);
        life.grant(false, now);
        assert_eq!(life.poll(7, now), None);
        assert_eq!(life.poll(9, now + ms(150)), None, "it was busy");
        assert_eq!(life.poll_timeout(), Some(now + ms(350)));
        assert_eq!(life.poll(9, now + ms(350)), Some(End::Moved { quiet: true }));
        life.recall();
        assert_eq!((life.poll(9, now + ms(900)), life.poll_timeout()), (None, None));
    }
}
