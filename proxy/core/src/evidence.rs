//! Evidence from sessions about lines, in addition to gossip and probes.
//!
//! An instance may answer its own node's probes and still keep clients waiting; a path may carry
//! small probes and lose everything else. Each attempt that is silent, refused or beaten by a later
//! one adds a point to its line, at most `MAX_SCORE`; answers and time remove points. A line is
//! suspect from `SUSPECT_AT` points until it falls below `CLEARED_AT`, and is then tried again.
//! Clients that disconnect are no evidence.
//!
//! Slow is not silent. Concurrent attempts, as in a burst, count once; and if the line has answered
//! anyone since an attempt began, that attempt does not count.
//!
//! An origin that denies this node access is not tried for `DENIED_FOR`, over any path, unless
//! nothing better is left: only its operator can change that, or another credential of this node.
//!
//! Bounded by [`MAX_LINES`]; lines without points are forgotten.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use meshport_config::NodeId;

use super::view::Line;

/// Lines with points at once: more than a service has origins.
pub const MAX_LINES: usize = 1024;
/// Maximum points of a line, so that a burst of any length counts for at most a quarter of a
/// minute.
const MAX_SCORE: f64 = 4.0;
/// Points that make a line suspect: one slow answer may be chance, two within 2.5 s are not.
const SUSPECT_AT: f64 = 1.5;
/// Points below which it is tried again.
const CLEARED_AT: f64 = 1.0;
/// Time after which a point is removed.
const DECAY: Duration = Duration::from_secs(5);
/// How long a denial is remembered: long enough that it rarely costs sessions a round trip, and
/// short enough to notice when the origin admits this node.
const DENIED_FOR: Duration = Duration::from_secs(30);
/// For how long origins may not know this node's new credential yet, and how long a denial is
/// remembered meanwhile.
const NEW_FOR: Duration = Duration::from_secs(5);
const DENIED_AS_NEW_FOR: Duration = Duration::from_secs(1);
/// Points an answer takes away.
const ANSWER_CLEARS: f64 = 2.0;
/// How long an answer is remembered: longer than any attempt that it may excuse.
const ANSWER_KEPT: Duration = Duration::from_secs(30);

/// How one attempt to reach an instance ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The instance answered.
    Answered,
    /// The instance was connected after this time. Reported for lines that cannot be probed; does
    /// not imply an answer.
    Connected(Duration),
    /// There was no answer in time.
    Silent,
    /// The connection was refused.
    Refused,
    /// This node may not use it.
    Denied,
    /// Another candidate that was tried later answered first.
    Outrun,
}

/// The result of one attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempted {
    /// The line it took.
    pub line: Line,
    /// How it ended.
    pub verdict: Verdict,
    /// Start time.
    pub began: Instant,
}

#[derive(Debug, Clone, Copy)]
struct Record {
    score: f64,
    at: Instant,
    suspect: bool,
    /// Time at which slowness was last counted.
    counted_at: Option<Instant>,
}

impl Record {
    fn score(&self, now: Instant) -> f64 {
        let passed = now.saturating_duration_since(self.at).as_secs_f64() / DECAY.as_secs_f64();
        (self.score - passed).max(0.0)
    }

    /// Time at which a suspect line is cleared without further evidence.
    fn cleared_at(&self) -> Instant {
        self.at + DECAY.mul_f64((self.score - CLEARED_AT).max(0.0))
    }
}

/// The points of all lines of a service. See the module's doc.
#[derive(Debug, Clone, Default)]
pub struct Evidence {
    records: BTreeMap<Line, Record>,
    /// Time of each line's last answer, for [`ANSWER_KEPT`].
    answered: BTreeMap<Line, Instant>,
    /// Origins that deny this node access, and until when that is remembered.
    denied: BTreeMap<NodeId, Instant>,
    /// Until when this node's credential counts as new.
    new_until: Option<Instant>,
}

impl Evidence {
    /// Handles the outcome of an attempt; true if it made a line suspect or cleared it.
    pub fn handle(&mut self, attempted: Attempted, now: Instant) -> bool {
        let Attempted { line, verdict, .. } = attempted;
        if verdict == Verdict::Denied {
            return self.deny(line, now);
        }
        if matches!(verdict, Verdict::Silent | Verdict::Outrun) && self.is_excused(&attempted) {
            return false;
        }
        let answered = verdict == Verdict::Answered;
        if answered && (self.answered.len() < MAX_LINES || self.answered.contains_key(&line)) {
            self.answered.insert(line, now);
        }
        let let_in = answered && line.origin().is_some_and(|it| self.denied.remove(&it).is_some());
        self.score_verdict(line, verdict, now) || let_in
    }

