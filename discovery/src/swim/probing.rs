//! The current probe, and what its outcome reveals about this node.

use meshport_config::NodeId;

use super::messages::RawMessage;
use crate::awareness::Awareness;

/// The current probe and the local health score that it feeds.
#[derive(Debug, Default)]
pub(crate) struct Probing {
    pub(crate) awareness: Awareness,
    cycle: Option<Cycle>,
}

#[derive(Debug)]
struct Cycle {
    target: NodeId,
    number: u8,
    answered: bool,
    had_session: bool,
    /// The datagram, until it has been sent again.
    ping: Option<Vec<u8>>,
}

impl Probing {
    /// A new probe is sent; the one before has ended. Its silence counts against this node only if
    /// there was a session, because a handshake may fail for many reasons.
    pub(crate) fn begin(&mut self, target: NodeId, number: u8, had_session: bool, ping: Vec<u8>) {
        if let Some(before) = self.cycle.take()
            && before.had_session
            && !before.answered
        {
            self.awareness.miss(before.target);
        }
        self.cycle = Some(Cycle { target, number, answered: false, had_session, ping: Some(ping) });
    }

    /// Whether there is no answer yet and the probe can be repeated.
    pub(crate) fn may_wait(&self) -> bool {
        self.cycle.as_ref().is_some_and(|cycle| !cycle.answered && cycle.ping.is_some())
    }

    /// The probe to send again, once, and its receiver.
    pub(crate) fn wait_once_more(&mut self) -> Option<(NodeId, Vec<u8>)> {
        let cycle = self.cycle.as_mut()?;
        Some((cycle.target, cycle.ping.take()?))
    }

    /// A message of a peer; an answer to the probe, direct or through another node, completes it.
    /// True for the first one.
    pub(crate) fn answered(&mut self, from: NodeId, message: &RawMessage) -> bool {
        let answer = match message {
            RawMessage::Ack(number) => (from, *number),
            RawMessage::ForwardedAck(origin, number) => (NodeId::from_bytes(origin.0), *number),
            _ => return false,
        };
        if let Some(cycle) = &mut self.cycle
            && (cycle.target, cycle.number) == answer
            && !cycle.answered
        {
            cycle.answered = true;
            self.awareness.answered();
            return true;
        }
        false
    }

    /// Whether the present target had no session when it was probed.
    pub(crate) fn is_unconnected(&self) -> bool {
        self.cycle.as_ref().is_some_and(|cycle| !cycle.had_session)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::node;

    #[test]
    fn silence_of_peers_with_a_session_counts_and_of_others_does_not() {
        let mut probing = Probing::default();
        for number in 0..10 {
            probing.begin(node(number), number, false, Vec::new());
            assert!(probing.is_unconnected());
        }
        assert_eq!(probing.awareness.score(), 0);
        for number in 10..13 {
            probing.begin(node(number), number, true, Vec::new());
        }
        assert_eq!(probing.awareness.score(), 1, "two different ones in a row");
        probing.answered(node(12), &RawMessage::Ack(11));
        assert_eq!(probing.awareness.score(), 1, "an old answer");
        probing.answered(node(12), &RawMessage::Ack(12));
        probing.answered(node(12), &RawMessage::Ack(12));
        assert_eq!(probing.awareness.score(), 0);
    }
}
