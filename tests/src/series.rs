//! Work that a test repeats in the background, such as the requests of a controller.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockWriteGuard};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::wait;

/// A running series; finishing or dropping it ends it.
#[derive(Debug)]
pub struct Series<T> {
    stop: Arc<AtomicBool>,
    done: Arc<Mutex<Vec<T>>>,
    /// Held by each turn from start to end.
    under_way: Arc<RwLock<()>>,
    thread: Option<JoinHandle<()>>,
}

impl<T: Send + 'static> Series<T> {
    /// Calls `each` with 0, 1, 2 and so on, one after another, at most once per `interval`, on a
    /// thread in the network of the calling one.
    pub fn start(interval: Duration, mut each: impl FnMut(u32) -> T + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let done = Arc::new(Mutex::new(Vec::new()));
        let under_way = Arc::new(RwLock::new(()));
        let (stopping, doing, lock) = (stop.clone(), done.clone(), under_way.clone());
        let thread = thread::spawn(move || {
            let mut next = wait::now();
            for number in 0.. {
                if stopping.load(Ordering::Relaxed) {
                    break;
                }
                wait::pace(&mut next, interval);
                let _open = lock.read();
                let result = each(number);
                doing.lock().unwrap_or_else(PoisonError::into_inner).push(result);
            }
        });
        Self { stop, done, under_way, thread: Some(thread) }
    }

    /// What the turns that have ended returned, in order.
    pub fn done(&self) -> MutexGuard<'_, Vec<T>> {
        self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the turn in progress; none begins while the result exists. A request that is half
    /// answered when its apiserver dies is lost, with or without meshport.
    pub fn pause(&self) -> RwLockWriteGuard<'_, ()> {
        self.under_way.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `count` more turns have ended.
    ///
    /// # Panics
    /// If that takes longer than `limit`.
    #[track_caller]
    pub fn goes_on(&self, count: usize, limit: Duration) {
        let goal = self.done().len() + count;
        wait::until("the load goes on", limit, || (self.done().len() >= goal).then_some(()));
    }

    /// Ends the series; returns the result of every turn, in order.
    ///
    /// # Panics
    /// If a turn has panicked.
    pub fn finish(mut self) -> Vec<T> {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().expect("a series is finished once");
        thread.join().expect("no turn panics");
        std::mem::take(&mut *self.done())
    }
}

impl<T> Drop for Series<T> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed; there is nothing to add while ending.
            let _ = thread.join();
        }
    }
}

/// A request of a load.
#[derive(Debug)]
pub struct Request {
    /// Duration, regardless of the result.
    pub took: Duration,
    /// Why no good answer arrived.
    pub result: io::Result<()>,
}

/// A client that sends requests repeatedly, as a controller does.
pub type Load = Series<Request>;

impl Load {
    /// Sends a request once per `interval`.
    pub fn of(interval: Duration, send: impl Fn() -> io::Result<()> + Send + 'static) -> Self {
        Self::start(interval, move |_| {
            let at = wait::now();
            let result = send();
            Request { took: at.elapsed(), result }
        })
    }
}

/// The requests without a good answer, one line each.
pub fn failures(requests: &[Request]) -> Vec<String> {
    let problem = |Request { took, result }: &Request| {
        Some(format!("{} after {took:?}", result.as_ref().err()?))
    };
    requests.iter().filter_map(problem).collect()
}
