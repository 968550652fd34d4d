//! Call-backs: datagrams by which a member shows that it can reach this node unsolicited.
//!
//! To test this, a node gives each member a token through its tunnel. The member sends it back
//! outside the tunnel, from a socket that the node has not sent to. The datagram is unencrypted and
//! contains only the token, which counts once and only while it is expected.

/// The token that a member repeats.
pub type CallToken = [u8; 16];

/// Unlike any WireGuard message, whose first byte is 1 to 4.
const MAGIC: [u8; 8] = *b"\xc1mpcall1";
/// Length of a whole datagram in bytes.
const BYTES: usize = MAGIC.len() + size_of::<CallToken>();
/// Maximum tokens expected at once: more than the members asked together.
pub const MAX_EXPECTED: usize = 16;

/// The datagram for a token.
pub fn datagram(token: &CallToken) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    bytes[..MAGIC.len()].copy_from_slice(&MAGIC);
    bytes[MAGIC.len()..].copy_from_slice(token);
    bytes
}

/// The tokens that are expected.
#[derive(Debug, Default)]
pub(crate) struct Calls(Vec<CallToken>);

impl Calls {
    /// Expects these tokens instead of the previous ones; those beyond [`MAX_EXPECTED`] are
    /// ignored.
    pub(crate) fn expect(&mut self, tokens: &[CallToken]) {
        self.0 = tokens.iter().take(MAX_EXPECTED).copied().collect();
    }

    /// The token of a datagram if it is expected; each counts once.
    pub(crate) fn take(&mut self, datagram: &[u8]) -> Option<CallToken> {
        let token: &CallToken = datagram.strip_prefix(&MAGIC)?.try_into().ok()?;
        let at = self.0.iter().position(|expected| expected == token)?;
        Some(self.0.swap_remove(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tunnel::classify;

    #[test]
    fn a_token_counts_once_and_only_while_it_is_expected() {
        let mut calls = Calls::default();
        let one = datagram(&[1; 16]);
        assert_eq!(calls.take(&one), None);
        calls.expect(&[[1; 16], [2; 16]]);
        assert_eq!(calls.take(&one[..23]), None);
        assert_eq!(calls.take(&[&one[..], &[0]].concat()), None);
        assert_eq!(calls.take(&one), Some([1; 16]));
        assert_eq!(calls.take(&one), None);
        calls.expect(&[]);
        assert_eq!(calls.take(&datagram(&[2; 16])), None);
    }

    #[test]
    fn a_call_is_no_message_of_wireguard() {
        assert!(classify(&datagram(&[4; 16])).is_none());
    }
}
