//! The clients of one node in real time: each holds a watch and asks on connections of their own
//! beside it, over TLS and HTTP.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use meshport_demo::client::{Client, Watching};

use crate::Error;
use crate::level::clients::Door;
use crate::measure::Measures;
use crate::scenario::Load;

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
}

impl Door for Place {
    type Session = Watching;

    fn load(&self) -> &Load {
        &self.load
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn measure(&self, change: impl FnOnce(&mut Measures)) {
        // Every change leaves the numbers consistent.
        change(&mut self.measures.lock().unwrap_or_else(PoisonError::into_inner));
    }

    async fn open(&self) -> io::Result<Watching> {
        self.measure(|measures| measures.sessions.begun += 1);
        let watching = self.client.watch().await.map_err(io::Error::other)?;
        self.measure(|measures| measures.sessions.opened += 1);
        Ok(watching)
    }

    async fn ask(&self, _: &mut Watching) -> io::Result<()> {
        self.client.whoami().await.map(drop).map_err(io::Error::other)
    }

    async fn over(watching: &mut Watching) {
        while matches!(watching.next().await, Ok(Some(_))) {}
    }

    fn closed(&self, _: Watching) {
        self.measure(|measures| measures.sessions.closed += 1);
    }

    fn answered(&self, started: Duration, answered: bool) {
        let now = self.now();
        self.measure(|measures| {
            measures.request(started, now, answered);
        });
    }
}
