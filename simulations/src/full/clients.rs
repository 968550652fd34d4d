//! The clients of one node. They connect to its local address and speak in TLS records, as clients
//! of an apiserver do.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use meshport_daemon::tcp::Host;

use super::book::Book;
use super::instance::Greeted;
use super::{lock, machine};
use crate::level::{Judge, clients::Door};
use crate::measure::Measures;
use crate::scenario::Load;

/// The local address of each node for clients.
const ADDRESS: &str = "127.0.0.1:7445";

/// State that the clients of one node share.
#[derive(Clone)]
pub(super) struct ClientContext {
    pub(super) node: usize,
    pub(super) host: Host,
    pub(super) load: Load,
    pub(super) book: Arc<Mutex<Book>>,
}

/// A session, and its number.
pub(super) type Session = (Greeted, u64);

impl Door for ClientContext {
    type Session = Session;

    fn load(&self) -> &Load {
        &self.load
    }

    fn now(&self) -> Duration {
        machine::now()
    }

    fn measure(&self, change: impl FnOnce(&mut Measures)) {
        change(&mut lock(&self.book).scene.measures);
    }

    async fn open(&self) -> io::Result<Session> {
        lock(&self.book).looks_for_one(self.node);
        let started = machine::now();
        let greeted = Greeted::greet(self.host.connect(ADDRESS).await?).await?;
        let took = machine::now() - started;
        let number = lock(&self.book).connected(self.node, greeted.origin, took);
        Ok((greeted, number))
    }

    async fn ask(&self, (greeted, _): &mut Session) -> io::Result<()> {
        greeted.ask(self.load.request_bytes, self.load.response_bytes).await?;
        lock(&self.book).check_served(self.node, greeted.origin);
        Ok(())
    }

    async fn over((greeted, _): &mut Session) {
        greeted.over().await;
    }

    fn closed(&self, (greeted, number): Session) {
        drop(greeted);
        lock(&self.book).closed(number);
    }

    fn answered(&self, started: Duration, answered: bool) {
        lock(&self.book).answered(self.node, started, answered);
    }
}
