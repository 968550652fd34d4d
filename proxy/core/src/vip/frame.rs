//! Messages about a virtual address on its LAN, in either protocol.

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// An Ethernet address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Hardware(pub [u8; 6]);

impl Hardware {
    /// All stations.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// Whether it can be a station's: neither zero nor multicast.
    pub fn is_station(self) -> bool {
        self.0 != [0; 6] && self.0[0] & 1 == 0
    }
}

impl fmt::Display for Hardware {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// A frame to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame {
    /// Asks whether the address is in use (RFC 5227, 2.1; RFC 4862, 5.4).
    Probe,
    /// Announces to all that the address is here.
    Announce,
    /// Announces it in the form of an answer, for stations that learn only from answers.
    Refresh,
    /// Announces to all that the address is now at another station.
    Cede(Hardware),
    /// Answers one station.
    Answer {
        /// Its hardware address.
        hardware: Hardware,
        /// Its address.
        ip: IpAddr,
    },
}

/// A frame about the address that was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// A station announces that it has the address.
    Claimed(Hardware),
    /// A station asks whether the address is in use, before it takes it.
    Probed(Hardware),
    /// A station wants to reach the address.
    Asked {
        /// Its hardware address.
        hardware: Hardware,
        /// Its address.
        ip: IpAddr,
    },
}
