//! The cluster's apiservers, asked through the mesh with the credentials of a kubeconfig.
//!
//! - `access`: the kubeconfig
//! - `roster`: the cluster's own list of apiservers
//! - `nodes`: the Node objects, for the way back

pub(crate) mod access;
pub(crate) mod nodes;
pub(crate) mod roster;
