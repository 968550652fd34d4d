//! The behaviour of a lying node.
//!
//! A liar is an admitted member with a modified program: it signs and sends anything under its own
//! name. Most lies feed the honest code a false world. Messages that no honest node sends are
//! written here, byte by byte as discovery reads them (`discovery/src/wire.rs`).

use std::time::Duration;

use meshport_config::NodeId;
use meshport_discovery::{NodeState, VERSION, kind};
use rand::Rng;

use super::{Body, Event, Packet, World};
use crate::flight::Payload;
use crate::scenario::Lie;

/// Kinds of datagrams of discovery, as their second byte.
const SWIM: u8 = 0;
const RUMOURS: u8 = 6;
const ECHO: u8 = 10;
/// A membership datagram that only forwards claims.
const GOSSIP: u8 = 8;
/// The state of a member in a claim.
const SUSPECT: u8 = 1;
const DOWN: u8 = 2;
/// A member that is suspected in this incarnation cannot refute it within the same life.
const LAST_INCARNATION: u16 = u16::MAX;
/// Claims in one datagram: at most 23 bytes each.
const MAX_CLAIMS: usize = 48;

/// A node in one of its lives: the subject of a claim.
#[derive(Debug, Clone, Copy)]
struct Life {
    node: NodeId,
    generation: u64,
    renewal: u32,
}

/// A claim about a process of a node.
#[derive(Debug, Clone, Copy)]
struct Standing {
    incarnation: u16,
    word: u8,
}

impl World {
    /// Changes a liar's gossip.
    pub(super) fn distort(
        &mut self,
        from: usize,
        to: usize,
        mut payload: Vec<u8>,
    ) -> Option<(usize, Vec<u8>)> {
        let Some(lie) = self.nodes[from].lie else { return Some((to, payload)) };
        match lie {
            Lie::Ready | Lie::Relay | Lie::Accuse => {}
            Lie::Garbage => {
                if self.rng.random::<bool>() {
                    self.scene.measures.lies += 1;
                    // Version and kind are kept, so that the receiver reads the rest.
                    payload.iter_mut().skip(2).for_each(|byte| *byte = self.rng.random());
                }
            }
            Lie::Replay => {
                let keeps = self.nodes[from].replay.is_empty() || self.rng.random_ratio(1, 8);
                if keeps {
                    self.nodes[from].replay.clone_from(&payload);
                }
                let old = self.nodes[from].replay.clone();
                let anybody = self.rng.random_range(0..self.nodes.len());
                if anybody != from {
                    self.scene.measures.lies += 1;
                    self.send(from, anybody, Payload::Gossip(old));
                }
            }
            // Only the echo of a path probe passes.
            Lie::Silent if matches!(kind(&payload), "echo" | "wide-echo") => {}
            Lie::Silent => {
                self.scene.measures.lies += 1;
                return None;
            }
            Lie::Near => self.answer_itself(from, to, &payload),
        }
        Some((to, payload))
    }

    /// A probe is answered before it is sent, so that the record shows a distance of zero.
    fn answer_itself(&mut self, from: usize, to: usize, payload: &[u8]) {
        if kind(payload) != "probe" || !self.tunnel(from, to).is_up() {
            return;
        }
        let mut echo = payload.to_vec();
        echo[1] = ECHO;
        let answer = Packet {
            from: to,
            from_boot: self.tunnel(from, to).with_boot,
            to: from,
            to_boot: self.nodes[from].boot,
            confirms: Duration::ZERO,
            body: Body::Data(Payload::Gossip(echo)),
        };
        self.scene.measures.lies += 1;
        self.queue.push(self.scene.now, Event::Packet(answer));
    }

    /// All accusers send their claims now, over both channels for claims, and different ones each
    /// time: that the others have long been down, that they are suspect in a later incarnation
    /// than any of theirs, and either in the last possible incarnation.
    pub(super) fn accuse(&mut self) {
        for from in 0..self.nodes.len() {
            if self.nodes[from].lie != Some(Lie::Accuse) {
                continue;
            }
            let lives = self.lives_known_to(from);
            let standing = self.accusation();
            let own = self.nodes[from].credential.node;
            let Some(me) = lives.iter().find(|life| life.node == own).copied() else { continue };
            for to in lives.iter().filter(|life| life.node != own) {
                let Some(number) = self.scene.account.number(&to.node) else { continue };
                let others: Vec<Life> = lives.iter().filter(|it| it.node != own).copied().collect();
                for some in others.chunks(MAX_CLAIMS) {
                    // A claim sent as a rumour would be old news on the other channel.
                    for words in [gossip(me, *to, some, standing), rumours(some, standing)] {
                        self.scene.measures.lies += 1;
                        self.send(from, number, Payload::Gossip(words));
                    }
                }
            }
        }
    }

    /// The state of a member in the accusers' current claims.
    fn accusation(&self) -> Standing {
        let seconds = self.scene.now.as_secs();
        // A refutation raises the incarnation to one more than the doubted one.
        let ahead = u16::try_from(2 * seconds).unwrap_or(LAST_INCARNATION - 1);
        let (incarnation, word) = match seconds % 4 {
            0 => (0, DOWN),
            1 => (ahead, SUSPECT),
            2 => (LAST_INCARNATION, DOWN),
            _ => (LAST_INCARNATION, SUSPECT),
        };
        Standing { incarnation, word }
    }

