//! Requests without parameters.

use serde::{Deserialize, Serialize};

use super::api::{PeerRow, ReloadReport, SeedRow, ServiceStatus, Status};
use super::credentials::CredentialRow;
use super::explain::Explanation;
use super::request::{Kind, Request};

macro_rules! plain {
    ($($(#[$doc:meta])* $name:ident, $path:literal, $kind:ident, $reply:ty;)*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
            pub struct $name;

            impl Request for $name {
                const PATH: &'static str = $path;
                const KIND: Kind = Kind::$kind;
                type Reply = $reply;
            }
        )*
    };
}

plain! {
    /// The whole view.
    StatusRequest, "/status", Query, Status;
    /// Per service, the order in which a new session would try the origins.
    RoutesRequest, "/routes", Query, Vec<ServiceStatus>;
    /// Why the route of each service is what it is.
    ExplainRequest, "/explain", Query, Vec<Explanation>;
    /// Every node the mesh knows.
    PeersRequest, "/peers", Query, Vec<PeerRow>;
    /// Every member that is not away, as others can begin with it; the daemon's own node first.
    SeedsRequest, "/seeds", Query, Vec<SeedRow>;
    /// All the credentials the daemon knows, its own first.
    CredentialsRequest, "/credentials", Query, Vec<CredentialRow>;
    /// Reads the daemon's configuration again, as SIGHUP does.
    ReloadRequest, "/reload", Command, ReloadReport;
}
