//! Values by node, ascending by id: used for everything that is kept about thousands of nodes.
//!
//! Ids are public keys, practically random, so an id's position can be estimated from its first
//! four bytes; a search from there ends after a few steps (interpolation search, Perl, Itai and
//! Avni, 1978), or logarithmically many if someone chose ids close to each other. The four bytes
//! are stored next to the value's index, and values do not move: a lookup touches two or three
//! cache lines where a tree touches a dozen, and an insertion moves eight bytes per node.
//!
//! The owner bounds the number of entries.

use meshport_config::NodeId;

/// First distance from the guess to the next position examined; doubled each time.
const FIRST_STEP: usize = 8;

/// A value that knows its node.
pub(crate) trait Named {
    fn node(&self) -> &NodeId;
}

/// Values by node, ascending by id.
#[derive(Debug, Clone)]
pub(crate) struct Table<T> {
    /// The first four bytes of each id and the index of its value, ascending by id.
    index: Vec<(u32, u32)>,
    values: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { index: Vec::new(), values: Vec::new(), free: Vec::new() }
    }
}

impl<T: Named> Table<T> {
    pub(crate) fn len(&self) -> usize {
        self.index.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// Reserves room for this many in total.
    pub(crate) fn reserve(&mut self, count: usize) {
        let more = count.saturating_sub(self.len());
        self.index.reserve_exact(more);
        self.values.reserve_exact(more);
    }

    pub(crate) fn get(&self, node: &NodeId) -> Option<&T> {
        let rank = self.find(node).ok()?;
        self.at(rank)
    }

    pub(crate) fn get_mut(&mut self, node: &NodeId) -> Option<&mut T> {
        let rank = self.find(node).ok()?;
        self.values[self.index[rank].1 as usize].as_mut()
    }

    pub(crate) fn contains(&self, node: &NodeId) -> bool {
        self.find(node).is_ok()
    }

    /// Inserts a value, replacing that of the same node.
    pub(crate) fn insert(&mut self, value: T) -> &mut T {
        let place = match self.find(value.node()) {
            Ok(rank) => self.index[rank].1 as usize,
            Err(rank) => {
                let place = self.free.pop().map_or(self.values.len(), |free| free as usize);
                if place == self.values.len() {
                    grow(&mut self.values);
                    self.values.push(None);
                }
                grow(&mut self.index);
                let number = u32::try_from(place).expect("fewer than 2^32 nodes");
                self.index.insert(rank, (short(value.node()), number));
                place
            }
        };
        self.values[place].insert(value)
    }

    pub(crate) fn remove(&mut self, node: &NodeId) -> Option<T> {
        let rank = self.find(node).ok()?;
        let (_, place) = self.index.remove(rank);
        self.free.push(place);
        self.values[place as usize].take()
    }

    /// Keeps only some of the values.
    pub(crate) fn retain(&mut self, is_wanted: impl Fn(&T) -> bool) {
        let unwanted = self.iter().filter(|value| !is_wanted(value));
        let unwanted: Vec<NodeId> = unwanted.map(|value| *value.node()).collect();
        for node in unwanted {
            self.remove(&node);
        }
    }

    /// All values, ascending by id.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.ranks(0, self.len())
    }

    /// The values from one id to another, both included.
    pub(crate) fn range(&self, low: NodeId, high: NodeId) -> impl Iterator<Item = &T> {
        let from = self.find(&low).unwrap_or_else(|rank| rank);
        let to = self.find(&high).map_or_else(|rank| rank, |rank| rank + 1);
        self.ranks(from, to.max(from))
    }

    /// The value of the first id not below `low`.
    pub(crate) fn at_least(&self, low: &NodeId) -> Option<&T> {
        self.at(self.find(low).unwrap_or_else(|rank| rank))
    }

    /// All values from the first id not below `start`, wrapping around once.
    pub(crate) fn around(&self, start: NodeId) -> impl DoubleEndedIterator<Item = &T> {
        let from = self.find(&start).unwrap_or_else(|rank| rank);
        self.ranks(from, self.len()).chain(self.ranks(0, from))
    }

    /// All values from a random one on, wrapping around once: if `draw` is uniform over its range,
    /// the first one is uniform over the table.
    pub(crate) fn drawn(&self, draw: u64) -> impl Iterator<Item = &T> {
        let from = (u128::from(draw) * self.len() as u128) >> 64;
        let from = usize::try_from(from).unwrap_or(0);
        self.ranks(from, self.len()).chain(self.ranks(0, from))
    }

    fn ranks(&self, from: usize, to: usize) -> impl DoubleEndedIterator<Item = &T> {
        self.index[from..to].iter().filter_map(|(_, place)| self.values[*place as usize].as_ref())
    }

