//! Networks of IP addresses, as in `192.0.2.0/24`.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use crate::text::{TextError, text_form};

/// The bits of an IPv6 address before the IPv4 address that is mapped into it (RFC 4291, 2.5.5.2).
const MAPPED_BITS: u8 = 96;

/// A network, or a single address. An IPv4-mapped IPv6 address counts as the IPv4 address, here and
/// in comparisons.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cidr {
    /// The first address; all bits behind the prefix are zero.
    network: IpAddr,
    /// The length of the prefix, at most 32 or 128.
    bits: u8,
}

impl Cidr {
    /// The accepted form of a list's entries, to follow "expected".
    pub const FORM: &str =
        "a network or an address, such as \"192.0.2.0/24\", \"2001:db8::/32\" or \"192.0.2.7\"";

    /// The network of an address with a prefix of this many bits; `None` if the prefix is longer
    /// than the address, or bits beyond it are set.
    pub fn new(network: IpAddr, bits: u8) -> Option<Self> {
        (first(network, bits) == Some(network)).then_some(Self { network, bits })
    }

    /// Whether both have an address in common.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.contains(other.network) || other.contains(self.network)
    }

    /// Whether `ip` is in it.
    pub fn contains(&self, ip: IpAddr) -> bool {
        first(ip.to_canonical(), self.bits) == Some(self.network)
            && ip.to_canonical().is_ipv4() == self.network.is_ipv4()
    }

    /// Whether it is all of IPv4 or all of IPv6.
    pub fn is_everything(&self) -> bool {
        self.bits == 0
    }
}

/// The first address of the network of this many bits that contains `ip`; `None` for too many bits.
fn first(ip: IpAddr, bits: u8) -> Option<IpAddr> {
    match ip {
        IpAddr::V4(ip) => {
            let host = 32_u32.checked_sub(bits.into())?;
            let mask = u32::MAX.checked_shl(host).unwrap_or(0);
            Some(IpAddr::V4((ip.to_bits() & mask).into()))
        }
        IpAddr::V6(ip) => {
            let host = 128_u32.checked_sub(bits.into())?;
            let mask = u128::MAX.checked_shl(host).unwrap_or(0);
            Some(IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() & mask)))
        }
    }
}

impl FromStr for Cidr {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, TextError> {
        let wrong = || TextError::form("a network", text, Self::FORM);
        let (ip, bits) = match text.split_once('/') {
            Some((ip, bits)) => (ip, Some(bits)),
            None => (text, None),
        };
        let ip: IpAddr = ip.parse().map_err(|_| wrong())?;
        // A sign or a leading zero would give the same network a second text form.
        let is_number = |bits: &str| {
            bits.bytes().all(|b| b.is_ascii_digit()) && (bits == "0" || !bits.starts_with('0'))
        };
        let bits: u8 = match bits {
            Some(bits) if is_number(bits) => bits.parse().map_err(|_| wrong())?,
            Some(_) => return Err(wrong()),
            None if ip.is_ipv4() => 32,
            None => 128,
        };
        let (network, bits) = match ip.to_canonical() {
            // Such a network would contain all IPv4 addresses and more.
            mapped if mapped != ip => (mapped, bits.checked_sub(MAPPED_BITS).ok_or_else(wrong)?),
            ip => (ip, bits),
        };
        // With bits set beyond the prefix, either the address or the prefix is a mistake.
        Self::new(network, bits).ok_or_else(wrong)
    }
}

text_form!(Cidr);

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.bits)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cidr(text: &str) -> Cidr {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn networks_overlap_when_one_holds_the_other() {
        assert!(cidr("10.0.0.0/8").overlaps(&cidr("10.244.0.0/16")));
        assert!(cidr("10.244.0.0/16").overlaps(&cidr("10.0.0.0/8")));
        assert!(!cidr("10.96.0.0/12").overlaps(&cidr("10.244.0.0/16")));
        assert!(!cidr("0.0.0.0/0").overlaps(&cidr("::/0")));
    }

    #[test]
    fn networks_are_read_and_written() {
        for (text, written) in [
            ("192.0.2.0/24", "192.0.2.0/24"),
            ("192.0.2.7", "192.0.2.7/32"),
            ("2001:db8::/32", "2001:db8::/32"),
            ("::1", "::1/128"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("::/0", "::/0"),
            ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
            ("::ffff:0.0.0.0/96", "0.0.0.0/0"),
        ] {
            assert_eq!(cidr(text).to_string(), written);
            assert_eq!(cidr(written), cidr(text));
        }
        for text in [
            "",
            "/",
            "10.0.0.0/",
            "10.0.0.0/33",
            "10.0.0.1/8",
            "10.0.0.0/-1",
            "10.0.0.0/+8",
            "10.0.0.0/08",
            "::/129",
            "2001:db8::1/32",
            "10.0.0.0/8/8",
            "a/8",
            "::ffff:10.0.0.0/90",
            "10.0/8",
            "10.0.0.0/999",
        ] {
            assert!(text.parse::<Cidr>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_mapped_address_is_its_ipv4_address_and_families_stay_apart() {
        assert!(cidr("10.0.0.0/8").contains(ip("::ffff:10.1.2.3")));
        assert!(!cidr("10.0.0.0/8").contains(ip("::ffff:11.1.2.3")));
        assert!(!cidr("::/0").contains(ip("::ffff:10.1.2.3")));
        assert!(!cidr("::/0").contains(ip("10.1.2.3")));
        assert!(!cidr("0.0.0.0/0").contains(ip("::")));
        assert!(cidr("0.0.0.0/0").contains(ip("255.255.255.255")));
        assert!(cidr("::/0").contains(ip("2001:db8::1")));
    }

    proptest! {
        #[test]
        fn membership_is_that_of_the_first_bits(
            network in any::<u128>(),
            other in any::<u128>(),
            bits in 0_u8..=128,
            flip in 0_u32..128,
        ) {
            let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
            let at = Ipv6Addr::from_bits(network & mask);
            prop_assume!(at.to_ipv4_mapped().is_none());
            let cidr = cidr(&format!("{at}/{bits}"));
            let near = (network & mask) | (other & !mask);
            for candidate in [network, other, near, network ^ (1 << flip)] {
                let ip = Ipv6Addr::from_bits(candidate);
                let expected = candidate & mask == network & mask && ip.to_ipv4_mapped().is_none();
                prop_assert_eq!(cidr.contains(ip.into()), expected);
            }
        }

        #[test]
        fn any_text_is_a_network_or_an_error(text in "\\PC{0,24}") {
            if let Ok(cidr) = text.parse::<Cidr>() {
                prop_assert_eq!(cidr.to_string().parse(), Ok(cidr));
            }
        }
    }
}
