//! The record of the lab's actions and the daemons' state, for the rules and measures that all
//! levels share.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use meshport_core::route::Line;
use meshport_daemon::admin::api::Status;

use super::log::Change;
use super::node;
use crate::level::{Follow, Held, Judge, Level, Scene};
use crate::report::keys;
use crate::rules::{self, LASTING};
use crate::scenario::timeline::Planned;
use crate::scenario::{Happening, service};

/// The daemon's name for the policy that prefers the nearest origin.
const NEAREST: &str = "nearest";

/// See the module's description.
pub(super) struct Book {
    pub(super) scene: Scene,
    pub(super) shown: Vec<Shown>,
}

/// The facts that a daemon shows.
#[derive(Debug, Default)]
pub(super) struct Shown {
    pub(super) runs: bool,
    log: PathBuf,
    /// The chosen line, and since when if its settings prefer the nearest.
    line: Option<Line>,
    lasting: Option<Duration>,
    /// The nodes it considers down or gone.
    absent: BTreeSet<usize>,
    /// The number of nodes it considers present, itself included.
    alive: usize,
}

impl Level for Book {
    const NAME: keys::Level = keys::Level::Lab;

    fn scene(&self) -> &Scene {
        &self.scene
    }

    fn scene_mut(&mut self) -> &mut Scene {
        &mut self.scene
    }

    fn runs(&self, at: usize) -> bool {
        self.shown[at].runs
    }

    fn first_line(&self, at: usize) -> Option<Line> {
        self.shown[at].line
    }

    fn lasting(&self, at: usize) -> Option<Duration> {
        self.shown[at].lasting
    }

    fn holds(&self, at: usize, subject: usize) -> Held {
        // Records are not observable.
        if self.shown[at].absent.contains(&subject) { Held::Absent } else { Held::Newest }
    }

    fn alive(&self, at: usize) -> Option<usize> {
        Some(self.shown[at].alive)
    }

    fn last(&self, node: usize) -> Vec<String> {
        node::tail(&self.shown[node].log).lines().map(str::to_owned).collect()
    }
}

impl Book {
    /// For daemons that write these logs.
    pub(super) fn new(scene: Scene, logs: Vec<PathBuf>) -> Self {
        let shown = |log| Shown { log, ..Shown::default() };
        Self { scene, shown: logs.into_iter().map(shown).collect() }
    }

    pub(super) fn starts(&mut self, node: usize) {
        self.shown[node].runs = true;
        self.process_starts(node, 1);
    }

    /// Replays the events, each at its time, together with the changes of nodes' first origins.
    pub(super) fn replay(&mut self, plan: &[Planned], happened: &[Duration], changes: Vec<Change>) {
        let mut changes = changes.into_iter().peekable();
        for (index, at) in happened.iter().enumerate() {
            while let Some(change) = changes.next_if(|change| change.at <= *at) {
                self.went(change);
            }
            self.scene.now = *at;
            self.begins(&plan[index..]);
            self.happens(&plan[index].happening);
            match plan[index].happening {
                Happening::Start { node, .. } if !self.runs(node) => self.starts(node),
                Happening::Crash(node) | Happening::Leave(node) if self.runs(node) => {
                    (self.shown[node].runs, self.shown[node].line) = (false, None);
                    self.process_ends(node);
                }
                Happening::Starve { node, stall, until } => {
                    self.stands_still(node, stall, until + stall);
                }
                _ => {}
            }
        }
        changes.for_each(|change| self.went(change));
    }

    fn went(&mut self, Change { at, node, to }: Change) {
        self.scene.now = at;
        let to = to.and_then(|to| self.scene.account.names().iter().position(|name| *name == to));
        self.shown[node].line = to.map(|to| Line::Direct(self.scene.account.id(to)));
        let words = self.goes(node);
        self.route_changed(node, Some(words));
    }

    pub(super) fn status(&mut self, node: usize, status: &Status) {
        let account = &self.scene.account;
        let named = |name: &String| account.names().iter().position(|it| it == name);
        let routed = status.services.iter().find(|it| it.name == service());
        let chosen = routed.and_then(|it| it.chosen.as_ref());
        let line = chosen.and_then(|chosen| {
            let origin = chosen.who.node?;
            Some(match chosen.who.relay.as_ref().and_then(named) {
                Some(relay) => Line::Relayed { relay: account.id(relay), origin },
                None => Line::Direct(origin),
            })
        });
        let is_nearest = routed.is_some_and(|it| it.policy == NEAREST);
        let shown = &mut self.shown[node];
        shown.line = line;
        shown.lasting =
            chosen.filter(|_| is_nearest).map(|chosen| Duration::from_secs(chosen.since_s));
        let absent = status.absent.iter().filter_map(|it| account.number(&it.who.node));
        shown.absent = absent.collect();
        shown.alive = status.members.alive;
    }

