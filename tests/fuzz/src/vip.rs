//! Messages about a virtual address, on its LAN and over the mesh.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use meshport_core::vip::claim::{Claim, Stance};
use meshport_core::vip::frame::{Frame, Hardware, Heard};
use meshport_core::vip::lan;
use meshport_core::vip::message::Message;

pub(crate) const V4: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 10));
pub(crate) const V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x10));

/// Any frame is about an address of a station or about nothing, and is answered in a frame that is
/// read as an answer; a claim that is read is written and read again.
pub fn vip(data: &[u8]) {
    for address in [V4, V6] {
        let Some(heard) = lan::decode(data, address) else { continue };
        let (Heard::Claimed(hardware) | Heard::Probed(hardware) | Heard::Asked { hardware, .. }) =
            heard;
        assert!(hardware.is_station(), "{hardware}");
        if let Heard::Asked { hardware, ip } = heard {
            let answer = lan::encode(Frame::Answer { hardware, ip }, address, hardware);
            let answer = answer.expect("a station asks in its own family");
            assert_eq!(lan::decode(&answer, address), Some(Heard::Claimed(hardware)));
        }
    }
    if let Ok(message) = Message::decode(data) {
        let again = message.encode();
        assert!(again.len() <= data.len(), "written again it is longer");
        assert_eq!(Message::decode(&again), Ok(message));
    }
}

/// A frame of each family, and claims.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let hardware = Hardware([2, 0, 0, 0, 0, 1]);
    let mut seeds = Vec::new();
    for address in [V4, V6] {
        let answer = Frame::Answer { hardware, ip: address };
        let frames = [Frame::Probe, Frame::Announce, Frame::Refresh, answer];
        seeds.extend(frames.into_iter().filter_map(|it| lan::encode(it, address, hardware)));
        for stance in [Stance::Standby, Stance::Holding, Stance::Releasing] {
            let claim = Claim {
                incarnation: 300,
                sequence: 70_000,
                usable: true,
                priority: 100,
                stance,
                hardware,
                hears: true,
            };
            let group = "rack-1".parse().expect("a name");
            seeds.push(Message { group, address, claim }.encode());
        }
    }
    seeds
}
