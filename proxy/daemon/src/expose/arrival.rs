//! One connection of an exposed listener, from accept to its end.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use meshport_config::ServiceName;
use meshport_core::expose::gate::Arrival;
use meshport_core::expose::header::{self, Ends, Reading};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::hello::{Hello, HelloReader, UNRECOGNIZED_NAME};
use super::listener::{Config, Exposed, Permit};
use super::{MAX_SAID, OPENING_LIMIT};
use crate::audit::{ExposedClient, ExposedSession};
use crate::clock;
use crate::sessions::arrived::Arrived;
use crate::sessions::client::ClientId;
use crate::sessions::exposed::{ExposeCount, Tally};
use crate::sessions::ingress::Ingress;
use crate::sessions::quota::Slot;
use crate::sessions::splice;
use crate::tcp::Tcp;

/// How long a refused client may take to read the alert.
const LAST_WORD: Duration = Duration::from_secs(1);
/// Checks for traffic per `idle-timeout`.
const LOOKS: u32 = 8;

/// Why a connection does not become a session.
#[derive(Debug)]
struct Refused {
    count: ExposeCount,
    /// The TLS alert for the client; without it the connection is reset.
    alert: Vec<u8>,
}

impl From<ExposeCount> for Refused {
    fn from(count: ExposeCount) -> Self {
        Self { count, alert: Vec::new() }
    }
}

/// A connection that holds a slot.
struct Guest {
    tcp: Tcp,
    permit: Permit,
    /// The ends of the connection itself.
    socket: Ends,
    /// The client's ends; behind a load balancer they differ from the connection's.
    client: Ends,
    is_balanced: bool,
}

/// The destination of an admitted connection.
struct Admitted {
    config: Arc<Config>,
    ingress: Arc<Ingress>,
    /// The session's slot in the service.
    slot: Slot,
    /// The bytes read from the client.
    said: Bytes,
}

impl Exposed {
    /// Checks a connection that was just accepted, and serves it if it gets a slot.
    pub(super) fn meet(self: &Arc<Self>, tcp: Tcp) {
        // Without an address the connection cannot be checked.
        let Some((peer, local)) = tcp.ends() else {
            tcp.reset_on_drop();
            return self.totals.counts.bump(ExposeCount::Gone);
        };
        let arrival = match self.gate().arrive(peer.ip(), clock::now()) {
            Ok(arrival) => arrival,
            Err(refusal) => {
                tcp.reset_on_drop();
                return self.refuse(refusal.into(), peer, None);
            }
        };
        let (source, is_balanced) = match arrival {
            Arrival::Client(source) => (Some(source), false),
            Arrival::Balancer => (None, true),
        };
        let socket = Ends { client: peer, local };
        let permit = Permit::new(self, source, local.ip());
        let guest = Guest { tcp, permit, socket, client: socket, is_balanced };
        let exposed = self.clone();
        self.spawn(async move { exposed.serve(guest).await });
    }

    /// Counts and logs a connection that does not become a session.
    fn refuse(&self, count: ExposeCount, client: SocketAddr, balancer: Option<IpAddr>) {
        self.totals.counts.bump(count);
        let client = ExposedClient { listener: &self.name, client, balancer };
        self.audit.refused_client(&self.budgets, &client, count);
    }

    async fn serve(&self, mut guest: Guest) {
        guest.tcp.set_nodelay();
        let admitted = timeout(OPENING_LIMIT, self.admit(&mut guest)).await;
        let admitted = admitted.unwrap_or_else(|_late| Err(ExposeCount::Slow.into()));
        let balancer = guest.is_balanced.then(|| guest.socket.client.ip());
        match admitted {
            Ok(admitted) => self.carry(guest, balancer, admitted).await,
            Err(Refused { count, alert }) => {
                self.refuse(count, guest.client.client, balancer);
                dismiss(&guest.tcp, alert).await;
            }
        }
    }

    /// Reads the client's address and the service that the connection is for.
    async fn admit(&self, guest: &mut Guest) -> Result<Admitted, Refused> {
        let mut said = BytesMut::new();
        if guest.is_balanced {
            if let Some(ends) = read_header(&guest.tcp, &mut said).await? {
                guest.client = ends;
            }
            let judged = guest.permit.identify(guest.client.client.ip());
            judged.map_err(|refusal| Refused::from(ExposeCount::from(refusal)))?;
        }
        let config = self.config();
        let service = match config.names.only() {
            Some(service) => service.clone(),
            None => chosen(&config, &guest.tcp, &mut said).await?,
        };
        let ingress = config.ingresses.get(&service).cloned();
        let ingress = ingress.ok_or(ExposeCount::UnknownName)?;
        let source = guest.permit.source.ok_or(ExposeCount::NotAllowed)?;
        let slot = ingress.slot_of(ClientId::Address(source.address()));
        let slot = slot.map_err(|_| ExposeCount::ServiceFull)?;
        Ok(Admitted { config, ingress, slot, said: said.freeze() })
    }

