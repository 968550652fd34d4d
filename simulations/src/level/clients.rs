//! The clients of a node: arrival, duration, requests, and behaviour when a session breaks. Like
//! clients of an apiserver, they repeat a request once.
//!
//! The wide level plays them with its events and takes the times from here. Where connections are
//! real, [`run`] is a complete client except for its [`Door`]. Bound: [`MAX_SESSIONS`] of a node at
//! once.

use std::future::pending;
use std::io;
use std::time::Duration;

use rand::{Rng, RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::measure::Measures;
use crate::scenario::{Arrival, Load};

/// Sessions of one node at once; the daemon's own limit.
pub(crate) const MAX_SESSIONS: usize = 10_000;
/// The size of a burst of arrivals.
const BURST: u32 = 10;
/// How long a client waits before it reconnects after its session broke.
const COMES_AGAIN: Duration = Duration::from_millis(50);

impl Load {
    /// The number of simultaneous arrivals.
    pub(crate) fn at_once(&self) -> u32 {
        if self.arrival == Arrival::Bursts { BURST } else { 1 }
    }

    /// Time to the next arrival; none if no client ever arrives.
    pub(crate) fn next_arrival(&self, is_first: bool, rng: &mut ChaCha8Rng) -> Option<Duration> {
        let rate = self.sessions_per_s;
        let mean = (rate > 0.0).then(|| Duration::from_secs_f64(1.0 / rate))?;
        Some(match self.arrival {
            Arrival::Regular if is_first => mean.mul_f64(rng.random::<f64>()),
            Arrival::Regular => mean,
            Arrival::Poisson | Arrival::Bursts => exponential(rng, mean * self.at_once()),
        })
    }

    /// How long a client stays.
    pub(crate) fn hold(&self, rng: &mut ChaCha8Rng) -> Duration {
        let hold = Duration::from_secs_f64(self.hold_s);
        if self.hold_fixed { hold } else { exponential(rng, hold) }
    }

    /// Time to the client's next request; none if it makes no more.
    pub(crate) fn next_request(&self, rng: &mut ChaCha8Rng) -> Option<Duration> {
        let rate = self.requests_per_s;
        (rate > 0.0).then(|| exponential(rng, Duration::from_secs_f64(1.0 / rate)))
    }
}

/// A time with this mean, exponentially distributed. It is the same on every machine, unlike the
/// logarithm (see `meshport_demo::wan::link`, whose draws are cut off).
fn exponential(rng: &mut ChaCha8Rng, mean: Duration) -> Duration {
    let mut whole = 0.0;
    loop {
        let first = rng.random::<f64>();
        let (mut last, mut odd) = (first, true);
        loop {
            let next = rng.random::<f64>();
            if next >= last {
                break;
            }
            (last, odd) = (next, !odd);
        }
        if odd {
            return mean.mul_f64(whole + first);
        }
        whole += 1.0;
    }
}

/// How the clients of one node reach an apiserver, and where their observations are recorded.
pub(crate) trait Door: Clone + Send + Sync + 'static {
    type Session: Send;

    fn load(&self) -> &Load;

    /// Time since the start of the run.
    fn now(&self) -> Duration;

    fn measure(&self, change: impl FnOnce(&mut Measures));

    fn open(&self) -> impl Future<Output = io::Result<Self::Session>> + Send;

    /// Sends a request and waits for the whole answer.
    fn ask(&self, session: &mut Self::Session) -> impl Future<Output = io::Result<()>> + Send;

    /// Resolves when an idle session has ended.
    fn over(session: &mut Self::Session) -> impl Future<Output = ()> + Send;

    fn closed(&self, session: Self::Session);

    fn answered(&self, started: Duration, answered: bool);
}

/// Starts clients continuously; they end with it.
pub(crate) async fn run<D: Door>(door: D, mut rng: ChaCha8Rng) {
    let mut sessions = JoinSet::new();
    let mut is_first = true;
    loop {
        let Some(wait) = door.load().next_arrival(std::mem::take(&mut is_first), &mut rng) else {
            return pending().await;
        };
        let arrival = sleep(wait);
        tokio::pin!(arrival);
        loop {
            tokio::select! {
                () = &mut arrival => break,
                Some(_) = sessions.join_next(), if !sessions.is_empty() => {}
            }
        }
        for _ in 0..door.load().at_once() {
            if sessions.len() < MAX_SESSIONS {
                let rng = ChaCha8Rng::seed_from_u64(rng.next_u64());
                sessions.spawn(Client { door: door.clone(), rng, session: None }.run());
            }
        }
    }
}

/// A client, from arrival to departure.
struct Client<D: Door> {
    door: D,
    rng: ChaCha8Rng,
    session: Option<D::Session>,
}

impl<D: Door> Client<D> {
    async fn run(mut self) {
        let until = self.door.load().hold(&mut self.rng);
        let until = self.door.now() + until;
        self.request().await;
        loop {
            let left = until.saturating_sub(self.door.now());
            let next = self.door.load().next_request(&mut self.rng);
            let is_last = next.is_none_or(|next| next >= left);
            self.rest(next.unwrap_or(left).min(left)).await;
            if is_last {
                break;
            }
            self.request().await;
        }
        self.close();
    }

    /// Ends the session, if any; whether there was.
    fn close(&mut self) -> bool {
        let session = self.session.take();
        let was_open = session.is_some();
        if let Some(session) = session {
            self.door.closed(session);
        }
        was_open
    }

    /// Holds the session idle.
    async fn rest(&mut self, wait: Duration) {
        let over = async {
            match &mut self.session {
                Some(session) => D::over(session).await,
                None => pending().await,
            }
        };
        let started = self.door.now();
        if timeout(wait, over).await.is_ok() {
            self.broke();
            sleep(wait.saturating_sub(self.door.now() - started)).await;
        }
    }

    fn broke(&mut self) {
        if self.close() {
            let now = self.door.now();
            self.door.measure(|measures| {
                measures.sessions.broken += 1;
                measures.second(now).broken += 1;
            });
        }
    }

    /// Sends a request, and once more if the session broke.
    async fn request(&mut self) {
        let started = self.door.now();
        let patience = Duration::from_secs_f64(self.door.load().timeout_s);
        let answered = timeout(patience, async {
            for repeated in [false, true] {
                if self.ask().await.is_ok() {
                    return true;
                }
                self.broke();
                if !repeated {
                    self.door.measure(|measures| measures.requests.retried += 1);
                    sleep(COMES_AGAIN).await;
                }
            }
            false
        });
        let answered = answered.await.unwrap_or(false);
        if !answered {
            self.broke();
        }
        self.door.answered(started, answered);
    }

    async fn ask(&mut self) -> io::Result<()> {
        let session = match self.session.take() {
            Some(session) => session,
            None => self.door.open().await?,
        };
        self.door.ask(self.session.insert(session)).await
    }
}

impl<D: Door> Drop for Client<D> {
    fn drop(&mut self) {
        // The node's process died, and its clients are forgotten with it.
        self.close();
    }
}