    /// A request through a node was answered by the instance of this origin, or not at all.
    pub(super) fn check_answer(&mut self, node: usize, answer: Result<String, String>) {
        let works = self.first_line(node).is_some_and(|line| self.works(node, &line));
        let is_judged = self.lasting(node).is_some_and(|lasting| lasting >= LASTING);
        match answer {
            Ok(name) => {
                let origin = self.scene.account.names().iter().position(|it| *it == name);
                let far = origin.filter(|_| is_judged).and_then(|to| self.strays(node, to));
                if let Some(what) = far {
                    self.violates(rules::NEAR_ROUTES, node, what);
                }
            }
            Err(error) if works => {
                let what = format!("a request through it fails: {error}");
                self.violates(rules::GOOD_ROUTES, node, what);
            }
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use meshport_config::NodeId;
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::level::Account;
    use crate::network::Network;
    use crate::scenario::{Scenario, timeline};

    const ORIGIN: usize = 0;
    const FAR: usize = 3;

    /// Three nodes and an origin in one site, an origin in another, and events that affect it.
    fn book() -> (Book, Vec<Planned>) {
        let text = "description = \"Two\"\nduration-s = 60\n\
                    site = [\n{ name = \"fra\", nodes = 3, origins = 1 },\n\
                    { name = \"ams\", nodes = 1, origins = 1 },\n]\n\
                    path = [{ between = [\"fra\", \"ams\"], rtt-ms = 20 }]\n\
                    event = [\n{ at-s = 10, kill = \"ams-1\", for-s = 30 },\n\
                    { at-s = 10, isolate = \"ams\", for-s = 30 },\n]\n";
        let scenario = Scenario::parse(text).expect("a good scenario");
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let ids = (0..4).map(|at| NodeId::from_bytes([at; 32])).collect();
        let account = Account::new(&scenario, ids, &mut rng);
        let network = Network::new(&scenario, &mut rng).expect("a network");
        let mut book = Book::new(Scene::new(account, network, None), vec![PathBuf::new(); 4]);
        book.shown.iter_mut().for_each(|shown| shown.runs = true);
        (book, timeline::expand(&scenario, 1).expect("a plan"))
    }

    #[test]
    fn arrivals_and_departures_are_read_from_logs() {
        let (mut book, plan) = book();
        let happened: Vec<Duration> =
            plan.iter().map(|it| it.at).take_while(|at| *at < Duration::from_secs(40)).collect();
        let goes = |at, node, to: &str| {
            let (at, to) = (Duration::from_secs(at), Some(to.to_owned()));
            Change { at, node, to }
        };
        let changes = vec![
            goes(1, ORIGIN, "fra-1"),
            goes(1, 1, "ams-1"),
            goes(1, 2, "fra-1"),
            goes(2, 2, "ams-1"),
            goes(12, 2, "fra-1"),
        ];
        book.replay(&plan, &happened, changes);
        assert_eq!((book.scene.measures.choices.changed, book.scene.measures.faults.len()), (5, 2));
        for (fault, there) in book.scene.measures.faults.iter().zip([Some(FAR), None]) {
            let of = |node| (node, there.unwrap_or(node));
            assert_eq!(fault.moved, [(of(2), Duration::from_secs(2))].into(), "{}", fault.what);
            assert_eq!(fault.staying, [of(1)].into(), "{}", fault.what);
        }
        assert!(!book.serves(ORIGIN, FAR) && !book.connects(ORIGIN, FAR));
    }

    #[test]
    fn a_request_that_fails_or_is_answered_from_afar_is_noticed() {
        let (mut book, _) = book();
        let near = Line::Direct(book.scene.account.id(ORIGIN));
        (book.shown[2].line, book.shown[2].lasting) = (Some(near), Some(LASTING));
        let mut found = |answer: Result<&str, &str>| {
            book.scene.account.violations.clear();
            book.check_answer(2, answer.map(str::to_owned).map_err(str::to_owned));
            book.scene.account.violations.pop().map(|it| it.what).unwrap_or_default()
        };
        assert_eq!(found(Ok("fra-1")), "");
        assert!(found(Ok("ams-1")).contains("uses ams-1"), "{}", found(Ok("ams-1")));
        assert_eq!(found(Err("no")), "a request through it fails: no");
        book.shown[ORIGIN].runs = false;
        book.check_answer(2, Err("no".to_owned()));
        assert!(book.scene.account.violations.is_empty(), "nobody serves");
    }
}
