//! The wall time that a node believes.
//!
//! A clock that jumps ahead makes credentials look expired; sessions, members and tunnels would end
//! with them. Most such clocks are set back soon, so a jump ahead counts only after it has lasted
//! for [`DOUBT`]; until then the former time goes on. A clock that goes back ends nothing and is
//! believed at once. The first reading of a process is believed.
//!
//! A clock that was behind is believed at once when it is set right: when it returns to the time
//! that it had before it went back, or when a verified credential begins after the believed time
//! and not after the clock's. Only a time that had gone on for an hour is returned to. One that had
//! gone on for that long is not given up at once for a credential, since the clock of the one who
//! signed it may have been ahead, but after three seconds. So is one that is before this node's own
//! credential, which was valid by its own clock.
//!
//! A jump ahead that is believed only because it lasted is remembered for an hour, or until the
//! clock goes back: if all members have expired by it, the clock is wrong rather than they.

use std::time::{Duration, Instant};

use meshport_config::{MAX_CLOCK_SKEW_S, UnixSeconds};

/// How long a clock must be ahead before it is believed.
pub const DOUBT: Duration = Duration::from_secs(30);
/// The same if the believed time is before a verified credential, and the clock's is not.
const SHORT_DOUBT: Duration = Duration::from_secs(3);
/// A time that has gone on for this long without a jump is trusted.
const TRUSTED: Duration = Duration::from_hours(1);
/// The largest gain at once that raises no doubt: well above an adjustment or a late reading.
const MAX_GAIN: Duration = Duration::from_secs(5);

/// See the module's description.
#[derive(Debug, Default)]
pub struct Believed {
    /// The last believed time, since 1970, and when it was read.
    last: Option<(Duration, Instant)>,
    /// When the believed time last began or jumped.
    since: Option<Instant>,
    /// The trusted time before the clock went back.
    before: Option<(Duration, Instant)>,
    /// The latest start of a verified credential, less the skew that clocks are allowed.
    at_least: UnixSeconds,
    /// The same of this node's own credential.
    own: UnixSeconds,
    lead: Option<Lead>,
    jumped: Option<Jump>,
}

/// A jump ahead that is believed because it lasted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Jump {
    /// How far, in all.
    pub by: Duration,
    /// When the first was, by the former time.
    pub at: UnixSeconds,
}

/// A clock that is ahead.
#[derive(Debug, Clone, Copy)]
struct Lead {
    by: Duration,
    since: Instant,
}

impl Believed {
    /// Believes the first reading.
    pub const fn new() -> Self {
        let (last, since, before, lead, jumped) = (None, None, None, None, None);
        let (at_least, own) = (UnixSeconds(0), UnixSeconds(0));
        Self { last, since, before, at_least, own, lead, jumped }
    }

    /// The jumps ahead of the last hour, in one, if nothing but their lasting speaks for them.
    pub fn jumped(&self) -> Option<Jump> {
        self.jumped
    }

    /// Whether such a jump has been believed for less than [`DOUBT`], so that what ends by it may
    /// not have ended yet.
    pub fn has_just_jumped(&self) -> bool {
        let begun = self.since.zip(self.last).map(|(since, (_, last))| last - since);
        self.jumped.is_some() && begun.is_some_and(|begun| begun < DOUBT)
    }

    /// How far the clock is ahead of the believed time; `None` if it is believed.
    pub fn lead(&self) -> Option<Duration> {
        self.lead.map(|lead| lead.by)
    }

    /// Handles that a verified credential is not valid before `begins`, so that the time is not
    /// much earlier.
    pub fn handle_evidence(&mut self, begins: UnixSeconds) {
        self.at_least = self.at_least.max(less_skew(begins));
    }

    /// Handles that this node's own credential is not valid before `begins`.
    pub fn handle_own(&mut self, begins: UnixSeconds) {
        self.own = less_skew(begins);
    }

