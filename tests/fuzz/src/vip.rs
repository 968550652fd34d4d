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

/// Each frame and each claim, of either family.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let hardware = Hardware([2, 0, 0, 0, 0, 1]);
    let mut seeds = Vec::new();
    for address in [V4, V6] {
        let answer = Frame::Answer { hardware, ip: address };
        let cession = Frame::Cede(Hardware([2, 0, 0, 0, 0, 2]));
        let frames = [Frame::Probe, Frame::Announce, Frame::Refresh, cession, answer];
        seeds.extend(frames.into_iter().filter_map(|it| lan::encode(it, address, hardware)));
        for stance in [Stance::Standby, Stance::Holding, Stance::Releasing, Stance::Ready] {
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The number of a stance. A new one does not compile here, and needs a seed.
    fn number(stance: Stance) -> u8 {
        match stance {
            Stance::Standby => 0,
            Stance::Holding => 1,
            Stance::Releasing => 2,
            Stance::Ready => 3,
        }
    }

    #[test]
    fn each_stance_and_each_frame_has_a_seed_of_either_family() {
        let seeds = seeds();
        let own = Hardware([2, 0, 0, 0, 0, 1]);
        for address in [V4, V6] {
            let messages = seeds.iter().filter_map(|it| Message::decode(it).ok());
            let stances = messages.filter(|it| it.address == address);
            let stances: BTreeSet<u8> = stances.map(|it| number(it.claim.stance)).collect();
            assert_eq!(stances, BTreeSet::from([0, 1, 2, 3]), "{address}");
            let heard: Vec<_> = seeds.iter().filter_map(|it| lan::decode(it, address)).collect();
            let of = |wanted: Heard| heard.iter().filter(|it| **it == wanted).count();
            assert_eq!(of(Heard::Probed(own)), 1, "{address}");
            assert_eq!(of(Heard::Claimed(own)), 3, "{address}: announced, refreshed, answered");
            let other = Hardware([2, 0, 0, 0, 0, 2]);
            assert_eq!(of(Heard::Claimed(other)), 1, "{address}: ceded");
        }
    }
}
