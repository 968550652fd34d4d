//! The clients of one node in real time: each holds a watch and sends requests on other
//! connections, over TLS and HTTP.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use meshport_demo::client::{Client, Watching};

use super::lock;
use crate::level::clients::Door;
use crate::measure::Measures;
use crate::scenario::Load;

/// State that the clients of one node share.
#[derive(Debug, Clone)]
pub(super) struct ClientContext {
    pub(super) client: Client,
    pub(super) load: Load,
    pub(super) start: Instant,
    pub(super) measures: Arc<Mutex<Measures>>,
}

impl Door for ClientContext {
    type Session = Watching;

    fn load(&self) -> &Load {
        &self.load
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn measure(&self, change: impl FnOnce(&mut Measures)) {
        change(&mut lock(&self.measures));
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
