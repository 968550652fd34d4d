//! What one event separates: who of the nodes goes to what is behind it, and who no longer does.

use std::collections::BTreeSet;

use crate::scenario::Happening;
use crate::scenario::timeline::Planned;

/// A node and the site it is in.
pub(crate) type Spot = (usize, usize);

/// The ways that an event takes down at one moment; none for a fault that is about a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cut {
    /// From one site to another.
    sites: BTreeSet<(usize, usize)>,
    /// From one node to another.
    nodes: BTreeSet<(usize, usize)>,
}

impl Cut {
    /// What goes down with the first of these happenings: an event is a happening for each
    /// direction, all of the same moment, and only the first of them carries the fault.
    pub(crate) fn of<'a>(plan: impl IntoIterator<Item = &'a Planned>) -> Self {
        let mut cut = Self::default();
        let mut begins = None;
        for planned in plan {
            let is_first = begins.is_none();
            if *begins.get_or_insert(planned.at) != planned.at {
                break;
            }
            if !is_first && planned.fault.is_some() {
                break;
            }
            match planned.happening {
                Happening::Way(a, b, false) => drop(cut.sites.insert((a, b))),
                Happening::Pair(a, b, false) => drop(cut.nodes.insert((a, b))),
                _ => {}
            }
        }
        cut
    }

    /// Whether anything that passes between these two, in either direction, is cut.
    pub(crate) fn parts(&self, a: Spot, b: Spot) -> bool {
        let any = |ways: &BTreeSet<(usize, usize)>, a, b| {
            ways.contains(&(a, b)) || ways.contains(&(b, a))
        };
        any(&self.sites, a.1, b.1) || any(&self.nodes, a.0, b.0)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn planned(at: u64, happening: Happening, fault: Option<&'static str>) -> Planned {
        Planned { at: Duration::from_secs(at), words: String::new(), happening, fault }
    }

    #[test]
    fn an_event_cuts_all_its_directions_and_nothing_of_the_next_event() {
        let plan = [
            planned(5, Happening::Way(0, 1, false), Some("isolate")),
            planned(5, Happening::Way(1, 0, false), None),
            planned(5, Happening::Way(0, 2, false), None),
            planned(5, Happening::Pair(7, 8, false), None),
            planned(5, Happening::Way(3, 4, false), Some("cut")),
            planned(6, Happening::Way(0, 5, false), None),
        ];
        let cut = Cut::of(&plan);
        assert!(cut.parts((10, 0), (11, 1)) && cut.parts((10, 2), (11, 0)));
        assert!(cut.parts((8, 6), (7, 6)) && !cut.parts((8, 6), (9, 6)));
        assert!(!cut.parts((10, 3), (11, 4)), "another event");
        assert!(!cut.parts((10, 0), (11, 5)), "a later moment");
        assert!(Cut::of(&plan[4..]).parts((10, 3), (11, 4)));
    }
}
