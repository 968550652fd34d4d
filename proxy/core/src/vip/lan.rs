//! Frames about an address of either family.

use std::net::IpAddr;

use super::frame::{Frame, Hardware, Heard};
use super::{arp, nd};

/// Encodes `frame` about `address`, sent by `own`; `None` for an answer to a station of the other
/// family.
pub fn encode(frame: Frame, address: IpAddr, own: Hardware) -> Option<Vec<u8>> {
    match address {
        IpAddr::V4(address) => arp::encode(frame, address, own).map(Vec::from),
        IpAddr::V6(address) => nd::encode(frame, address, own),
    }
}

/// Parses a received frame about `address`; `None` if it is about something else or malformed.
pub fn decode(bytes: &[u8], address: IpAddr) -> Option<Heard> {
    match address {
        IpAddr::V4(address) => arp::decode(bytes, address),
        IpAddr::V6(address) => nd::decode(bytes, address),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Hardware = Hardware([2, 0, 0, 0, 0, 1]);

    #[test]
    fn both_families_are_written_and_read() {
        for address in ["192.0.2.10", "2001:db8::10"] {
            let address: IpAddr = address.parse().expect("an address");
            let read = |frame| decode(&encode(frame, address, OWN).expect("bytes"), address);
            assert_eq!(read(Frame::Probe), Some(Heard::Probed(OWN)));
            assert_eq!(read(Frame::Announce), Some(Heard::Claimed(OWN)));
            assert_eq!(read(Frame::Refresh), Some(Heard::Claimed(OWN)));
            let other = Hardware([2, 0, 0, 0, 0, 2]);
            assert_eq!(read(Frame::Cede(other)), Some(Heard::Claimed(other)));
            let answer = Frame::Answer { hardware: OWN, ip: address };
            assert_eq!(read(answer), Some(Heard::Claimed(OWN)));
        }
    }

    #[test]
    fn a_station_of_the_other_family_is_not_answered() {
        let (v4, v6) = ("192.0.2.10", "2001:db8::10");
        for (address, ip) in [(v4, v6), (v6, v4)] {
            let (address, ip) = (address.parse().expect("one"), ip.parse().expect("one"));
            assert_eq!(encode(Frame::Answer { hardware: OWN, ip }, address, OWN), None);
        }
    }
}
