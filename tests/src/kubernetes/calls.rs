//! Calls of kubectl, each a separate process: reads and writes in sequence, or at a fixed rate
//! regardless of how long each takes.

use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::{Call, Kubectl};
use crate::series::Series;
use crate::wait;

/// Interval between the starts of calls, if they are quick.
const INTERVAL: Duration = Duration::from_millis(400);

/// Calls that start at a fixed rate, whether or not earlier ones have ended: the number of failures
/// shows how long an origin let them hang.
#[derive(Debug)]
pub struct Volley {
    threads: Vec<JoinHandle<Call>>,
}

impl Volley {
    /// Starts `count` calls, one every `interval`; returns when the last one has started. Every
    /// `write`th call creates a config map whose name begins with `name`, the others read.
    pub fn fire(kubectl: &Kubectl, name: &str, count: u32, interval: Duration, write: u32) -> Self {
        let mut next = wait::now();
        let begin = |number: u32| {
            wait::pace(&mut next, interval);
            let (kubectl, object) = (kubectl.clone(), format!("{name}-{number}"));
            thread::spawn(move || match number % write {
                0 => kubectl.call(&["create", "configmap", &object, "--request-timeout=5s"]),
                _ => kubectl.call(&["get", "ns", "-o", "name", "--request-timeout=5s"]),
            })
        };
        Self { threads: (0..count).map(begin).collect() }
    }

    /// Waits for every call; returns them in the order of their start.
    pub fn finish(self) -> Vec<Call> {
        let ended = |thread: JoinHandle<Call>| thread.join().expect("a call does not panic");
        self.threads.into_iter().map(ended).collect()
    }
}

/// Calls in sequence.
pub type Calls = Series<Call>;

impl Calls {
    /// Calls until finished; every second call creates a config map whose name begins with `name`.
    pub fn begin(kubectl: &Kubectl, name: &str) -> Self {
        let (kubectl, newest, name) = (kubectl.clone(), kubectl.newest(), name.to_owned());
        Self::start(INTERVAL, move |number| {
            // A read and a write of one version, then of the other.
            let kubectl = if number % 4 < 2 { &kubectl } else { &newest };
            let object = format!("{name}-{number}");
            if number % 2 == 0 {
                kubectl.call(&["get", "ns", "-o", "name", "--request-timeout=5s"])
            } else {
                kubectl.call(&["create", "configmap", &object, "--request-timeout=5s"])
            }
        })
    }

    /// Waits until a call that started after `at` has ended.
    ///
    /// # Panics
    /// If that takes longer than `limit`.
    #[track_caller]
    pub fn pass(&self, at: Instant, limit: Duration) {
        wait::until("a call begins and ends", limit, || {
            self.done().last().is_some_and(|call| call.at > at).then_some(())
        });
    }
}
