//! `meshport-gateway`: Services of a Kubernetes cluster as services of the mesh.
//!
//! It runs next to a daemon whose node has the role `gateway`, watches the Services that request to
//! be offered and their endpoints through an apiserver, and passes them to the daemon ([ADR
//! 045](../../../docs/adr/045-a-program-offers-services.md)). It is a separate program so that no
//! other node includes a Kubernetes client.
//!
//! Data flows one way: `watch` holds the state of the cluster, `plan` decides, `run` sends the
//! offer to the daemon, and `report` reports the outcome to the owners of the Services.

pub mod cli;
mod endpoints;
mod plan;
mod report;
mod run;
mod watch;

/// An error that ends this program or prevents its work.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration of the Kubernetes client.
    #[error("cannot read the kubeconfig: {0}; name one with --kubeconfig")]
    Kubeconfig(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The apiserver refuses a request.
    #[error(
        "the apiserver refuses: {0}; `meshport-gateway --rbac` prints the required \
         permissions"
    )]
    Cluster(#[source] Box<kube::Error>),
    /// A watch has ended permanently.
    #[error("the watch on the cluster has ended")]
    Ended,
    /// A system call failed.
    #[error("{what}: {source}")]
    Io {
        /// The operation.
        what: &'static str,
        /// The cause.
        source: std::io::Error,
    },
    /// The daemon does not answer or refuses.
    #[error(transparent)]
    Daemon(#[from] meshport_daemon::Error),
}
