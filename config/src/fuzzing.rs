//! Access for the fuzz targets; only with the feature `fuzzing`.

use crate::codec::INVITE;
use crate::invite;

/// Reads choices out of arbitrary bytes: any bytes are a script, and one that ends early continues
/// with zeros.
#[derive(Debug, Clone)]
pub struct Script<'a> {
    rest: &'a [u8],
}

impl<'a> Script<'a> {
    /// A script of these bytes.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Whether nothing is left.
    pub const fn is_over(&self) -> bool {
        self.rest.is_empty()
    }

    /// The next byte, or 0.
    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.rest.split_first() else { return 0 };
        self.rest = rest;
        *first
    }

    /// The next two bytes as a big-endian number.
    pub fn short(&mut self) -> u16 {
        u16::from_be_bytes([self.byte(), self.byte()])
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: usize) -> usize {
        usize::from(self.short()) % bound
    }

    /// As many bytes as the next two bytes specify, or all remaining ones.
    pub fn bytes(&mut self) -> &'a [u8] {
        let length = usize::from(self.short()).min(self.rest.len());
        let (taken, rest) = self.rest.split_at(length);
        self.rest = rest;
        taken
    }

    /// All remaining bytes.
    pub fn all(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }
}

/// An invite line with any payload and the right checksum, since random changes of a line do not
/// get past the checksum.
pub fn invite_line(payload: &[u8]) -> String {
    let bytes = [&invite::checksum(payload)[..], payload].concat();
    std::mem::take(&mut *INVITE.encode(&bytes))
}

/// The payload of an invite's line, without its checksum; empty for another line.
pub fn invite_payload(line: &str) -> Vec<u8> {
    let bytes = INVITE.decode(line, 4096, crate::Error::InviteMiscopied);
    bytes.map_or(Vec::new(), |bytes| bytes.get(invite::CHECKSUM_BYTES..).unwrap_or(&[]).to_vec())
}
