//! Calls of kubectl, each a separate process: reads and writes in sequence, or at a fixed rate
//! regardless of how long each takes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockWriteGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::{Call, Kubectl};
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

/// A running series of calls.
#[derive(Debug)]
pub struct Calls {
    stop: Arc<AtomicBool>,
    done: Arc<Mutex<Vec<Call>>>,
    /// Held by each call from start to end.
    under_way: Arc<RwLock<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Calls {
    /// Calls until finished; every second call creates a config map whose name begins with `name`.
    pub fn start(kubectl: &Kubectl, name: &str) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let done = Arc::new(Mutex::new(Vec::new()));
        let under_way = Arc::new(RwLock::new(()));
        let (stopping, doing) = (Arc::clone(&stop), Arc::clone(&done));
        let lock = Arc::clone(&under_way);
        let (kubectl, name) = (kubectl.clone(), name.to_owned());
        let thread = thread::spawn(move || {
            let (mut next, newest) = (wait::now(), kubectl.newest());
            for number in 0_u32.. {
                if stopping.load(Ordering::Relaxed) {
                    return;
                }
                wait::pace(&mut next, INTERVAL);
                let _open = lock.read();
                let object = format!("{name}-{number}");
                // A read and a write of one version, then of the other.
                let kubectl = if number % 4 < 2 { &kubectl } else { &newest };
                let call = if number % 2 == 0 {
                    kubectl.call(&["get", "ns", "-o", "name", "--request-timeout=5s"])
                } else {
                    let create = ["create", "configmap", &object, "--request-timeout=5s"];
                    kubectl.call(&create)
                };
                doing.lock().unwrap_or_else(PoisonError::into_inner).push(call);
            }
        });
        Self { stop, done, under_way, thread: Some(thread) }
    }

    /// Waits for the call in progress; none begins while the result exists. A call that is half
    /// answered when its apiserver dies is lost, with or without meshport.
    pub fn pause(&self) -> RwLockWriteGuard<'_, ()> {
        self.under_way.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a call that started after `at` has ended.
    ///
    /// # Panics
    /// If that takes longer than `limit`.
    #[track_caller]
    pub fn pass(&self, at: Instant, limit: Duration) {
        wait::until("a call begins and ends", limit, || {
            let done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
            done.last().is_some_and(|call| call.at > at).then_some(())
        });
    }

    /// Ends the series; returns every call, in the order of their start.
    pub fn finish(mut self) -> Vec<Call> {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().expect("a series is finished once");
        thread.join().expect("the calls do not panic");
        std::mem::take(&mut *self.done.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed; there is nothing to add while ending.
            let _ = thread.join();
        }
    }
}
