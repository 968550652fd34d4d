//! `meshport-gateway`: Services of a Kubernetes cluster as services of the mesh.
//!
//! It runs beside a daemon whose node has the role `gateway`, watches the Services that ask to be
//! offered and their endpoints through an apiserver, and tells the daemon what there is
//! ([ADR 045](../../../docs/adr/045-a-program-offers-services.md)). It is a program of its own so
//! that no other node carries a Kubernetes client.
//!
//! One way of the data: `watch` has the cluster, `plan` decides, the daemon is told, and
//! `report` tells the Services' owners what became of it.

pub mod cli;
mod endpoints;
mod plan;
mod report;
mod run;
mod watch;

/// What ends this program, or keeps it from its work.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration of the Kubernetes client.
    #[error("cannot read the kubeconfig: {0}; name one with --kubeconfig")]
    Kubeconfig(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The apiserver refuses.
    #[error("the apiserver refuses: {0}; `meshport-gateway --rbac` prints the rights it needs")]
    Cluster(#[source] Box<kube::Error>),
    /// A watch has ended for good.
    #[error("the watch of the cluster has ended")]
    Ended,
    /// The system refuses.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: std::io::Error,
    },
    /// The daemon.
    #[error(transparent)]
    Daemon(#[from] meshport_daemon::Error),
}
