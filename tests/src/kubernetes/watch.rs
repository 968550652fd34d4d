//! Clients that watch the [`Beat`](super::Beat), and when each event reached them.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::beat::NAME;
use super::{Cluster, Kubectl};
use crate::repository::root;
use crate::wait;

/// The times at which events came.
#[derive(Clone, Debug, Default)]
pub struct Arrivals(Vec<Instant>);

impl Arrivals {
    /// How many came.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// How many came after `at`.
    pub fn after(&self, at: Instant) -> usize {
        self.0.iter().filter(|arrived| **arrived > at).count()
    }

    /// How long after `at` each came that came within `span` of it.
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `kubectl get --watch` in a loop, as a person at a terminal would have it: when it ends, it is
/// started again. (kubectl itself ends when its watch does.)
#[derive(Debug)]
pub struct Watch {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Watches the beat and returns once it has been seen.
    ///
    /// # Panics
    /// When it is not seen in time.
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

    /// What has arrived so far.
    pub fn arrivals(&self) -> Arrivals {
        lock(&self.shared.arrivals).clone()
    }

    /// When kubectl ended, each time.
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
        // Both fail only when it is gone already, which is what is wanted.
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

/// Watches by the Python client `kubernetes`: HTTP/1.1, a connection for each, no timeout.
#[derive(Debug)]
pub struct Watchers {
    child: Child,
    arrivals: Arc<Mutex<Vec<Arrivals>>>,
}

impl Watchers {
    /// Starts `count` watches in one process on a host, and returns once each has seen the beat;
    /// `None` when the client is not to be had (`MESHPORT_KUBERNETES_PYTHON` is not set).
    ///
    /// # Panics
    /// When it cannot be started or does not see the beat.
    pub fn start(cluster: &Cluster, at: usize, server: &str, count: usize) -> Option<Self> {
        let python = std::env::var_os("MESHPORT_KUBERNETES_PYTHON")?;
        let mut command: Command = cluster.host(at).command(&python.to_string_lossy());
        command.arg(root().join("tests/kubernetes/watch.py"));
        command.args([server, &cluster.pki.text("ca.crt"), super::ADMIN_TOKEN, NAME]);
        command.arg(count.to_string()).env("no_proxy", "*");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("python can be run");
        let output = child.stdout.take().expect("it has an output");
        let arrivals = Arc::new(Mutex::new(vec![Arrivals::default(); count]));
        let noting = Arc::clone(&arrivals);
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let Some(which) = line.split(' ').next().and_then(|it| it.parse::<usize>().ok())
                else {
                    continue;
                };
                if let Some(own) = lock(&noting).get_mut(which) {
                    own.0.push(wait::now());
                }
            }
        });
        let watchers = Self { child, arrivals };
        wait::until("every Python watch sees events", super::START_LIMIT, || {
            watchers.arrivals().iter().all(|own| own.count() > 1).then_some(())
        });
        Some(watchers)
    }

    /// What has reached each watch so far.
    pub fn arrivals(&self) -> Vec<Arrivals> {
        lock(&self.arrivals).clone()
    }
}

impl Drop for Watchers {
    fn drop(&mut self) {
        // Both fail only when it is gone already, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
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
