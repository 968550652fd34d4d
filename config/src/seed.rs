//! A member to contact first, as given by an administrator.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use crate::ids::NodeName;
use crate::invite::Seed;
use crate::text::TextError;

/// A member to contact first: by name, if its endpoints are known from elsewhere, or by key and
/// endpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NamedSeed {
    /// By its name in the mesh.
    Name(NodeName),
    /// By its key and addresses.
    Whole(Seed),
}

impl From<Seed> for NamedSeed {
    fn from(seed: Seed) -> Self {
        Self::Whole(seed)
    }
}

impl fmt::Display for NamedSeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => name.fmt(f),
            Self::Whole(seed) => seed.fmt(f),
        }
    }
}

impl FromStr for NamedSeed {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, TextError> {
        // A bare address would pass as a name, but no node has such a name.
        if text.parse::<IpAddr>().is_ok() {
            return Err(TextError::form(
                "a seed",
                text,
                "a node's name or NODEID@HOST:PORT; an address needs the node id",
            ));
        }
        match text.contains('@') {
            true => text.parse().map(Self::Whole),
            false => text.parse().map(Self::Name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_a_whole_seed_and_nothing_else() {
        let name: NamedSeed = "cp-1.fra".parse().expect("a name");
        assert!(matches!(&name, NamedSeed::Name(it) if it.as_str() == "cp-1.fra"));
        let node = crate::NodeId::from_bytes([7; 32]);
        let text = format!("{node}@cp-1.example.com:51820,192.0.2.1:51820");
        let whole: NamedSeed = text.parse().expect("a seed");
        assert!(matches!(&whole, NamedSeed::Whole(it) if it.node == node));
        assert_eq!((name.to_string(), whole.to_string()), ("cp-1.fra".to_owned(), text));
        for text in ["", "192.0.2.1", "2001:db8::1", "cp-1:51820", "@cp-1:1", "Cp-1", "cp 1"] {
            assert!(text.parse::<NamedSeed>().is_err(), "{text}");
        }
    }
}
