//! Calls of kubectl one after the other: reads and writes in turn, each a process of its own.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::{Call, Kubectl};
use crate::wait;

/// From the begin of one call to that of the next, when they are quick.
const INTERVAL: Duration = Duration::from_millis(400);

/// A running series of calls.
#[derive(Debug)]
pub struct Calls {
    stop: Arc<AtomicBool>,
    done: Arc<Mutex<Vec<Call>>>,
    thread: Option<JoinHandle<()>>,
}

impl Calls {
    /// Calls until it is finished; every second call creates a config map whose name begins with
    /// `name`.
    pub fn start(kubectl: &Kubectl, name: &str) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let done = Arc::new(Mutex::new(Vec::new()));
        let (stopping, doing) = (Arc::clone(&stop), Arc::clone(&done));
        let (kubectl, name) = (kubectl.clone(), name.to_owned());
        let thread = thread::spawn(move || {
            let (mut next, newest) = (wait::now(), kubectl.newest());
            for number in 0_u32.. {
                if stopping.load(Ordering::Relaxed) {
                    return;
                }
                wait::pace(&mut next, INTERVAL);
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
        Self { stop, done, thread: Some(thread) }
    }

    /// Waits until a call that began after `at` has ended.
    ///
    /// # Panics
    /// When that takes longer than `limit`.
    #[track_caller]
    pub fn pass(&self, at: Instant, limit: Duration) {
        wait::until("a call begins and ends", limit, || {
            let done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
            done.last().is_some_and(|call| call.at > at).then_some(())
        });
    }

    /// Ends the series; every call, in the order of their begin.
    ///
    /// # Panics
    /// When the series itself panicked.
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
