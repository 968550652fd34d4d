//! The nodes that an event applies to, in words.
//!
//! | words | nodes |
//! | --- | --- |
//! | `fra-2` | that node |
//! | `fra` | all of that site |
//! | `all` | all |
//! | `... origins`, `... workers` | those of them with, or without, an instance |
//! | `... relays` | those of them that may relay |
//! | `... any`, `... any 3` | one of them, or three, drawn from the seed |
//!
//! Words combine in this order: `fra origins any 2`.

use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use super::{NodeRef, Scenario, strict};
use crate::Error;

/// A parsed choice of nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    nodes: Vec<usize>,
    any: Option<usize>,
}

impl Target {
    /// Reads the words; places count the nodes of the scenario in order.
    ///
    /// # Errors
    /// [`Error::Scenario`] when a word is not understood or nothing is chosen.
    pub fn parse(text: &str, scenario: &Scenario) -> Result<Self, Error> {
        let mut words = text.split_whitespace().peekable();
        let first = words.next().unwrap_or_default();
        let all: Vec<NodeRef> = scenario.nodes().collect();
        let mut nodes = whom(first, &all, scenario)?;
        match words.next_if(|word| matches!(*word, "origins" | "workers" | "relays")) {
            Some("relays") => nodes.retain(|at| scenario.relays(all[*at])),
            Some(kind) => nodes.retain(|at| scenario.hosts(all[*at]) == (kind == "origins")),
            None => {}
        }
        let mut any = None;
        if words.next_if_eq(&"any").is_some() {
            let count = words.next_if(|word| word.parse::<usize>().is_ok());
            any = Some(count.map_or(1, |count| count.parse().expect("just tried")));
        }
        if let Some(word) = words.next() {
            return Err(Error::Scenario(format!(
                "\"{text}\": \"{word}\" is not understood; expected origins, workers or \
                 relays, then any and a number"
            )));
        }
        if nodes.is_empty() || any.is_some_and(|any| any > nodes.len()) {
            let count = nodes.len();
            return Err(Error::Scenario(format!("\"{text}\" asks for more than {count} nodes")));
        }
        Ok(Self { nodes, any })
    }

    /// The nodes, drawn where words leave it open; ascending.
    pub fn draw(&self, rng: &mut ChaCha8Rng) -> Vec<usize> {
        let Some(any) = self.any else { return self.nodes.clone() };
        let mut nodes = self.nodes.clone();
        nodes.shuffle(rng);
        nodes.truncate(any);
        nodes.sort_unstable();
        nodes
    }

    /// All nodes from which a random one may be drawn.
    pub fn possible(&self) -> &[usize] {
        &self.nodes
    }
}

fn whom(word: &str, all: &[NodeRef], scenario: &Scenario) -> Result<Vec<usize>, Error> {
    if word == "all" {
        return Ok((0..all.len()).collect());
    }
    if let Some(at) = all.iter().position(|node| scenario.name(*node) == word) {
        return Ok(vec![at]);
    }
    if let Some(site) = scenario.sites.iter().position(|site| site.name.as_str() == word) {
        let there = all.iter().enumerate().filter(|(_, node)| node.site == site);
        return Ok(there.map(|(at, _)| at).collect());
    }
    let names: Vec<String> = all.iter().map(|node| scenario.name(*node)).collect();
    let sites = scenario.sites.iter().map(|site| site.name.as_str());
    let valid = names.iter().map(String::as_str).chain(sites).chain(["all"]);
    let near = strict::near(word, valid);
    Err(Error::Scenario(format!("there is no node or site \"{word}\"{near}")))
}