    /// The current lives of all nodes whose records a node has, its own included.
    fn lives_known_to(&self, node: usize) -> Vec<Life> {
        let Some(brain) = &self.nodes[node].brain else { return Vec::new() };
        let states = brain.directory().iter().filter_map(|(_, entry)| entry.node_state());
        let life = |state: &NodeState| Life {
            node: state.node,
            generation: state.generation,
            renewal: state.renewal,
        };
        states.map(life).collect()
    }
}

/// Claims as items that a receiver forwards if they are new to it.
fn rumours(about: &[Life], standing: Standing) -> Vec<u8> {
    let mut bytes = vec![VERSION, RUMOURS];
    number(&mut bytes, about.len() as u64);
    for life in about {
        bytes.extend_from_slice(&life.node.as_bytes()[..8]);
        // Neither credential nor record, but a claim.
        bytes.extend_from_slice(&[0, 0, 1]);
        claim(&mut bytes, life, standing);
    }
    bytes
}

/// Claims after the header of a membership datagram.
fn gossip(from: Life, to: Life, about: &[Life], standing: Standing) -> Vec<u8> {
    let mut inner = Vec::new();
    number(&mut inner, from.generation);
    number(&mut inner, u64::from(from.renewal));
    // The incarnation.
    number(&mut inner, 0);
    number(&mut inner, to.generation);
    number(&mut inner, u64::from(to.renewal));
    inner.push(GOSSIP);
    let count = u16::try_from(about.len()).expect("at most MAX_CLAIMS");
    inner.extend_from_slice(&count.to_be_bytes());
    for life in about {
        inner.extend_from_slice(&life.node.as_bytes()[..8]);
        claim(&mut inner, life, standing);
    }
    let mut bytes = vec![VERSION, SWIM];
    number(&mut bytes, inner.len() as u64);
    bytes.extend_from_slice(&inner);
    bytes
}

fn claim(to: &mut Vec<u8>, life: &Life, Standing { incarnation, word }: Standing) {
    number(to, life.generation);
    number(to, u64::from(life.renewal));
    number(to, u64::from(incarnation));
    to.push(word);
}

/// A number as postcard writes it: seven bits a byte, the lowest first.
fn number(to: &mut Vec<u8>, mut number: u64) {
    while number > 0x7f {
        to.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    to.push(number.to_le_bytes()[0]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Scenario;
    use crate::world::Options;
    use meshport_discovery::Count;

    /// One site with an origin and a relay, and a second one; `fra-2` lies from the start.
    fn played(how: &str) -> World {
        let text = format!(
            "description = \"A liar\"\nduration-s = 90\nwarmup-s = 10\n\
             [[site]]\nname = \"fra\"\nat = [50.1, 8.7]\nnodes = 3\norigins = 1\nrelays = 2\n\
             [[site]]\nname = \"sin\"\nat = [1.35, 103.8]\nnodes = 2\norigins = 1\n\
             [[event]]\nat-s = 20\nlie = \"fra-2\"\nhow = \"{how}\"\n"
        );
        let scenario = Scenario::parse(&text).expect("a good scenario");
        let mut world = World::new(scenario, 7, Options::default()).expect("a possible world");
        world.play();
        world
    }

    /// The round trip from `fra-2` to `sin-1` that `observer` knows, in microseconds.
    fn claimed(world: &World, observer: &str) -> u32 {
        let find = |name: &str| {
            world.nodes.iter().find(|it| it.credential.name.as_str() == name).expect("it is there")
        };
        let [liar, origin] = ["fra-2", "sin-1"].map(|name| find(name).credential.node);
        let brain = find(observer).brain.as_ref().expect("it runs");
        let state = brain.directory().get(&liar).and_then(|it| it.node_state()).expect("a record");
        let far = state.distances.iter().find(|it| it.origin == origin).expect("a distance");
        far.rtt_us.expect("it answers")
    }

    #[test]
    fn a_liar_that_claims_to_be_near_signs_it_and_is_read() {
        let (honest, lying) = (played("ready"), played("near"));
        assert!(claimed(&honest, "fra-3") > 50_000, "{}", claimed(&honest, "fra-3"));
        // The previous value fades with each probe, and probes are random.
        assert!(claimed(&lying, "fra-3") < 5000, "{}", claimed(&lying, "fra-3"));
    }

    #[test]
    fn accusations_are_read_and_doubted() {
        let world = played("accuse");
        let others = world.nodes.iter().filter(|it| it.credential.name.as_str() != "fra-2");
        for other in others {
            let counters = other.brain.as_ref().expect("it runs").counters();
            let name = &other.credential.name;
            assert_eq!(
                (counters[Count::DroppedMalformed], counters[Count::DroppedSwim]),
                (0, 0),
                "{name}"
            );
            // Three others, every two seconds for 70 s: 105 on each channel.
            assert!(
                counters[Count::SoftenedClaims] > 150,
                "{name}: {}",
                counters[Count::SoftenedClaims]
            );
            // It is suspected every other second, each time with a claim that it has not yet
            // refuted.
            assert!(counters[Count::Refutations] >= 30, "{name}: {}", counters[Count::Refutations]);
        }
    }
}
