//! Counters of one exposed listener since its start, and of each of its sessions.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use meshport_config::counters;
use meshport_config::counters::{Counter, SharedCounters};
use meshport_core::expose::gate::Refusal;

use super::durations::{CONNECT_BOUNDS, Durations};

counters! {
    /// The outcomes of the connections of one listener.
    pub(crate) enum ExposeCount {
        "meshport_exposed_connections_total" by "outcome" {
            /// Became a session of a service.
            Served = "served",
            /// Its address is not on the list `allow`.
            NotAllowed = "not-allowed",
            /// `max-sessions` of the listener are open.
            OverLimit = "over-limit",
            /// Its source has `max-sessions-per-source`.
            OverShare = "over-share",
            /// Its source connects more often than `max-rate-per-source`.
            OverRate = "over-rate",
            /// Too many sources are tracked.
            TooManySources = "too-many-sources",
            /// Its balancer sent no PROXY header, or one that cannot be read.
            BadHeader = "bad-header",
            /// Its TLS hello cannot be read.
            BadHello = "bad-hello",
            /// No rule has its server name, and there is no default.
            UnknownName = "unknown-name",
            /// Timed out after five seconds.
            Slow = "slow",
            /// It disconnected before it was admitted.
            Gone = "gone",
            /// The service has no free slot (its `max-sessions`).
            ServiceFull = "service-full",
        }
        "meshport_exposed_ended_total" by "reason" {
            /// Nothing passed for `idle-timeout`.
            Idle = "idle",
            /// A reload no longer allows it.
            Withdrawn = "withdrawn",
        }
        "meshport_exposed_bytes_total" by "direction" {
            /// From clients.
            Up = "up",
            /// To clients.
            Down = "down",
        }
    }
}

impl From<Refusal> for ExposeCount {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::NotAllowed => Self::NotAllowed,
            Refusal::OverLimit => Self::OverLimit,
            Refusal::OverShare => Self::OverShare,
            Refusal::OverRate => Self::OverRate,
            Refusal::TooManySources => Self::TooManySources,
        }
    }
}

/// Whether it counts connections that did not become a session.
pub(crate) fn is_refusal(count: ExposeCount) -> bool {
    count.row().metric == ExposeCount::Served.row().metric && count != ExposeCount::Served
}

/// The counters of one listener.
#[derive(Debug)]
pub(crate) struct ListenerTotals {
    pub(crate) counts: SharedCounters<ExposeCount, { ExposeCount::ALL.len() }>,
    /// Sessions that found no origin.
    pub(crate) failed: AtomicU64,
    /// Time from the admission of a client to the answer of an origin.
    pub(crate) connects: Durations,
}

impl Default for ListenerTotals {
    fn default() -> Self {
        let connects = Durations::new(&CONNECT_BOUNDS);
        Self { counts: SharedCounters::default(), failed: AtomicU64::new(0), connects }
    }
}

/// The bytes of one session; they count for its listener too.
#[derive(Debug)]
pub(crate) struct Tally {
    listener: Arc<ListenerTotals>,
    up: AtomicU64,
    down: AtomicU64,
}

impl Tally {
    pub(crate) fn of(listener: Arc<ListenerTotals>) -> Self {
        Self { listener, up: AtomicU64::new(0), down: AtomicU64::new(0) }
    }

    /// Adds bytes from the client, or to it.
    pub(crate) fn add(&self, bytes: u64, from_client: bool) {
        let (own, count) = match from_client {
            true => (&self.up, ExposeCount::Up),
            false => (&self.down, ExposeCount::Down),
        };
        own.fetch_add(bytes, Ordering::Relaxed);
        self.listener.counts.add(count, bytes);
    }

    /// An origin has answered after this time.
    pub(crate) fn note_connected(&self, took: Duration) {
        self.listener.connects.note(took);
    }

    /// No origin has answered.
    pub(crate) fn note_failed(&self) {
        self.listener.failed.fetch_add(1, Ordering::Relaxed);
    }

    /// Bytes from the client.
    pub(crate) fn up(&self) -> u64 {
        self.up.load(Ordering::Relaxed)
    }

    /// Bytes to the client.
    pub(crate) fn down(&self) -> u64 {
        self.down.load(Ordering::Relaxed)
    }
}
