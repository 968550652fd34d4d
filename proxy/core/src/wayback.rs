//! The way back: from an apiserver to kubelets, pods and services behind other nodes of the mesh.
//!
//! An apiserver requests a target with an HTTP CONNECT on a Unix socket of its node ([`head`]).
//! That node finds the node of the target ([`nodes`], [`join`]) and tries paths to it ([`paths`])
//! with a stream of a separate kind ([`call`]). The destination node itself decides what it dials
//! ([`judge`]) and does not rely on the first node. Every refusal is one of [`Refusal`].
//!
//! Bounds: [`head::MAX_HEAD_BYTES`] of a request, [`nodes::MAX_NODES`] nodes, [`paths::MAX_PATHS`]
//! paths for a request, and [`ANSWER_LIMIT`] for its answer.

use std::time::Duration;

pub mod call;
pub mod head;
pub mod join;
pub mod judge;
pub mod nodes;
pub mod paths;
pub mod refusal;
pub mod reply;

pub use self::refusal::Refusal;
pub use self::reply::Refused;

/// Limit from the end of a request to its answer. An apiserver has no timeout here, so `kubectl
/// logs` would hang forever.
pub const ANSWER_LIMIT: Duration = Duration::from_millis(4_500);
/// Limit from accepting a connection to the end of its request.
pub const HEAD_LIMIT: Duration = Duration::from_secs(5);
/// The default port of a kubelet.
pub const KUBELET_PORT: u16 = 10_250;