    /// Takes a reading of the wall clock, since 1970, and of a clock that never jumps and that runs
    /// during suspension too; returns the time to use.
    pub fn handle_reading(&mut self, wall: Duration, now: Instant) -> UnixSeconds {
        let go_on = |(time, at): (Duration, Instant)| time + now.saturating_duration_since(at);
        let Some(expected) = self.last.map(go_on) else { return self.jump(wall, now) };
        let is_old = |at: Instant| now.saturating_duration_since(at) >= TRUSTED;
        let is_trusted = self.since.is_some_and(is_old);
        self.before = self.before.filter(|(_, at)| !is_old(*at));
        self.jumped = self.jumped.filter(|_| !is_trusted);
        if wall + MAX_GAIN < expected {
            self.jumped = self.jumped.filter(|it| expected - wall < it.by / 2);
            if is_trusted {
                self.before = Some((expected, now));
            }
            return self.jump(wall, now);
        }
        if wall <= expected + MAX_GAIN {
            return self.believe(wall, now);
        }
        let returns = self.before.map(go_on).is_some_and(|it| wall.abs_diff(it) <= MAX_GAIN);
        let gained = expected.as_secs() + 1..=wall.as_secs();
        let is_behind = gained.contains(&self.at_least.0);
        let is_evident = is_behind || gained.contains(&self.own.0);
        let lead = self.doubt(wall - expected, now);
        let lasts = now.saturating_duration_since(lead.since);
        let is_right =
            returns || (is_behind && !is_trusted) || (is_evident && lasts >= SHORT_DOUBT);
        if is_right || lasts >= DOUBT {
            let begun = expected.saturating_sub(now.saturating_duration_since(lead.since));
            let new = Jump { by: lead.by, at: UnixSeconds(begun.as_secs()) };
            let all = self.jumped.map_or(new, |it| Jump { by: it.by + new.by, ..it });
            (self.before, self.jumped) = (None, (!is_right).then_some(all));
            return self.jump(wall, now);
        }
        UnixSeconds(expected.as_secs())
    }

    /// Believes another time than the one that went on.
    fn jump(&mut self, wall: Duration, now: Instant) -> UnixSeconds {
        self.since = Some(now);
        self.believe(wall, now)
    }

    /// The lead as of now. A further jump starts the doubt again.
    fn doubt(&mut self, by: Duration, now: Instant) -> Lead {
        let former = self.lead.filter(|lead| by <= lead.by + MAX_GAIN);
        let lead = Lead { by, since: former.map_or(now, |lead| lead.since) };
        self.lead = Some(lead);
        lead
    }

    fn believe(&mut self, wall: Duration, now: Instant) -> UnixSeconds {
        (self.last, self.lead) = (Some((wall, now)), None);
        UnixSeconds(wall.as_secs())
    }
}