    /// Whether slowness is no evidence: the line has answered since, or it was counted already.
    fn is_excused(&self, attempted: &Attempted) -> bool {
        let Attempted { line, began, .. } = attempted;
        let answered = self.answered.get(line).is_some_and(|at| at >= began);
        let counted = self.records.get(line).and_then(|record| record.counted_at);
        answered || counted.is_some_and(|at| at > *began)
    }

    fn deny(&mut self, line: Line, now: Instant) -> bool {
        let Some(origin) = line.origin() else { return false };
        if self.denied.len() >= MAX_LINES && !self.denied.contains_key(&origin) {
            return false;
        }
        let is_new = self.new_until.is_some_and(|until| now < until);
        let lasts = if is_new { DENIED_AS_NEW_FOR } else { DENIED_FOR };
        self.denied.insert(origin, now + lasts).is_none()
    }

    /// Handles that this node has another credential: what denied the former may admit it.
    pub fn handle_credential(&mut self, now: Instant) {
        self.denied.clear();
        self.new_until = Some(now + NEW_FOR);
    }

    fn score_verdict(&mut self, line: Line, verdict: Verdict, now: Instant) -> bool {
        let known = self.records.get(&line);
        let good = matches!(verdict, Verdict::Answered | Verdict::Connected(_));
        if known.is_none() && (good || self.records.len() >= MAX_LINES) {
            return false;
        }
        let known = known.copied().unwrap_or(Record {
            score: 0.0,
            at: now,
            suspect: false,
            counted_at: None,
        });
        let score = match verdict {
            Verdict::Answered => (known.score(now) - ANSWER_CLEARS).max(0.0),
            Verdict::Connected(_) | Verdict::Denied => known.score(now),
            Verdict::Silent | Verdict::Refused | Verdict::Outrun => {
                (known.score(now) + 1.0).min(MAX_SCORE)
            }
        };
        let suspect = score >= if known.suspect { CLEARED_AT } else { SUSPECT_AT };
        let is_slow = matches!(verdict, Verdict::Silent | Verdict::Outrun);
        let counted_at = if is_slow { Some(now) } else { known.counted_at };
        self.records.insert(line, Record { score, at: now, suspect, counted_at });
        suspect != known.suspect
    }

    /// Advances time; true if a suspect line was cleared or a denial forgotten.
    pub fn handle_timeout(&mut self, now: Instant) -> bool {
        self.answered.retain(|_, at| now.saturating_duration_since(*at) < ANSWER_KEPT);
        let denied = self.denied.len();
        self.denied.retain(|_, until| *until > now);
        let mut cleared = self.denied.len() < denied;
        self.records.retain(|_, record| {
            if record.suspect && record.cleared_at() <= now {
                record.suspect = false;
                cleared = true;
            }
            record.suspect || record.score(now) > 0.0
        });
        cleared
    }