    fn at(&self, rank: usize) -> Option<&T> {
        self.values[self.index.get(rank)?.1 as usize].as_ref()
    }

    /// The rank of a node, or the one it would have.
    fn find(&self, node: &NodeId) -> Result<usize, usize> {
        let wanted = short(node);
        let mut rank = self.first_not_below(wanted);
        // Two ids with the same beginning are possible but rare.
        while self.index.get(rank).is_some_and(|(short, _)| *short == wanted) {
            match self.at(rank).map(|value| value.node().cmp(node)) {
                Some(std::cmp::Ordering::Equal) => return Ok(rank),
                Some(std::cmp::Ordering::Less) => rank += 1,
                Some(std::cmp::Ordering::Greater) | None => break,
            }
        }
        Err(rank)
    }

    fn first_not_below(&self, wanted: u32) -> usize {
        let index = &self.index[..];
        let guess = (u64::from(wanted) * index.len() as u64) >> 32;
        let mut step = FIRST_STEP;
        // All before `low` are below, and all from `high` on are not.
        let (mut low, mut high) = (0, index.len());
        let mut at = usize::try_from(guess).unwrap_or(0);
        while low < high {
            if index[at].0 < wanted {
                low = at + 1;
                at = (at + step).min(high - 1);
            } else {
                high = at;
                at = at.saturating_sub(step).max(low);
            }
            step *= 2;
            let is_bracketed = high - low <= step;
            if is_bracketed {
                return low + index[low..high].partition_point(|(short, _)| *short < wanted);
            }
        }
        low
    }
}

/// The first four bytes of an id, in the order of ids.
fn short(node: &NodeId) -> u32 {
    let (first, _) = node.as_bytes().split_first_chunk().expect("an id has 32 bytes");
    u32::from_be_bytes(*first)
}

/// Grows by an eighth, not by doubling: a simulated mesh has one table per node, and half of their
/// memory would be unused.
fn grow<V>(values: &mut Vec<V>) {
    if values.len() == values.capacity() {
        values.reserve_exact((values.len() / 8).max(16));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone, PartialEq)]
    struct Value(NodeId, u32);

    impl Named for Value {
        fn node(&self) -> &NodeId {
            &self.0
        }
    }

    /// Ids of three kinds: spread out, close together, and equal in the first four bytes.
    fn ids() -> impl Strategy<Value = NodeId> {
        prop_oneof![
            any::<[u8; 32]>(),
            any::<u8>().prop_map(|last| {
                let mut id = [7; 32];
                id[3] = last;
                id
            }),
            any::<u8>().prop_map(|last| {
                let mut id = [9; 32];
                id[31] = last % 4;
                id
            }),
        ]
        .prop_map(NodeId::from_bytes)
    }

    fn pairs<'a>(all: impl Iterator<Item = &'a Value>) -> Vec<(NodeId, u32)> {
        all.map(|value| (value.0, value.1)).collect()
    }

    proptest! {
        #[test]
        fn a_table_is_an_ordered_map(
            steps in prop::collection::vec((ids(), any::<u32>(), 0..4_u8), 0..200),
            (low, high) in (ids(), ids()),
        ) {
            let (mut table, mut map) = (Table::default(), BTreeMap::new());
            for (id, number, what) in steps {
                if what == 0 {
                    let gone = table.remove(&id).map(|value: Value| value.1);
                    prop_assert_eq!(gone, map.remove(&id));
                } else {
                    table.insert(Value(id, number));
                    map.insert(id, number);
                }
                prop_assert_eq!(table.get(&id).map(|value| value.1), map.get(&id).copied());
            }
            let flat = |all: Vec<(&NodeId, &u32)>| -> Vec<(NodeId, u32)> {
                all.into_iter().map(|(id, number)| (*id, *number)).collect()
            };
            prop_assert_eq!(table.len(), map.len());
            prop_assert_eq!(pairs(table.iter()), flat(map.iter().collect()));
            let least = table.at_least(&low).map(|value| (value.0, value.1));
            prop_assert_eq!(least, map.range(low..).next().map(|(id, number)| (*id, *number)));
            let around = map.range(low..).chain(map.range(..low)).collect();
            prop_assert_eq!(pairs(table.around(low)), flat(around));
            if low <= high {
                let within = map.range(low..=high).collect();
                prop_assert_eq!(pairs(table.range(low, high)), flat(within));
            }
            table.retain(|value| value.1.is_multiple_of(2));
            map.retain(|_, number| number.is_multiple_of(2));
            prop_assert_eq!(pairs(table.iter()), flat(map.iter().collect()));
        }
    }
}
