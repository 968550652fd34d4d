//! The faults: their upstreams, times, and how long they are observed.
//!
//! Times are seconds since the fault, unless they are called a round trip. The first upstream is
//! the nearest; where there is one victim, it is the nearest, because that is where meshport's
//! sessions are.

use std::time::Duration;

use crate::score::Moments;
use crate::stage::{CLIENT, Stage};

/// An action on an upstream or its host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Act {
    /// `kill -9`.
    Kill(usize),
    /// Its process starts.
    Start(usize),
    /// SIGSTOP: the kernel still accepts connections, nothing else happens.
    Stop(usize),
    /// SIGCONT.
    Continue(usize),
    /// `/readyz` says 500; everything else is served.
    Unready(usize),
    /// `/readyz` says 200.
    Ready(usize),
    /// SIGTERM: new connections are refused, open ones are served 60 s.
    Terminate(usize),
    /// Its host vanishes: packets to and from it are lost silently.
    Vanish(usize),
    /// Its host is back.
    Return(usize),
    /// Three packets in ten are lost in each direction between its host and all others.
    Lose(usize),
    /// They lose no more packets.
    LoseNothing(usize),
    /// The client's host and its host cannot reach each other; both reach all others.
    Part(usize),
    /// They can reach each other again.
    Join(usize),
}

/// Share of packets that [`Act::Lose`] loses in each direction.
const LOSS: f64 = 0.3;

impl Act {
    /// Does it.
    pub(crate) fn perform(self, stage: &mut Stage) {
        let host = |upstream: usize| 1 + upstream;
        match self {
            Self::Kill(upstream) => stage.kill(upstream),
            Self::Start(upstream) => stage.start(upstream),
            Self::Stop(upstream) => stage.signal(upstream, "STOP"),
            Self::Continue(upstream) => stage.signal(upstream, "CONT"),
            Self::Unready(upstream) => stage.signal(upstream, "USR1"),
            Self::Ready(upstream) => stage.signal(upstream, "USR2"),
            Self::Terminate(upstream) => stage.signal(upstream, "TERM"),
            Self::Vanish(upstream) => stage.network.isolate(host(upstream), true),
            Self::Return(upstream) => stage.network.isolate(host(upstream), false),
            Self::Lose(upstream) => stage.network.lose(host(upstream), LOSS),
            Self::LoseNothing(upstream) => stage.network.lose(host(upstream), 0.0),
            Self::Part(upstream) => stage.network.cut(CLIENT, host(upstream), true),
            Self::Join(upstream) => stage.network.cut(CLIENT, host(upstream), false),
        }
    }
}

/// An entry of the schedule.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// Upstreams whose held connections the fault concerns.
    pub(crate) victims: &'static [usize],
    /// Actions in order; the first is at 0.
    pub(crate) steps: Vec<(u32, Act)>,
    /// Time in `steps` at which the victim is healthy again.
    pub(crate) heal: Option<u32>,
    /// End of the run.
    pub(crate) end: u32,
    /// Whether a relay runs; only meshport can use one.
    pub(crate) relay: bool,
    /// How long it may last from its first effect until it is healed: for longer it is another
    /// fault, with other bars. A process that starts on a busy machine may take seconds.
    pub(crate) longest: Option<Duration>,
}

impl Fault {
    /// Whether a run was of this fault, and not of one that lasted longer.
    pub(crate) fn is_of(&self, moments: &Moments) -> bool {
        let lasted = moments.healed.map(|healed| healed.saturating_sub(moments.fault));
        self.longest.is_none_or(|longest| lasted.is_some_and(|lasted| lasted <= longest))
    }
}

const NEAR: &[usize] = &[0];
const EVERY: [usize; 3] = [0, 1, 2];

/// Interval between the turns of a flapping process, in seconds.
const FLAP: u32 = 3;
/// Turns of a flapping process: a minute of them; the last one is a start.
pub(crate) const FLAPS: u32 = 20;

/// How long a connection waits for an origin when there is none, minus the time to dial it.
const SHORT: Duration = Duration::from_millis(2_600);

/// The schedule.
pub(crate) fn all() -> Vec<Fault> {
    [to_one(), to_all(), to_links()].concat()
}

/// An action on the nearest upstream that is later undone.
fn done(name: &'static str, about: &'static str, acts: [Act; 2], heal: u32, end: u32) -> Fault {
    let steps = vec![(0, acts[0]), (heal, acts[1])];
    Fault { name, about, victims: NEAR, steps, heal: Some(heal), end, relay: false, longest: None }
}

