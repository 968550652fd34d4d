//! Requests without parameters.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::api::{PeerRow, ReloadReport, SeedRow, ServiceStatus, Status, UpgradeReport};
use super::credentials::CredentialRow;
use super::explain::Explanation;
use super::request::{Kind, Request, verbs};
use super::stats::StatsRow;

/// How long a successor may take to read its settings and its state: enough for a slow disk.
pub(crate) const READY_TIME: Duration = Duration::from_secs(30);

macro_rules! plain {
    ($($(#[$doc:meta])* $name:ident, $path:literal, $kind:ident, $reply:ty;)*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
            pub struct $name;
            verbs! { $name, $path, $kind, $reply; }
        )*
    };
}

plain! {
    /// The full status.
    StatusRequest, "/status", Query, Status;
    /// Per service, the order in which a new session would try the origins.
    RoutesRequest, "/routes", Query, Vec<ServiceStatus>;
    /// The reasons for each service's route.
    ExplainRequest, "/explain", Query, Vec<Explanation>;
    /// The counters of each listener, service and origin.
    StatsRequest, "/stats", Query, Vec<StatsRow>;
    /// Every node the mesh knows.
    PeersRequest, "/peers", Query, Vec<PeerRow>;
    /// Every reachable member, as a seed for others; the daemon's own node first.
    SeedsRequest, "/seeds", Query, Vec<SeedRow>;
    /// All the credentials the daemon knows, its own first.
    CredentialsRequest, "/credentials", Query, Vec<CredentialRow>;
    /// Reloads the daemon's configuration, as SIGHUP does.
    ReloadRequest, "/reload", Command, ReloadReport;
}

/// Starts the program on disk as the daemon's successor, as SIGUSR2 does. Answered when the
/// successor is ready to take over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpgradeRequest;

impl Request for UpgradeRequest {
    const PATH: &'static str = "/upgrade";
    const KIND: Kind = Kind::Command;
    type Reply = UpgradeReport;

    fn limit(&self) -> Duration {
        READY_TIME
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers of a daemon of the previous release (tests/recorded).
    #[test]
    fn answers_of_the_release_before_are_read() {
        fn reply<R: Request>(text: &str) -> R::Reply {
            serde_json::from_str(text).unwrap_or_else(|error| panic!("{}: {error}", R::PATH))
        }
        let status = reply::<StatusRequest>(include_str!("../../../../tests/recorded/status.json"));
        assert_eq!((status.members.alive, status.services.len()), (2, 1));
        let peers = reply::<PeersRequest>(include_str!("../../../../tests/recorded/peers.json"));
        assert_eq!(peers.len(), 1);
        let all = include_str!("../../../../tests/recorded/credentials.json");
        assert_eq!(reply::<CredentialsRequest>(all).len(), 4);
        let why = include_str!("../../../../tests/recorded/explain.json");
        assert_eq!(reply::<ExplainRequest>(why)[0].candidates.len(), 1);
    }
}
