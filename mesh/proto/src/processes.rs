//! Tracks which process uses a peer's key, and detects a second one.
//!
//! Every process has an instance number and sends it in each session. A number replaced by another
//! means a restart. A number that *returns* after another one was heard proves that both processes
//! run: its session was agreed after the other was heard, so it is not a late packet. A restart, a
//! move to another address or network, and a restored state folder all bring a new number once, and
//! never an old one again.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Minimum interval between messages that tell a process that another one has its key.
const TELL_GAP: Duration = Duration::from_secs(1);
/// How long after informing a process the other one need not be located to inform it too.
const TOLD_LATELY: Duration = Duration::from_secs(60);
/// Minimum interval between reports to the user about one peer.
const REPORT_GAP: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Copy)]
struct Process {
    instance: u64,
    at: SocketAddr,
    /// Time at which it was last heard.
    heard: Instant,
    /// Time at which it was informed of the other one.
    told: Option<Instant>,
}

/// The process last heard with a peer's key, and the one before it.
#[derive(Debug, Default)]
pub(crate) struct Processes {
    current: Option<Process>,
    former: Option<Process>,
    reported: Option<Instant>,
}

/// The meaning of a process's message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// The same process as before, or the first one.
    Same,
    /// Another process. The one before was last heard at this address, and may still run.
    Another { before: SocketAddr },
    /// Both processes run.
    Duplicate(Duplicate),
}

/// Two processes with one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Duplicate {
    /// Address of the one that has just sent, and of the other one.
    pub(crate) at: [SocketAddr; 2],
    /// Whether to inform the one that has just sent.
    pub(crate) tell: bool,
    /// Whether to locate the other one, to inform it.
    pub(crate) seek: bool,
    /// Whether to inform the user.
    pub(crate) report: bool,
}

impl Processes {
    /// The address of the process before the last one.
    pub(crate) fn other(&self) -> Option<SocketAddr> {
        Some(self.former?.at)
    }

    /// Handles the instance number from the newest session, which was agreed at `agreed`.
    pub(crate) fn note(
        &mut self,
        instance: u64,
        at: SocketAddr,
        agreed: Instant,
        now: Instant,
    ) -> Found {
        let process = Process { instance, at, heard: now, told: None };
        let Some(current) = &mut self.current else {
            self.current = Some(process);
            return Found::Same;
        };
        if current.instance == instance {
            (current.at, current.heard) = (at, now);
            return Found::Same;
        }
        if agreed < current.heard {
            // Possibly a late message of a process that is gone.
            return Found::Same;
        }
        let returns = self.former.filter(|former| former.instance == instance);
        let process = Process { told: returns.and_then(|it| it.told), ..process };
        let there = std::mem::replace(current, process);
        self.former = Some(there);
        if returns.is_none() {
            return Found::Another { before: there.at };
        }
        let is_past =
            |at: Option<Instant>, gap| at.is_none_or(|at| now.saturating_duration_since(at) >= gap);
        let (tell, seek) = (is_past(current.told, TELL_GAP), is_past(there.told, TOLD_LATELY));
        let report = is_past(self.reported, REPORT_GAP);
        current.told = if tell { Some(now) } else { current.told };
        self.reported = if report { Some(now) } else { self.reported };
        Found::Duplicate(Duplicate { at: [current.at, there.at], tell, seek, report })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(number: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, number], 51820))
    }

    fn start() -> Instant {
        #[expect(clippy::disallowed_methods, reason = "a test needs some instant to count from")]
        Instant::now()
    }

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn a_process_that_is_back_after_another_is_a_duplicate() {
        let (mut processes, now) = (Processes::default(), start());
        assert_eq!(processes.note(1, at(1), now, now), Found::Same);
        assert_eq!(processes.note(2, at(2), now + S, now + S), Found::Another { before: at(1) });
        let duplicate = |here, there, tell, seek, report| {
            Found::Duplicate(Duplicate { at: [at(here), at(there)], tell, seek, report })
        };
        let then = now + 2 * S;
        assert_eq!(processes.note(1, at(1), then, then), duplicate(1, 2, true, true, true));
        assert_eq!(processes.note(2, at(2), then, then), duplicate(2, 1, true, false, false));
        let then = then + S / 2;
        assert_eq!(processes.note(1, at(1), then, then), duplicate(1, 2, false, false, false));
        let then = then + 2 * TOLD_LATELY;
        assert_eq!(processes.note(2, at(2), then, then), duplicate(2, 1, true, true, true));
    }

    #[test]
    fn restarts_and_moves_are_none() {
        let (mut processes, mut now) = (Processes::default(), start());
        for instance in 0..100 {
            // Each restart at another address or the same, and each process changes its address.
            for place in [1, instance as u8, 3] {
                now += S;
                let found = processes.note(instance, at(place), now, now);
                assert!(!matches!(found, Found::Duplicate(_)), "{instance} at {place}");
            }
        }
    }

    #[test]
    fn late_words_of_a_process_that_is_gone_prove_nothing() {
        let (mut processes, now) = (Processes::default(), start());
        processes.note(1, at(1), now, now);
        processes.note(2, at(1), now + 2 * S, now + 3 * S);
        // Agreed before the new process was heard, and used only now.
        assert_eq!(processes.note(1, at(1), now + 2 * S, now + 4 * S), Found::Same);
        assert_eq!(processes.note(2, at(1), now + 5 * S, now + 5 * S), Found::Same);
    }
}