/// Faults of one upstream.
fn to_one() -> Vec<Fault> {
    let killed = "the nearest apiserver's process is killed, and starts again after 15 s";
    let vanished = "the nearest host vanishes without a word, and is back after 45 s";
    let stopped = "the nearest apiserver hangs while its port accepts, and goes on after 45 s";
    let drained = "the nearest one's /readyz fails while it serves, for 25 s";
    let flap = |turn: u32| {
        (turn * FLAP, if turn.is_multiple_of(2) { Act::Kill(0) } else { Act::Start(0) })
    };
    vec![
        done("kill", killed, [Act::Kill(0), Act::Start(0)], 15, 60),
        done("blackhole", vanished, [Act::Vanish(0), Act::Return(0)], 45, 80),
        done("hang", stopped, [Act::Stop(0), Act::Continue(0)], 45, 75),
        done("unready", drained, [Act::Unready(0), Act::Ready(0)], 25, 55),
        Fault {
            name: "terminate",
            about: "the nearest one terminates gracefully: refuses at once, serves open ones 60 s",
            victims: NEAR,
            steps: vec![(0, Act::Terminate(0))],
            heal: None,
            // Before the server itself ends them.
            end: 57,
            relay: false,
            longest: None,
        },
        Fault {
            name: "flapping",
            about: "the nearest process is killed and started in turn every 3 s for 60 s",
            victims: NEAR,
            steps: (0..FLAPS).map(flap).collect(),
            heal: Some((FLAPS - 1) * FLAP),
            end: 80,
            relay: false,
            longest: None,
        },
    ]
}

/// Faults of all upstreams at once.
fn to_all() -> Vec<Fault> {
    let every = |act: fn(usize) -> Act, at: u32| EVERY.map(|upstream| (at, act(upstream)));
    let fault = |name, about, steps: [Vec<(u32, Act)>; 2], heal, end| Fault {
        name,
        about,
        victims: &EVERY,
        steps: steps.concat(),
        heal: Some(heal),
        end,
        relay: false,
        longest: None,
    };
    let down = || every(Act::Kill, 0).to_vec();
    let back = |at| vec![(at, Act::Start(1))];
    let unready = [every(Act::Unready, 0).to_vec(), every(Act::Ready, 20).to_vec()];
    let together = "/readyz fails on all three at once while they serve, for 20 s";
    let short = "all three processes are killed; the second nearest starts after 2 s";
    let long = "all three processes are killed; the second nearest starts after 60 s";
    vec![
        fault("all-unready", together, unready, 20, 30),
        Fault { longest: Some(SHORT), ..fault("all-down-2s", short, [down(), back(2)], 2, 17) },
        fault("all-down-60s", long, [down(), back(60)], 60, 75),
    ]
}

/// Faults of the network.
fn to_links() -> Vec<Fault> {
    let lossy = "30 % of packets are lost each way to and from the nearest host, for 40 s";
    vec![
        done("loss", lossy, [Act::Lose(0), Act::LoseNothing(0)], 40, 80),
        Fault {
            name: "partition",
            about: "client and nearest host cannot reach each other, the others are down; a member \
                    that may relay reaches both; for 20 s",
            victims: &EVERY,
            steps: vec![
                (0, Act::Kill(1)),
                (0, Act::Kill(2)),
                (0, Act::Part(0)),
                (20, Act::Join(0)),
            ],
            heal: Some(20),
            end: 50,
            relay: true,
            longest: None,
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_are_in_order_and_within_the_run() {
        for fault in all() {
            let times: Vec<u32> = fault.steps.iter().map(|(at, _)| *at).collect();
            assert!(times.is_sorted() && times[0] == 0, "{}", fault.name);
            assert!(times.iter().all(|at| *at < fault.end), "{}", fault.name);
            assert!(fault.heal.is_none_or(|heal| times.contains(&heal)), "{}", fault.name);
        }
    }

    #[test]
    fn a_flapping_upstream_is_up_in_the_end() {
        let flapping = all().into_iter().find(|fault| fault.name == "flapping");
        let flapping = flapping.expect("it is in the schedule");
        assert_eq!(flapping.steps.last().map(|(_, act)| *act), Some(Act::Start(0)));
    }
}
