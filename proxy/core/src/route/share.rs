//! How candidates share sessions: by weight, in turn, by load, or by client.

use std::cmp::Ordering;

use meshport_config::{ServiceSettings, Weight};

use super::{Candidate, Line, OriginView};
use crate::counter_hash::mix;

/// The weights of origins, relative to an unlisted origin.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Weights(Vec<Weight>);

impl From<&ServiceSettings> for Weights {
    fn from(service: &ServiceSettings) -> Self {
        Self(service.weights.clone())
    }
}

impl Weights {
    /// The weight of an origin.
    pub fn of(&self, origin: &OriginView) -> u32 {
        if self.0.is_empty() {
            return 1;
        }
        let id = origin.line.origin().map(|node| node.to_string());
        let is_it = |weight: &&Weight| {
            let name = weight.origin.to_string();
            Some(&name) == id.as_ref() || name == origin.name
        };
        self.0.iter().find(is_it).map_or(1, |it| it.weight.max(1))
    }
}

/// The candidate whose turn it is, by weighted round robin.
pub(super) fn turn(sharing: &[Candidate], counter: u64) -> usize {
    let weight = |candidate: &Candidate| u64::from(candidate.origin.weight.max(1));
    let all: u64 = sharing.iter().map(weight).sum();
    let mut left = counter % all.max(1);
    for (index, candidate) in sharing.iter().enumerate() {
        let own = weight(candidate);
        if left < own {
            return index;
        }
        left -= own;
    }
    0
}

/// The candidate with the least load; the ticket decides between equal ones.
pub(super) fn least(sharing: &[Candidate], ticket: u64, open: impl Fn(&Line) -> u64) -> usize {
    let loads: Vec<u64> = sharing.iter().map(|it| open(&it.origin.line)).collect();
    let compare = |a: usize, b: usize| {
        compare_loads(&sharing[a].origin, loads[a], &sharing[b].origin, loads[b])
    };
    let Some(best) = (0..sharing.len()).min_by(|a, b| compare(*a, *b)) else { return 0 };
    let is_equal = |index: &usize| compare(*index, best) == Ordering::Equal;
    let equal: Vec<usize> = (0..sharing.len()).filter(is_equal).collect();
    let drawn = ticket % u64::try_from(equal.len().max(1)).unwrap_or(1);
    usize::try_from(drawn).ok().and_then(|drawn| equal.get(drawn).copied()).unwrap_or(best)
}

/// Compares the sessions of two origins in relation to their weights, including the next one.
pub(super) fn compare_loads(a: &OriginView, of_a: u64, b: &OriginView, of_b: u64) -> Ordering {
    let with_next = |open: u64| u128::from(open) + 1;
    let (a_weight, b_weight) = (u128::from(a.weight.max(1)), u128::from(b.weight.max(1)));
    (with_next(of_a) * b_weight).cmp(&(with_next(of_b) * a_weight))
}

/// The order of two for a client: rendezvous hashing (Thaler, Ravishankar, "Using Name-Based
/// Mappings to Increase Hit Rates"), weighted. Each client has an order of all origins that changes
/// only with their set and weights, so an origin that leaves moves only its own clients.
pub(super) fn by_client(a: &Candidate, b: &Candidate, client: u64) -> Ordering {
    score(&b.origin, client).total_cmp(&score(&a.origin, client))
}

/// The affinity of a client to an origin: the greatest wins, in proportion to the weights.
fn score(origin: &OriginView, client: u64) -> f64 {
    let hash = mix(client ^ hash_input(&origin.line));
    // The upper bits, which a float holds exactly; never 0 or 1.
    let upper = u32::try_from(hash >> 32).unwrap_or(u32::MAX);
    let fraction = (f64::from(upper) + 0.5) / (f64::from(u32::MAX) + 1.0);
    -f64::from(origin.weight.max(1)) / fraction.ln()
}

/// A number for an origin, the same for every path to it.
fn hash_input(line: &Line) -> u64 {
    match line {
        Line::Direct(node) | Line::Relayed { origin: node, .. } => number(node.as_bytes()),
        Line::Outside(address) => number(address.to_string().as_bytes()),
    }
}

/// A client's ticket for [`Draw::Source`](super::Draw::Source): the same on every node and in every
/// run.
pub fn client_number(client: &str) -> u64 {
    number(client.as_bytes())
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |hash, byte| mix(hash ^ u64::from(*byte)))
}

#[cfg(test)]
mod tests;
