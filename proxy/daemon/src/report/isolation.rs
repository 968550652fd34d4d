//! Whether this machine's own network or clock is at fault when no member answers.

use meshport_discovery::{Liveness, PathState};

use super::Reporter;
use crate::{clock, findings};
use meshport_core::findings::{Finding, NO_ANSWERS};

/// Minimum number of dead paths: a single one may be that member's fault.
const MIN_DEAD_PATHS: usize = 2;

/// Other members, by how this node sees them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Others {
    alive: usize,
    down: usize,
    dead_paths: usize,
    working_paths: usize,
}

impl Reporter<'_> {
    /// Whether all members that answered before are silent.
    pub(super) fn isolation(&self) -> Option<Finding> {
        let mut others = Others::default();
        for (node, entry) in self.core.discovery().directory().iter() {
            match entry.liveness {
                _ if *node == self.state.identity.me.node => continue,
                Liveness::Alive => others.alive += 1,
                Liveness::Down => others.down += 1,
                // No answer is expected from these.
                Liveness::Left | Liveness::Unknown => continue,
            }
            match self.core.discovery().paths().get(node).map(|path| path.state) {
                Some(PathState::Dead) => others.dead_paths += 1,
                Some(_) => others.working_paths += 1,
                None => {}
            }
        }
        others.finding(self.state.process.mesh_listen.port())
    }

    /// Whether no other member is known, neither up nor down.
    pub(super) fn is_alone(&self) -> bool {
        let me = self.state.identity.me.node;
        self.core.discovery().directory().iter().all(|(node, _)| *node == me)
    }

    /// Whether this machine's clock jumped ahead and all other members have expired by it or, where
    /// no other is known or was heard since, this node.
    pub(crate) fn wrong_clock(&self) -> Option<Finding> {
        let jump = clock::jumped()?;
        let is_alone = self.is_alone();
        if !is_alone && !clock::has_just_jumped() {
            return None;
        }
        let own = &self.state.identity.credential;
        let have_ended = is_alone && self.core.discovery().has_ended();
        findings::of_jump(jump, have_ended, own, clock::wall())
    }
}

impl Others {
    fn finding(self, port: u16) -> Option<Finding> {
        let Self { alive, down, dead_paths, working_paths } = self;
        let none_alive = alive == 0 && down > 0;
        // Paths are declared dead long before all members are declared down.
        let none_works = working_paths == 0 && dead_paths >= MIN_DEAD_PATHS;
        let (who, blamed) = match alive + down {
            1 => {
                let who = "the only other member does not answer".to_owned();
                (who, "it is down, or this machine's network fails")
            }
            known => {
                let who = format!("none of {known} known members answers");
                (who, "probably this machine's network")
            }
        };
        (none_alive || none_works)
            .then(|| NO_ANSWERS.found(format!("{who} packets from UDP port {port}: {blamed}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warns(alive: usize, down: usize, dead_paths: usize, working_paths: usize) -> Option<String> {
        let others = Others { alive, down, dead_paths, working_paths };
        others.finding(51_820).map(|it| it.detail)
    }

    #[test]
    fn silence_of_all_is_blamed_on_this_machine_and_of_one_on_either() {
        let text = warns(0, 7, 2, 0).expect("nobody answers");
        assert_eq!(
            text,
            "none of 7 known members answers packets from UDP port 51820: probably this machine's \
             network"
        );
        assert_eq!(
            warns(0, 1, 1, 0).expect("it is silent"),
            "the only other member does not answer packets from UDP port 51820: it is down, or \
             this machine's network fails"
        );
        // Membership takes longer than paths.
        assert!(warns(7, 0, 3, 0).is_some());
    }

    #[test]
    fn a_node_that_gets_any_answer_has_a_network() {
        for (alive, down, dead, working) in
            [(1, 6, 2, 1), (0, 0, 0, 0), (3, 0, 0, 3), (2, 0, 1, 0), (5, 0, 0, 0)]
        {
            assert_eq!(warns(alive, down, dead, working), None, "{alive} {down} {dead} {working}");
        }
    }
}