    /// Serves a session to its end.
    async fn carry(&self, guest: Guest, balancer: Option<IpAddr>, admitted: Admitted) {
        let Guest { tcp, permit, client, .. } = guest;
        let source = permit.source.map(|source| ClientId::Address(source.address()));
        let Admitted { config, ingress, slot, said } = admitted;
        self.totals.counts.bump(ExposeCount::Served);
        ingress.note_accepted();
        let tally = Arc::new(Tally::of(self.totals.clone()));
        let who = ExposedClient { listener: &self.name, client: client.client, balancer };
        let audited =
            ExposedSession::begin(&self.audit, &self.budgets, &who, &ingress.service, &tally);
        let arrived = Arrived {
            paid: ingress.pacing.free(),
            preface: header::write(config.header, client).into(),
            said,
            client: source,
            tally: Some(tally.clone()),
        };
        tokio::select! {
            () = ingress.serve(tcp, arrived) => {}
            () = idle(&tally, self.config.subscribe()) => {
                self.totals.counts.bump(ExposeCount::Idle);
            }
            () = self.withdrawn(client.client.ip(), balancer, &ingress.service) => {
                self.totals.counts.bump(ExposeCount::Withdrawn);
            }
        }
        drop((audited, slot, permit));
    }

    /// Resolves once the settings no longer allow a session.
    async fn withdrawn(&self, client: IpAddr, balancer: Option<IpAddr>, service: &ServiceName) {
        let is_over = |config: &Arc<Config>| {
            !config.rules.allows(client)
                || balancer.is_some_and(|balancer| !config.rules.believes(balancer))
                || !config.ingresses.contains_key(service)
        };
        if self.config.subscribe().wait_for(is_over).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Reads the header of a load balancer; the bytes after it stay in `said`.
async fn read_header(tcp: &Tcp, said: &mut BytesMut) -> Result<Option<Ends>, Refused> {
    loop {
        match header::read(said) {
            Reading::Whole(header) => {
                let _header = said.split_to(header.bytes);
                return Ok(header.ends);
            }
            Reading::Wrong(_) => return Err(ExposeCount::BadHeader.into()),
            Reading::Partial => read_more(tcp, said).await?,
        }
    }
}

/// Selects the service by the client's ClientHello.
async fn chosen(config: &Config, tcp: &Tcp, said: &mut BytesMut) -> Result<ServiceName, Refused> {
    let mut reader = HelloReader::default();
    let mut fed = 0;
    loop {
        let hello = reader.feed(said.get(fed..).unwrap_or_default());
        fed = said.len();
        let (name, alert) = match hello {
            Hello::Partial if said.len() < MAX_SAID => {
                read_more(tcp, said).await?;
                continue;
            }
            Hello::Partial => return Err(ExposeCount::BadHello.into()),
            Hello::Unreadable(alert) => {
                return Err(Refused { count: ExposeCount::BadHello, alert });
            }
            Hello::Whole(name) => (name, UNRECOGNIZED_NAME.to_vec()),
            Hello::Plain => (None, Vec::new()),
        };
        let service = config.names.service(name.as_deref()).cloned();
        return service.ok_or(Refused { count: ExposeCount::UnknownName, alert });
    }
}

async fn read_more(tcp: &Tcp, said: &mut BytesMut) -> Result<(), Refused> {
    match splice::read(tcp).await {
        Ok(Some(bytes)) => {
            said.extend_from_slice(&bytes);
            Ok(())
        }
        Ok(None) | Err(_) => Err(ExposeCount::Gone.into()),
    }
}

/// Ends a refused connection: with an alert if there is one, otherwise with a reset.
async fn dismiss(tcp: &Tcp, alert: Vec<u8>) {
    if alert.is_empty() {
        return tcp.reset_on_drop();
    }
    let told = async {
        splice::write(tcp, &mut [alert.into()]).await?;
        tcp.finish();
        // Drain what it still sends: unread data would cause a reset before it has read the alert.
        while splice::read(tcp).await?.is_some() {}
        std::io::Result::Ok(())
    };
    // The client is gone or does not read.
    let _ = timeout(LAST_WORD, told).await;
}

/// Resolves once a session has been idle for the configured time, which may change.
async fn idle(tally: &Tally, mut configs: watch::Receiver<Arc<Config>>) {
    let (mut passed, mut at) = (tally.up() + tally.down(), clock::now());
    loop {
        let limit = configs.borrow_and_update().idle_timeout;
        let changed = async {
            if configs.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        let Some(limit) = limit else {
            changed.await;
            continue;
        };
        tokio::select! {
            () = changed => continue,
            () = sleep(limit / LOOKS) => {}
        }
        let now = clock::now();
        let total = tally.up() + tally.down();
        if total != passed {
            (passed, at) = (total, now);
        } else if now.saturating_duration_since(at) >= limit {
            return;
        }
    }
}
