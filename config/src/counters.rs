//! Tables of counters: an enum with a variant per counter, and a number for each.
//!
//! A row has the counter's metric and label value, so that code, metrics and reference share one
//! definition. Counting is an addition at an index known at compile time.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{AddAssign, Index, IndexMut};
use std::sync::atomic::{AtomicU64, Ordering};

/// An enum of counters; [`counters!`](crate::counters!) writes it.
pub trait Counter: Copy + fmt::Debug + 'static {
    /// Every counter, in the order of the table.
    const ALL: &'static [Self];

    /// Its index in [`Counter::ALL`].
    fn index(self) -> usize;

    /// Its row in the metrics.
    fn row(self) -> CounterRow;
}

/// How a counter is shown: as one sample of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CounterRow {
    /// The metric.
    pub metric: &'static str,
    /// The label by which its samples differ; empty if the counter is the whole metric.
    pub label: &'static str,
    /// The value of that label.
    pub value: &'static str,
    /// The meaning of the counter.
    pub help: &'static str,
}

/// A number for each of the `N` counters of `C`. All only increase.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Counters<C, const N: usize> {
    counts: [u64; N],
    of: PhantomData<C>,
}

impl<C: Counter, const N: usize> Counters<C, N> {
    /// Every counter with its number.
    pub fn iter(&self) -> impl Iterator<Item = (C, u64)> {
        C::ALL.iter().copied().zip(self.counts)
    }
}

impl<C, const N: usize> Default for Counters<C, N> {
    fn default() -> Self {
        Self { counts: [0; N], of: PhantomData }
    }
}

impl<C: Counter, const N: usize> Index<C> for Counters<C, N> {
    type Output = u64;

    fn index(&self, counter: C) -> &u64 {
        &self.counts[counter.index()]
    }
}

impl<C: Counter, const N: usize> IndexMut<C> for Counters<C, N> {
    fn index_mut(&mut self, counter: C) -> &mut u64 {
        &mut self.counts[counter.index()]
    }
}

impl<C, const N: usize> AddAssign for Counters<C, N> {
    fn add_assign(&mut self, other: Self) {
        self.counts.iter_mut().zip(other.counts).for_each(|(mine, more)| *mine += more);
    }
}

/// Lists the counters that are not zero.
impl<C: Counter, const N: usize> fmt::Debug for Counters<C, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter().filter(|(_, count)| *count > 0)).finish()
    }
}

/// Counters shared by several threads: an addition is one relaxed atomic instruction.
pub struct SharedCounters<C, const N: usize> {
    counts: [AtomicU64; N],
    of: PhantomData<C>,
}

impl<C: Counter, const N: usize> SharedCounters<C, N> {
    /// Adds one.
    pub fn bump(&self, counter: C) {
        self.add(counter, 1);
    }

    /// Adds `more`.
    pub fn add(&self, counter: C, more: u64) {
        self.counts[counter.index()].fetch_add(more, Ordering::Relaxed);
    }

    /// The value of one counter.
    pub fn get(&self, counter: C) -> u64 {
        self.counts[counter.index()].load(Ordering::Relaxed)
    }

    /// All values, each read separately.
    pub fn read(&self) -> Counters<C, N> {
        let counts = self.counts.each_ref().map(|count| count.load(Ordering::Relaxed));
        Counters { counts, of: PhantomData }
    }
}

impl<C, const N: usize> Default for SharedCounters<C, N> {
    fn default() -> Self {
        Self { counts: std::array::from_fn(|_| AtomicU64::new(0)), of: PhantomData }
    }
}

impl<C: Counter, const N: usize> fmt::Debug for SharedCounters<C, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.read().fmt(f)
    }
}

/// Writes an enum of counters: groups of them by metric and label, then one row a counter with its
/// help, its variant and the value of the label.
#[macro_export]
macro_rules! counters {
    (
        $(#[$about:meta])*
        $vis:vis enum $name:ident {
            $($metric:literal by $label:literal {
                $($(#[doc = $help:literal])+ $variant:ident = $value:literal,)+
            })+
        }
    ) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        $vis enum $name {
            $($($(#[doc = $help])+ $variant,)+)+
        }

        impl $crate::counters::Counter for $name {
            const ALL: &'static [Self] = &[$($(Self::$variant,)+)+];

            fn index(self) -> usize {
                self as usize
            }

            fn row(self) -> $crate::counters::CounterRow {
                match self {
                    $($(Self::$variant => $crate::counters::CounterRow {
                        metric: $metric,
                        label: $label,
                        value: $value,
                        help: concat!($($help),+).trim_ascii(),
                    },)+)+
                }
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    counters! {
        /// Fruit.
        enum Fruit {
            "eaten_total" by "kind" {
                /// Apples of any colour.
                Apples = "apple",
                /// Pears.
                Pears = "pear",
            }
            "thrown_total" by "at" {
                /// Thrown at a wall.
                Wall = "wall",
            }
        }
    }

    #[test]
    fn a_counter_has_a_number_and_a_row() {
        let mut one = Counters::<Fruit, 3>::default();
        one[Fruit::Pears] += 2;
        one += one;
        assert_eq!((one[Fruit::Apples], one[Fruit::Pears], one[Fruit::Wall]), (0, 4, 0));
        assert_eq!(format!("{one:?}"), "{Pears: 4}");
        let shared = SharedCounters::<Fruit, 3>::default();
        shared.bump(Fruit::Wall);
        shared.add(Fruit::Wall, 2);
        assert_eq!((shared.get(Fruit::Wall), shared.read()[Fruit::Wall]), (3, 3));
        assert_eq!(format!("{shared:?}"), "{Wall: 3}");
        assert_eq!(one.iter().map(|(_, count)| count).collect::<Vec<_>>(), [0, 4, 0]);
        let row = Fruit::Apples.row();
        assert_eq!(row.help, "Apples of any colour.");
        assert_eq!((row.metric, row.label, row.value), ("eaten_total", "kind", "apple"));
        assert_eq!(Fruit::Wall.row().metric, "thrown_total");
        assert!(Fruit::ALL.iter().enumerate().all(|(at, counter)| counter.index() == at));
    }
}
