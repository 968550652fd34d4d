//! Why the way back refuses a target.

use std::fmt;

use meshport_config::counters;
use meshport_config::counters::Counter;

counters! {
    /// Why a request or a stream is refused. The order is not the wire format: [`Refusal::code`]
    /// is.
    pub enum Refusal {
        "meshport_wayback_refused_total" by "reason" {
            /// The user of the process that opened the socket is not in `egress.uids`.
            User = "user",
            /// `egress.max-streams` connections of the socket are open.
            Crowded = "crowded",
            /// The request is not an HTTP request.
            Malformed = "malformed",
            /// The request is longer than 8 KiB.
            TooLong = "too-long",
            /// The request was not complete after 5 s.
            Late = "late",
            /// A method other than CONNECT.
            Method = "method",
            /// A target that refers to this machine or to no host: loopback, link-local, multicast.
            Loopback = "loopback",
            /// No node, pod or service has the address or name.
            Unknown = "unknown",
            /// Two nodes claim the address or name.
            Ambiguous = "ambiguous",
            /// The node is in the cluster but not in the mesh.
            NoMember = "no-member",
            /// No present member has the role egress for services.
            NoEgress = "no-egress",
            /// Not the port of the kubelet.
            Port = "port",
            /// The node is down.
            Down = "down",
            /// No path to the node.
            NoPath = "no-path",
            /// The node did not answer in time.
            Silent = "silent",
            /// The node runs an earlier version, which has no way back.
            Older = "older",
            /// The caller does not have the role origin:kube-apiserver, or its credential has
            /// expired.
            NotOrigin = "not-origin",
            /// A relay without that role, or one that presents an invalid credential.
            NotRelay = "not-relay",
            /// Addressed to another node than the one that received it.
            OtherNode = "other-node",
            /// The node has the role no-kubelet, or lacks the role node.
            NoKubelet = "no-kubelet",
            /// `kubelet.serve` of the node is false.
            Off = "off",
            /// Not a pod of the node: outside its pod networks.
            Pod = "pod",
            /// An address of the machine itself in place of a pod's or a service's.
            OwnAddress = "own-address",
            /// Not a service: outside `egress.service-cidrs` of the node.
            Service = "service",
            /// The node does not have the role egress.
            NotEgress = "not-egress",
            /// The target refused the connection.
            Connection = "connection",
            /// The target did not answer.
            Timeout = "timeout",
            /// The target cannot be dialled for another reason.
            Failed = "failed",
            /// A limit of the node is reached.
            Overloaded = "overloaded",
            /// The node is stopping.
            Leaving = "leaving",
        }
    }
}

impl Refusal {
    /// The number of variants.
    pub const COUNT: usize = <Self as Counter>::ALL.len();

    /// The byte on the wire, for refusals sent between nodes. Codes never change; new ones may be
    /// added.
    pub fn code(self) -> u8 {
        match self {
            Self::NoPath => 1,
            Self::Port => 2,
            Self::NotOrigin => 3,
            Self::NotRelay => 4,
            Self::OtherNode => 5,
            Self::NoKubelet => 6,
            Self::Off => 7,
            Self::Pod => 8,
            Self::OwnAddress => 9,
            Self::Service => 10,
            Self::NotEgress => 11,
            Self::Connection => 12,
            Self::Timeout => 13,
            Self::Overloaded => 15,
            Self::Leaving => 16,
            // Refusals by the socket go only to its own client.
            _ => 14,
        }
    }

    /// Decodes the byte; a later version's unknown codes become [`Refusal::Failed`].
    pub fn from_code(code: u8) -> Self {
        let found = <Self as Counter>::ALL.iter().find(|it| it.is_told() && it.code() == code);
        found.copied().unwrap_or(Self::Failed)
    }

    fn is_told(self) -> bool {
        self.code() != Self::Failed.code() || self == Self::Failed
    }

    /// The word used in labels and logs.
    pub fn word(self) -> &'static str {
        self.row().value
    }

    /// Whether another path to the same node may succeed, since the refusal is not the node's own.
    pub fn is_of_the_path(self) -> bool {
        matches!(self, Self::NoPath | Self::Silent | Self::NotRelay | Self::OtherNode)
    }

    /// The HTTP status.
    pub fn status(self) -> u16 {
        match self {
            Self::Malformed | Self::TooLong => 400,
            Self::User => 403,
            Self::Method => 405,
            Self::Late => 408,
            Self::Crowded
            | Self::NoEgress
            | Self::Down
            | Self::NoPath
            | Self::Silent
            | Self::Overloaded
            | Self::Leaving => 503,
            Self::Timeout => 504,
            _ => 502,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nodes_tell_each_other_round_trips_and_the_rest_is_one() {
        for refusal in <Refusal as Counter>::ALL.iter().copied() {
            let read = Refusal::from_code(refusal.code());
            assert_eq!(read, if refusal.is_told() { refusal } else { Refusal::Failed });
        }
        assert_eq!(Refusal::from_code(200), Refusal::Failed);
        let mut codes: Vec<u8> = <Refusal as Counter>::ALL
            .iter()
            .filter(|it| it.is_told())
            .map(|it| it.code())
            .collect();
        codes.sort_unstable();
        let all = codes.len();
        codes.dedup();
        assert_eq!(codes.len(), all, "no code twice");
    }
}
