//! The clients of one node in real time: each holds a watch and asks on connections of their own
//! beside it, over TLS and HTTP. A request whose connection broke is sent once more.

use std::future::pending;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use meshport_demo::client::{Client, ClientError, Watching};
use rand::{Rng, RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::clock;
use crate::Error;
use crate::measure::{Measures, SLOW};
use crate::scenario::{Arrival, Load};

/// How many come at once in bursts.
const BURST: usize = 10;
/// How long a client waits before it comes again after its connection broke.
const COMES_AGAIN: Duration = Duration::from_millis(50);

/// What the clients of one node share.
#[derive(Debug, Clone)]
pub(super) struct Place {
    client: Client,
    load: Load,
    start: Instant,
    measures: Arc<Mutex<Measures>>,
}

impl Place {
    pub(super) fn new(
        address: SocketAddr,
        authority: &str,
        load: Load,
        (start, measures): (Instant, Arc<Mutex<Measures>>),
    ) -> Result<Self, Error> {
        let client = Client::new(address, authority);
        let client = client.map_err(|error| Error::Machine(format!("make a client: {error}")))?;
        // That of every stand-in.
        let client = client.with_certified(Ipv4Addr::LOCALHOST.into());
        let client = client.with_timeout(Duration::from_secs_f64(load.timeout_s));
        Ok(Self { client, load, start, measures })
    }

    /// Brings clients for ever; they end with it.
    pub(super) async fn run(self, mut rng: ChaCha8Rng) {
        let mut sessions = JoinSet::new();
        let mut is_first = true;
        loop {
            let rate = self.load.sessions_per_s;
            if rate <= 0.0 {
                return pending().await;
            }
            let mean = Duration::from_secs_f64(1.0 / rate);
            let wait = match self.load.arrival {
                Arrival::Regular if std::mem::take(&mut is_first) => {
                    mean.mul_f64(rng.random::<f64>())
                }
                Arrival::Regular => mean,
                Arrival::Poisson => exponential(&mut rng, mean),
                Arrival::Bursts => exponential(&mut rng, mean * 10),
            };
            sleep(wait).await;
            while sessions.try_join_next().is_some() {}
            let count = if self.load.arrival == Arrival::Bursts { BURST } else { 1 };
            for _ in 0..count {
                let rng = ChaCha8Rng::seed_from_u64(rng.next_u64());
                sessions.spawn(self.clone().session(rng));
            }
        }
    }

    async fn session(self, mut rng: ChaCha8Rng) {
        let hold = Duration::from_secs_f64(self.load.hold_s);
        let hold = if self.load.hold_fixed { hold } else { exponential(&mut rng, hold) };
        let until = clock() + hold;
        self.count(|measures, _| measures.sessions.begun += 1);
        let mut watch = self.request(|| self.client.watch()).await;
        let opened = watch.is_some();
        if opened {
            self.count(|measures, _| measures.sessions.opened += 1);
        }
        loop {
            let left = until.saturating_duration_since(clock());
            let rate = self.load.requests_per_s;
            let next = match rate > 0.0 {
                true => exponential(&mut rng, Duration::from_secs_f64(1.0 / rate)),
                false => left,
            };
            self.hold(&mut watch, next.min(left)).await;
            if next >= left {
                break;
            }
            self.request(|| self.client.whoami()).await;
        }
        if opened {
            self.count(|measures, _| measures.sessions.closed += 1);
        }
    }

    /// Holds the watch for so long; one that breaks is opened anew, as clients do.
    async fn hold(&self, watch: &mut Option<Watching>, wait: Duration) {
        let until = clock() + wait;
        loop {
            let over = async {
                match watch {
                    Some(watch) => while matches!(watch.next().await, Ok(Some(_))) {},
                    None => pending().await,
                }
            };
            if timeout(until.saturating_duration_since(clock()), over).await.is_err() {
                return;
            }
            self.count(|measures, now| {
                measures.sessions.broken += 1;
                measures.second(now).broken += 1;
            });
            *watch = self.request(|| self.client.watch()).await;
        }
    }

    /// Asks once, and once more if that failed.
    async fn request<T, A: Future<Output = Result<T, ClientError>>>(
        &self,
        ask: impl Fn() -> A,
    ) -> Option<T> {
        let started = clock();
        let mut answer = ask().await;
        if answer.is_err() {
            self.count(|measures, _| measures.requests.retried += 1);
            sleep(COMES_AGAIN).await;
            answer = ask().await;
        }
        let (answer, took) = (answer.ok(), started.elapsed());
        let (answered, slow) = (answer.is_some(), answer.is_some() && took > SLOW);
        self.count(|measures, now| {
            measures.requests.total += 1;
            measures.requests.failed += u64::from(!answered);
            measures.requests.slow += u64::from(slow);
            let second = measures.second(now);
            second.answered += u32::from(answered);
            second.failed += u32::from(!answered);
            second.slow += u32::from(slow);
            if answered {
                let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
                measures.latency.add(micros);
            }
        });
        answer
    }

    fn count(&self, change: impl FnOnce(&mut Measures, Duration)) {
        let now = clock().saturating_duration_since(self.start);
        // Every change leaves the numbers consistent.
        change(&mut self.measures.lock().unwrap_or_else(PoisonError::into_inner), now);
    }
}

/// A time with this mean. No run repeats another here, so a logarithm may round as it likes.
fn exponential(rng: &mut ChaCha8Rng, mean: Duration) -> Duration {
    mean.mul_f64(-(1.0 - rng.random::<f64>()).ln())
}
