//! The paths that one event cuts or degrades: which nodes use an origin behind them, and which no
//! longer do.

use std::collections::BTreeSet;

use crate::scenario::Happening;
use crate::scenario::timeline::Planned;

/// A node and its site.
pub(crate) type Spot = (usize, usize);

/// The paths that an event cuts or degrades at one moment; none for a fault of nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cut {
    /// Pairs of sites.
    sites: BTreeSet<(usize, usize)>,
    /// Pairs of nodes.
    nodes: BTreeSet<(usize, usize)>,
}

impl Cut {
    /// The paths cut by the first of these happenings: an event is one happening per direction, all
    /// at the same moment.
    pub(crate) fn of(plan: &[Planned]) -> Self {
        let mut cut = Self::default();
        let Some(first) = plan.first() else { return cut };
        let same_time = plan.iter().take_while(|planned| planned.at == first.at);
        for planned in same_time.filter(|planned| planned.event == first.event) {
            match planned.happening {
                Happening::Path(a, b, false) | Happening::Quality(a, b, Some(_)) => {
                    cut.sites.insert((a, b));
                }
                Happening::Pair(a, b, false) => drop(cut.nodes.insert((a, b))),
                _ => {}
            }
        }
        cut
    }

    /// Whether this event affects one of the paths.
    pub(crate) fn concerns(&self, happening: &Happening) -> bool {
        match happening {
            Happening::Path(a, b, _) | Happening::Quality(a, b, _) => {
                self.sites.contains(&(*a, *b))
            }
            Happening::Pair(a, b, _) => self.nodes.contains(&(*a, *b)),
            _ => false,
        }
    }

    /// Whether traffic between these two, in either direction, is affected.
    pub(crate) fn parts(&self, a: Spot, b: Spot) -> bool {
        if a.0 == b.0 {
            return false;
        }
        let any = |paths: &BTreeSet<(usize, usize)>, a, b| {
            paths.contains(&(a, b)) || paths.contains(&(b, a))
        };
        any(&self.sites, a.1, b.1) || any(&self.nodes, a.0, b.0)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn planned(at: u64, event: usize, happening: Happening) -> Planned {
        Planned { at: Duration::from_secs(at), words: String::new(), happening, event, fault: None }
    }

    #[test]
    fn an_event_cuts_all_its_directions_and_nothing_of_the_next_event() {
        let plan = [
            planned(5, 1, Happening::Path(0, 1, false)),
            planned(5, 1, Happening::Path(1, 0, false)),
            planned(5, 2, Happening::Path(3, 4, false)),
            planned(5, 1, Happening::Path(0, 2, false)),
            planned(5, 1, Happening::Pair(7, 8, false)),
            planned(6, 1, Happening::Path(0, 5, false)),
        ];
        let cut = Cut::of(&plan);
        assert!(cut.parts((10, 0), (11, 1)) && cut.parts((10, 2), (11, 0)));
        assert!(cut.parts((8, 6), (7, 6)) && !cut.parts((8, 6), (9, 6)));
        assert!(!cut.parts((10, 3), (11, 4)), "another event");
        assert!(!cut.parts((10, 0), (11, 5)), "a later moment");
        assert!(!cut.parts((8, 0), (8, 1)), "its local instance");
        assert!(Cut::of(&plan[2..]).parts((10, 3), (11, 4)));
        let up = |a, b| Happening::Path(a, b, true);
        assert!(cut.concerns(&up(0, 2)) && !cut.concerns(&up(3, 4)));
    }
}
