//! The answer of `meshport stats`, as data: one flat row for each listener, service and origin, so
//! that JSON, CSV and table have the same columns.

use meshport_config::{ServiceName, SiteName};
use serde::{Deserialize, Serialize};

/// The subject of a row of the statistics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StatsKind {
    /// An exposed listener.
    Listener,
    /// A service, over all its addresses.
    Service,
    /// An origin of a service.
    Origin,
}

impl StatsKind {
    /// The name in answers.
    pub fn word(self) -> &'static str {
        match self {
            Self::Listener => "listener",
            Self::Service => "service",
            Self::Origin => "origin",
        }
    }
}

/// Counters since the daemon's start.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StatsRow {
    /// The subject of the row: `listener`, `service` or `origin`.
    pub kind: StatsKind,
    /// The listener's or the service's name; the origin's, or its address outside the mesh;
    /// `others` for origins beyond those counted separately.
    pub name: String,
    /// The service of an origin.
    pub service: Option<ServiceName>,
    /// The site of an origin in the mesh.
    pub site: Option<SiteName>,
    /// Sessions open now.
    pub sessions_open: u64,
    /// Sessions that reached an origin.
    pub sessions_total: u64,
    /// For a listener: refused clients and those without an origin. For a service: clients without
    /// an origin or a slot. For an origin: failed attempts.
    pub errors: u64,
    /// Bytes from clients.
    pub bytes_up: u64,
    /// Bytes to clients.
    pub bytes_down: u64,
    /// The mean time until an origin answered, in milliseconds; absent without a session.
    pub connect_mean_ms: Option<f64>,
    /// The 95th percentile of the time until an origin answered, in milliseconds, rounded up to a
    /// bucket of `meshport_connect_duration_seconds`; absent without a session, or beyond the last
    /// bucket.
    pub connect_p95_ms: Option<f64>,
}

/// The names of the columns, in their order.
pub const COLUMNS: [&str; 11] = [
    "kind",
    "name",
    "service",
    "site",
    "sessions_open",
    "sessions_total",
    "errors",
    "bytes_up",
    "bytes_down",
    "connect_mean_ms",
    "connect_p95_ms",
];

impl StatsRow {
    /// The values of [`COLUMNS`]; absent ones are empty.
    pub fn cells(&self) -> [String; COLUMNS.len()] {
        let text = |value: Option<String>| value.unwrap_or_default();
        [
            self.kind.word().into(),
            self.name.clone(),
            text(self.service.as_ref().map(ToString::to_string)),
            text(self.site.as_ref().map(ToString::to_string)),
            self.sessions_open.to_string(),
            self.sessions_total.to_string(),
            self.errors.to_string(),
            self.bytes_up.to_string(),
            self.bytes_down.to_string(),
            text(self.connect_mean_ms.map(|ms| ms.to_string())),
            text(self.connect_p95_ms.map(|ms| ms.to_string())),
        ]
    }
}