    /// Time at which [`Evidence::handle_timeout`] next clears a line.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let suspects = self.records.values().filter(|it| it.suspect).map(Record::cleared_at);
        suspects.chain(self.denied.values().copied()).min()
    }

    /// Whether the origin of a line has recently denied this node access.
    pub fn is_denied(&self, line: &Line) -> bool {
        line.origin().is_some_and(|origin| self.denied.contains_key(&origin))
    }

    /// The points of a line, 0 to 4; see the module.
    pub fn score(&self, line: &Line, now: Instant) -> f64 {
        self.records.get(line).map_or(0.0, |record| record.score(now))
    }

    /// Whether sessions should prefer other lines.
    pub fn is_suspect(&self, line: &Line) -> bool {
        self.records.get(line).is_some_and(|record| record.suspect)
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "an origin for virtual time")]

    use super::*;

    fn line(number: u8) -> Line {
        Line::Direct(NodeId::from_bytes([number; 32]))
    }

    /// The outcome of an attempt that began just now.
    fn handle(evidence: &mut Evidence, line: Line, verdict: Verdict, now: Instant) -> bool {
        evidence.handle(Attempted { line, verdict, began: now }, now)
    }

    /// K3: 300 dials at once on busy cores, and new ones follow when one is done.
    #[test]
    fn a_herd_that_is_slow_is_one_piece_of_evidence_and_none_once_it_is_answered() {
        let (mut evidence, start) = (Evidence::default(), Instant::now());
        let ms = |ms| start + Duration::from_millis(ms);
        let outrun = |evidence: &mut Evidence, began: Instant, now: Instant| {
            let attempted = Attempted { line: line(1), verdict: Verdict::Outrun, began };
            evidence.handle(attempted, now)
        };
        for at in 200..500 {
            assert!(!outrun(&mut evidence, start, ms(at)));
        }
        assert!(evidence.score(&line(1), ms(500)) <= 1.0);
        // From here on it answers slowly, and each answer excuses the attempts that waited
        // meanwhile.
        for at in (500..5000).step_by(10) {
            handle(&mut evidence, line(1), Verdict::Answered, ms(at));
            assert!(!outrun(&mut evidence, ms(at - 300), ms(at + 5)));
        }
        assert_eq!(evidence.score(&line(1), ms(5000)), 0.0);
        // It falls silent: two attempts in sequence prove it.
        assert!(!outrun(&mut evidence, ms(5010), ms(5200)));
        assert!(outrun(&mut evidence, ms(5210), ms(5400)));
    }

    #[test]
    fn one_slow_answer_is_chance_and_a_burst_is_not() {
        let (mut evidence, now) = (Evidence::default(), Instant::now());
        assert!(!handle(&mut evidence, line(1), Verdict::Outrun, now));
        assert!(!evidence.is_suspect(&line(1)));
        assert!(handle(&mut evidence, line(1), Verdict::Silent, now));
        assert!(evidence.is_suspect(&line(1)) && !evidence.is_suspect(&line(2)));
    }

    #[test]
    fn time_clears_however_long_the_burst_was() {
        let (mut evidence, now) = (Evidence::default(), Instant::now());
        for _ in 0..100 {
            handle(&mut evidence, line(1), Verdict::Silent, now);
        }
        let due = evidence.poll_timeout().expect("a suspect line");
        assert_eq!(due, now + DECAY * 3);
        assert!(!evidence.handle_timeout(due - Duration::from_millis(1)));
        assert!(evidence.handle_timeout(due));
        assert!(!evidence.is_suspect(&line(1)));
        // It has one point left: the next silence makes it suspect again.
        assert!(handle(&mut evidence, line(1), Verdict::Silent, due));
        evidence.handle_timeout(due + DECAY * 10);
        assert!(evidence.records.is_empty() && evidence.poll_timeout().is_none());
    }

    #[test]
    fn a_denial_is_the_origins_whatever_the_way_and_is_forgotten() {
        let (mut evidence, now) = (Evidence::default(), Instant::now());
        let (origin, relay) = (NodeId::from_bytes([1; 32]), NodeId::from_bytes([9; 32]));
        let relayed = Line::Relayed { origin, relay };
        assert!(handle(&mut evidence, relayed, Verdict::Denied, now));
        assert!(!handle(&mut evidence, line(1), Verdict::Denied, now), "it is known");
        assert!([line(1), relayed].iter().all(|it| evidence.is_denied(it)));
        assert!(!evidence.is_denied(&line(9)) && !evidence.is_suspect(&line(1)));
        assert_eq!(evidence.poll_timeout(), Some(now + DENIED_FOR));
        assert!(evidence.handle_timeout(now + DENIED_FOR));
        assert!(!evidence.is_denied(&line(1)));
        // An answer says the same sooner.
        handle(&mut evidence, line(1), Verdict::Denied, now);
        assert!(handle(&mut evidence, relayed, Verdict::Answered, now));
        assert!(!evidence.is_denied(&line(1)) && evidence.poll_timeout().is_none());
    }

    #[test]
    fn an_answer_clears() {
        let (mut evidence, now) = (Evidence::default(), Instant::now());
        for _ in 0..2 {
            handle(&mut evidence, line(1), Verdict::Refused, now);
        }
        assert!(handle(&mut evidence, line(1), Verdict::Answered, now));
        assert!(!evidence.is_suspect(&line(1)));
        assert!(!handle(&mut evidence, line(2), Verdict::Answered, now));
        assert_eq!(evidence.records.len(), 1, "an answer opens no record");
    }

    #[test]
    fn the_table_is_bounded() {
        let (mut evidence, now) = (Evidence::default(), Instant::now());
        for port in 0..u16::try_from(MAX_LINES).expect("small") + 10 {
            let line = Line::Outside(([192, 0, 2, 1], port).into());
            handle(&mut evidence, line, Verdict::Silent, now);
        }
        assert_eq!(evidence.records.len(), MAX_LINES);
    }
}
