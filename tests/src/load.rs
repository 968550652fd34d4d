//! A client that sends requests repeatedly, as a controller does, and records every answer.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::curl::{Answer, Curl};
use crate::wait;

/// A request of a load.
#[derive(Clone, Debug)]
pub struct Request {
    /// Start time.
    pub at: Instant,
    /// Duration, regardless of the result.
    pub took: Duration,
    /// The answer, or curl's error.
    pub outcome: Result<Answer, String>,
}

/// A running load; finishing or dropping it ends it.
#[derive(Debug)]
pub struct Load {
    stop: Arc<AtomicBool>,
    ended: Arc<AtomicUsize>,
    /// Held by each request from start to end.
    under_way: Arc<RwLock<()>>,
    thread: Option<JoinHandle<Vec<Request>>>,
}

impl Load {
    /// Requests `path` from `local` once per `interval`, on a new connection each time.
    pub fn start(curl: &Curl, local: SocketAddr, path: &str, interval: Duration) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let ended = Arc::new(AtomicUsize::new(0));
        let under_way = Arc::new(RwLock::new(()));
        let (stopping, counting) = (Arc::clone(&stop), Arc::clone(&ended));
        let lock = Arc::clone(&under_way);
        let (curl, path) = (curl.clone(), path.to_owned());
        let thread = thread::spawn(move || {
            let mut requests = Vec::new();
            let mut next = wait::now();
            while !stopping.load(Ordering::Relaxed) {
                wait::pace(&mut next, interval);
                let _open = lock.read();
                let at = wait::now();
                let outcome = curl.get(local, &path);
                requests.push(Request { at, took: at.elapsed(), outcome });
                counting.store(requests.len(), Ordering::Relaxed);
            }
            requests
        });
        Self { stop, ended, under_way, thread: Some(thread) }
    }

    /// Number of requests that have ended, successful or not.
    pub fn ended(&self) -> usize {
        self.ended.load(Ordering::Relaxed)
    }

    /// Waits for the request in progress; none begins while the result exists. A request that is
    /// half answered when its apiserver dies is lost, with or without meshport.
    pub fn pause(&self) -> RwLockWriteGuard<'_, ()> {
        self.under_way.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `count` more requests have ended.
    ///
    /// # Panics
    /// If that takes longer than `limit`.
    #[track_caller]
    pub fn goes_on(&self, count: usize, limit: Duration) {
        let goal = self.ended() + count;
        wait::until("the load goes on", limit, || (self.ended() >= goal).then_some(()));
    }

    /// Ends the load and returns every request, in the order of sending.
    pub fn finish(mut self) -> Vec<Request> {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().expect("a load is finished once");
        thread.join().expect("the load does not panic")
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// The requests that got no answer or not status 200, one line each.
pub fn failures(requests: &[Request]) -> Vec<String> {
    let problem = |request: &Request| match &request.outcome {
        Ok(answer) if answer.status == 200 => None,
        Ok(answer) => Some(format!("status {} after {:?}", answer.status, request.took)),
        Err(problem) => Some(format!("{problem} after {:?}", request.took)),
    };
    requests.iter().filter_map(problem).collect()
}
