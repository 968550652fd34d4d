//! Clients that watch the [`Beat`](super::Beat), and when each event reached them.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::Kubectl;
use super::beat::NAME;
use crate::wait;

/// The times at which events arrived.
#[derive(Clone, Debug, Default)]
pub struct Arrivals(pub(super) Vec<Instant>);

impl Arrivals {
    /// How many arrived.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// How many arrived after `at`.
    pub fn after(&self, at: Instant) -> usize {
        self.0.iter().filter(|arrived| **arrived > at).count()
    }

    /// The delay after `at` of each event that arrived within `span` of it.
    pub fn moments(&self, at: Instant, span: Duration) -> Vec<Duration> {
        let after = self.0.iter().filter_map(|arrived| arrived.checked_duration_since(at));
        after.filter(|since| *since <= span).collect()
    }

    /// The longest time without an event from `from` to `until`, both ends included.
    pub fn longest_gap(&self, from: Instant, until: Instant) -> Duration {
        let inside = self.0.iter().copied().filter(|at| *at > from && *at < until);
        let mut last = from;
        let mut longest = Duration::ZERO;
        for at in inside.chain([until]) {
            longest = longest.max(at.saturating_duration_since(last));
            last = at;
        }
        longest
    }
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    child: Mutex<Option<Child>>,
    arrivals: Mutex<Arrivals>,
    ends: Mutex<Vec<Instant>>,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `kubectl get --watch` in a loop, as a person at a terminal would run it: when it exits, it is
/// restarted. (kubectl itself exits when its watch ends.)
#[derive(Debug)]
pub struct Watch {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Watches the beat and returns once it has been seen.
    pub fn start(kubectl: &Kubectl) -> Self {
        let shared = Arc::new(Shared::default());
        let (own, kubectl) = (Arc::clone(&shared), kubectl.clone());
        let thread = thread::spawn(move || watch_on(&own, &kubectl));
        let watch = Self { shared, thread: Some(thread) };
        wait::until("kubectl sees events", super::START_LIMIT, || {
            (watch.arrivals().count() > 2).then_some(())
        });
        watch
    }

    /// The arrivals so far.
    pub fn arrivals(&self) -> Arrivals {
        lock(&self.shared.arrivals).clone()
    }

    /// The times at which kubectl ended.
    pub fn ends(&self) -> Vec<Instant> {
        lock(&self.shared.ends).clone()
    }
}

fn watch_on(shared: &Shared, kubectl: &Kubectl) {
    let template = "jsonpath={.data.n}{\"\\n\"}";
    let mut next = wait::now();
    while !shared.stop.load(Ordering::Relaxed) {
        wait::pace(&mut next, Duration::from_millis(100));
        let mut command = kubectl.command(&["get", "configmap", NAME, "--watch", "-o", template]);
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("kubectl can be run");
        let output = child.stdout.take().expect("it has an output");
        *lock(&shared.child) = Some(child);
        for _ in BufReader::new(output).lines().map_while(Result::ok) {
            lock(&shared.arrivals).0.push(wait::now());
        }
        lock(&shared.ends).push(wait::now());
        end(shared);
    }
}

fn end(shared: &Shared) {
    if let Some(mut child) = lock(&shared.child).take() {
        // Both fail only if it has already ended, which is the goal.
        let _ = child.kill();
        let _ = child.wait();
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        end(&self.shared);
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed; there is nothing to add while ending.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_reach_to_both_ends() {
        let begun = wait::now();
        let at = |millis| begun + Duration::from_millis(millis);
        let arrivals = Arrivals(vec![at(100), at(300), at(900), at(1000)]);
        assert_eq!(arrivals.longest_gap(at(200), at(1100)), Duration::from_millis(600));
        assert_eq!(arrivals.longest_gap(at(0), at(250)), Duration::from_millis(150));
        assert_eq!(arrivals.longest_gap(at(1000), at(3000)), Duration::from_secs(2));
        assert_eq!((arrivals.after(at(300)), arrivals.count()), (2, 4));
        let soon = arrivals.moments(at(200), Duration::from_millis(700));
        assert_eq!(soon, [Duration::from_millis(100), Duration::from_millis(700)]);
    }
}