/// A time that a clock shows at least if something has begun.
fn less_skew(begins: UnixSeconds) -> UnixSeconds {
    UnixSeconds(begins.0.saturating_sub(MAX_CLOCK_SKEW_S))
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests begin somewhere in time")]
mod tests {
    use super::*;

    const DAY_S: u64 = 24 * 3600;
    const BEGIN_S: u64 = 20_000 * DAY_S;

    /// What is believed at each of these seconds, of a clock that is ahead by as many.
    fn believed(readings: &[(u64, i64)]) -> Vec<i64> {
        let (begin, mut believed) = (Instant::now(), Believed::new());
        let one = |(second, ahead): &(u64, i64)| {
            let truth = BEGIN_S + second;
            let wall = Duration::from_secs(truth.saturating_add_signed(*ahead));
            let read = believed.handle_reading(wall, begin + Duration::from_secs(*second));
            read.0.cast_signed() - truth.cast_signed()
        };
        readings.iter().map(one).collect()
    }

    #[test]
    fn a_clock_that_is_ahead_for_a_while_is_not_believed() {
        let jump = 400 * DAY_S.cast_signed();
        assert_eq!(believed(&[(0, 0), (1, jump), (20, jump), (21, 0), (60, 0)]), [0; 5]);
        // Each jump has its own time, also one on top of another.
        let all = [(0, 0), (1, 20), (30, jump), (31, jump), (59, jump), (60, jump)];
        assert_eq!(believed(&all), [0, 0, 0, 0, 0, jump]);
        assert_eq!(believed(&[(0, 0), (1, 20), (30, 20), (31, 0), (32, 20), (61, 20)]), [0; 6]);
    }

    #[test]
    fn a_clock_that_stays_ahead_is_believed_and_so_is_its_way_back() {
        let jump = 400 * DAY_S.cast_signed();
        let read = believed(&[(0, 0), (1, jump), (30, jump), (31, jump), (32, jump), (33, 0)]);
        assert_eq!(read, [0, 0, 0, jump, jump, 0]);
        assert_eq!(
            believed(&[(0, jump), (1, jump), (2, -jump), (3, 0)]),
            [jump, jump, -jump, -jump]
        );
    }

    #[test]
    fn a_jump_is_remembered_for_an_hour_unless_the_clock_goes_back() {
        let jumped = |readings: &[(u64, u64)]| {
            let (begin, mut believed) = (Instant::now(), Believed::new());
            for (second, ahead) in readings {
                let wall = Duration::from_secs(BEGIN_S + second + ahead);
                believed.handle_reading(wall, begin + Duration::from_secs(*second));
            }
            believed.jumped().map(|it| (it.by.as_secs(), it.at.0 - BEGIN_S))
        };
        let (jump, h) = (400 * DAY_S, TRUSTED.as_secs());
        assert_eq!(jumped(&[(0, jump), (60, jump)]), None, "the first is believed");
        assert_eq!(jumped(&[(0, 0), (1, jump), (30, jump)]), None, "not believed yet");
        let stays = [(0, 0), (1, jump), (31, jump)];
        assert_eq!(jumped(&stays), Some((jump, 1)));
        let then = |more: &[(u64, u64)]| jumped(&[&stays, more].concat());
        assert_eq!(then(&[(40, jump - 60), (h + 30, jump - 60)]), Some((jump, 1)), "a small step");
        assert_eq!(then(&[(40, 0)]), None);
        assert_eq!(then(&[(h + 31, jump)]), None);
        assert_eq!(then(&[(40, jump + 60), (70, jump + 60)]), Some((jump + 60, 1)), "two jumps");
    }

    #[test]
    fn a_jump_that_is_believed_is_recent_for_as_long_as_it_was_doubted() {
        let (begin, mut believed) = (Instant::now(), Believed::new());
        let mut is_recent = |second: u64, ahead: u64| {
            let wall = Duration::from_secs(BEGIN_S + second + ahead);
            believed.handle_reading(wall, begin + Duration::from_secs(second));
            believed.has_just_jumped()
        };
        let jump = 400 * DAY_S;
        let all = [(0, 0), (1, jump), (30, jump), (31, jump), (60, jump), (61, jump), (62, 0)];
        let recent = all.map(|(second, ahead)| is_recent(second, ahead));
        assert_eq!(recent, [false, false, false, true, true, false, false]);
    }

    #[test]
    fn a_clock_that_returns_to_what_it_was_is_believed_at_once() {
        let (back, h) = (-5 * DAY_S.cast_signed(), TRUSTED.as_secs());
        assert_eq!(believed(&[(0, 0), (h, back), (h + 20, back), (h + 21, 0)]), [0, back, back, 0]);
        // Also in steps; beyond that, a jump is one like any other.
        let steps = [(0, 0), (h, back), (h + 1, 2 * back), (h + 2, back), (h + 3, 3), (h + 4, 60)];
        assert_eq!(believed(&steps), [0, back, 2 * back, 2 * back, 3, 3]);
        // Not if that was long ago, or the time had not been trusted.
        assert_eq!(believed(&[(0, 0), (h, back), (2 * h, 0)]), [0, back, back]);
        assert_eq!(believed(&[(0, 0), (h - 1, back), (h, 0)]), [0, back, back]);
        // It was ahead for long enough, and is again: that time is not one to return to.
        let jump = 400 * DAY_S.cast_signed();
        let ahead = [(0, 0), (h, jump), (h + 30, jump), (h + 40, 0), (h + 50, jump)];
        assert_eq!(believed(&ahead), [0, 0, jump, 0, 0]);
    }

    #[test]
    fn a_clock_behind_the_start_of_a_credential_is_believed_when_it_is_set_right() {
        let begin = Instant::now();
        let (jump, begins) = (BEGIN_S + 5 * DAY_S, BEGIN_S + 4 * DAY_S);
        let read = |certain: &[u64], after: u64| {
            let mut believed = Believed::new();
            believed.handle_reading(Duration::from_secs(BEGIN_S), begin);
            certain.iter().for_each(|it| believed.handle_evidence(UnixSeconds(*it)));
            believed.handle_reading(Duration::from_secs(jump), begin + Duration::from_secs(after)).0
        };
        assert_eq!(read(&[], 1), BEGIN_S + 1, "nothing speaks for it");
        assert_eq!(read(&[begins], 1), jump);
        assert_eq!(read(&[jump + MAX_CLOCK_SKEW_S], 1), jump);
        assert_eq!(read(&[jump + MAX_CLOCK_SKEW_S + 1], 1), BEGIN_S + 1, "still behind");
        assert_eq!(read(&[BEGIN_S], 1), BEGIN_S + 1, "not behind that one");
    }

    #[test]
    fn a_clock_that_was_long_behind_the_start_of_a_credential_is_believed_soon_after() {
        let (begin, mut believed) = (Instant::now(), Believed::new());
        let (trusted, doubt) = (TRUSTED.as_secs(), SHORT_DOUBT.as_secs());
        let mut read = |second: u64, ahead: u64| {
            let wall = Duration::from_secs(BEGIN_S + second + ahead);
            believed.handle_evidence(UnixSeconds(BEGIN_S + 4 * DAY_S));
            believed.handle_reading(wall, begin + Duration::from_secs(second)).0 - BEGIN_S - second
        };
        let right = 5 * DAY_S;
        assert_eq!((read(0, 0), read(trusted, right)), (0, 0), "the signer's clock may be ahead");
        assert_eq!(read(trusted + doubt - 1, right), 0);
        assert_eq!(read(trusted + doubt, right), right);
    }

    #[test]
    fn a_clock_behind_its_own_credential_is_believed_soon_after_it_is_set_right() {
        let (back, doubt) = (-5 * DAY_S.cast_signed(), SHORT_DOUBT.as_secs());
        for behind_s in [10, 2 * TRUSTED.as_secs()] {
            let (begin, mut believed) = (Instant::now(), Believed::new());
            believed.handle_own(UnixSeconds(BEGIN_S - DAY_S));
            let mut read = |second: u64, ahead: i64| {
                let wall = (BEGIN_S + second).saturating_add_signed(ahead);
                let at = begin + Duration::from_secs(second);
                believed.handle_reading(Duration::from_secs(wall), at).0.cast_signed()
                    - (BEGIN_S + second).cast_signed()
            };
            assert_eq!((read(0, 0), read(1, back)), (0, back));
            let right = behind_s + 1;
            assert_eq!(read(behind_s, back), back);
            assert_eq!((read(right, 0), read(right + doubt - 1, 0)), (back, back));
            assert_eq!(read(right + doubt, 0), 0);
            // It is ahead now, and its credential has begun by both times.
            let ahead = DAY_S.cast_signed();
            assert_eq!((read(right + 10, ahead), read(right + 20, ahead)), (0, 0));
            assert_eq!(believed.jumped(), None);
        }
    }

    #[test]
    fn what_a_clock_gains_little_by_little_is_believed() {
        let most = MAX_GAIN.as_secs().cast_signed();
        assert_eq!(believed(&[(0, 0), (1, most), (2, 2 * most)]), [0, most, 2 * most]);
        assert_eq!(believed(&[(0, 0), (1, most + 1)]), [0, 0]);
    }
}
