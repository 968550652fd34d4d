//! The answers of members to questions, as data.
//!
//! The same rules as in [`super::api`]: fields are only ever added.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::api::{FindingRow, NodeRef};
use super::request::verbs;

/// Asks members about this node and themselves. A command, since it makes members send packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct InquireRequest;

verbs! { InquireRequest, "/inquire", Command, InquiryReport; }

/// The result of an inquiry.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct InquiryReport {
    /// The members that were asked.
    pub members: Vec<MemberAnswer>,
    /// Whether a member reached this node unsolicited: `reached`, `not-reached`, or why that is
    /// unknown.
    pub udp_in: String,
    /// Findings from all answers together.
    pub findings: Vec<FindingRow>,
}

/// A member that was asked.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MemberAnswer {
    /// The member.
    #[serde(flatten)]
    pub who: NodeRef,
    /// `answered`, `older` if its version does not know the question, or `silent`.
    pub outcome: String,
    /// Why it is silent.
    pub problem: Option<String>,
    /// The version of its daemon.
    pub version: Option<String>,
    /// Time until its answer arrived, in milliseconds.
    pub rtt_ms: Option<f64>,
    /// Seconds by which its clock is ahead of this machine's; negative if it is behind.
    pub clock_ahead_s: Option<i64>,
    /// The source address of this node's packets, as the member sees it.
    pub sees_this_node_at: Option<SocketAddr>,
    /// The largest IP packet known to reach it from here, in bytes.
    pub mtu_to_bytes: Option<u16>,
    /// The largest IP packet known to reach this node from it, in bytes.
    pub mtu_from_bytes: Option<u16>,
    /// The result of its call-back from a new socket: `arrived`, `lost`, or why there was none.
    pub call: Option<String>,
}
