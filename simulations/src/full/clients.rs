//! The clients of one node: they come at the scenario's rate, hold their sessions, ask on them, and
//! send a request again once when its session broke, as clients of an apiserver do.

use std::future::pending;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use meshport_daemon::tcp::Host;
use rand::{Rng, RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::book::Book;
use super::instance::{COMES_AGAIN, Greeted};
use super::{lock, machine};
use crate::scenario::{Arrival, Load};

/// Where clients connect on their node.
const ADDRESS: &str = "127.0.0.1:7445";
/// Sessions of one node at once; the daemon's own limit.
const MAX_SESSIONS: usize = 10_000;
/// How many come at once in bursts.
const BURST: usize = 10;

/// What the clients of one node share.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) node: usize,
    pub(super) host: Host,
    pub(super) load: Load,
    pub(super) book: Arc<Mutex<Book>>,
}

impl Place {
    /// Brings clients for ever; they end with it.
    pub(super) async fn run(self, mut rng: ChaCha8Rng) {
        let mut sessions = JoinSet::new();
        let mut is_first = true;
        loop {
            let Some(wait) = self.wait(&mut rng, std::mem::take(&mut is_first)) else {
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
            let count = if self.load.arrival == Arrival::Bursts { BURST } else { 1 };
            for _ in 0..count {
                if sessions.len() < MAX_SESSIONS {
                    let rng = ChaCha8Rng::seed_from_u64(rng.next_u64());
                    sessions.spawn(Session::new(self.clone(), rng).run());
                }
            }
        }
    }

    /// Until the next arrival; none if nobody ever comes.
    fn wait(&self, rng: &mut ChaCha8Rng, is_first: bool) -> Option<Duration> {
        let rate = self.load.sessions_per_s;
        let mean = (rate > 0.0).then(|| Duration::from_secs_f64(1.0 / rate))?;
        Some(match self.load.arrival {
            Arrival::Poisson => exponential(rng, mean),
            Arrival::Regular if is_first => mean.mul_f64(rng.random::<f64>()),
            Arrival::Regular => mean,
            Arrival::Bursts => exponential(rng, mean * 10),
        })
    }
}

/// One client, from its coming to its going.
struct Session {
    place: Place,
    rng: ChaCha8Rng,
    greeted: Option<Greeted>,
    /// The number of the session it has.
    number: u64,
}

impl Session {
    fn new(place: Place, rng: ChaCha8Rng) -> Self {
        Self { place, rng, greeted: None, number: 0 }
    }

    async fn run(mut self) {
        let hold = Duration::from_secs_f64(self.place.load.hold_s);
        let hold = match self.place.load.hold_fixed {
            true => hold,
            false => exponential(&mut self.rng, hold),
        };
        let until = machine::now() + hold;
        self.request().await;
        loop {
            let left = until.saturating_sub(machine::now());
            let rate = self.place.load.requests_per_s;
            let next = (rate > 0.0)
                .then(|| exponential(&mut self.rng, Duration::from_secs_f64(1.0 / rate)));
            let is_last = next.is_none_or(|next| next >= left);
            self.rest(next.unwrap_or(left).min(left)).await;
            if is_last {
                break;
            }
            self.request().await;
        }
        self.close();
    }

    /// Ends the session, if there is one; whether there was.
    fn close(&mut self) -> bool {
        let was_open = self.greeted.take().is_some();
        if was_open {
            let number = self.number;
            self.book(|book| book.closed(number));
        }
        was_open
    }

    /// Holds the session without a word.
    async fn rest(&mut self, wait: Duration) {
        let over = async {
            match &mut self.greeted {
                Some(greeted) => greeted.over().await,
                None => pending().await,
            }
        };
        let started = machine::now();
        if timeout(wait, over).await.is_ok() {
            self.broke();
            sleep(wait.saturating_sub(machine::now() - started)).await;
        }
    }

    fn broke(&mut self) {
        if self.close() {
            self.book(|book| {
                book.measures.sessions.broken += 1;
                book.measures.second(machine::now()).broken += 1;
            });
        }
    }

    /// Asks once, and once more if the session broke.
    async fn request(&mut self) {
        let started = machine::now();
        let patience = Duration::from_secs_f64(self.place.load.timeout_s);
        let answered = timeout(patience, async {
            for repeated in [false, true] {
                if self.ask().await.is_ok() {
                    return true;
                }
                self.broke();
                if !repeated {
                    self.book(|book| book.measures.requests.retried += 1);
                    sleep(COMES_AGAIN).await;
                }
            }
            false
        });
        let answered = answered.await.unwrap_or(false);
        if !answered {
            self.broke();
        }
        let node = self.place.node;
        self.book(|book| book.answered(node, started, answered));
    }

    async fn ask(&mut self) -> io::Result<()> {
        let node = self.place.node;
        if self.greeted.is_none() {
            self.book(|book| book.begins(node));
            let started = machine::now();
            let greeted = Greeted::connect(&self.place.host, ADDRESS).await?;
            let (origin, took) = (greeted.origin, machine::now() - started);
            self.number = lock(&self.place.book).connected(node, origin, took);
            self.greeted = Some(greeted);
        }
        let (request, response) = (self.place.load.request_bytes, self.place.load.response_bytes);
        match &mut self.greeted {
            Some(greeted) => {
                greeted.ask(request, response).await?;
                let origin = greeted.origin;
                self.book(|book| book.served(node, origin));
                Ok(())
            }
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    fn book(&self, change: impl FnOnce(&mut Book)) {
        change(&mut lock(&self.place.book));
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // The node's process died, and its clients are forgotten with it.
        self.close();
    }
}

/// A time with this mean, exponentially distributed; the same on every machine, as the logarithm is
/// not (see `meshport_demo::wan::link`, whose draws are cut off).
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
