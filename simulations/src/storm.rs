//! Generates random small worlds with every kind of event, to find bugs.
//!
//! A world is the text of a scenario generated from its seed alone: a failing one can be kept,
//! read, repeated and reduced. Together the worlds use every key of an event, every lie and every
//! link preset; `events` draws the events.

use std::fmt::Write;

use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

mod events;

/// Quiet time at the end of a world, so that all nodes must agree, in virtual seconds.
const QUIET_S: u32 = 75;
/// One seed in this many gives a world that needs its relays.
const RELAYED_EVERY: u64 = 4;

/// One seed in this many gives a world in which a cut leaves every node a path.
const PARTED_EVERY: u64 = 8;
/// The remainder of those seeds; such a world is not [`relayed`] and has no revocation.
const PARTED: u64 = 6;

/// One seed in this many has a revocation.
const REVOKED_EVERY: u64 = 4;

/// Site of nodes that belong to no other site.
const AWAY: &str = "away";

/// The scenario of a seed.
pub fn scenario(seed: u64) -> String {
    match seed {
        _ if seed.is_multiple_of(RELAYED_EVERY) => relayed(seed),
        _ if seed % PARTED_EVERY == PARTED => parted(seed),
        _ => usual(seed),
    }
}

/// A world that is being generated.
struct Draft {
    rng: ChaCha8Rng,
    text: String,
    sites: Vec<Site>,
    /// A clock has been stepped. One step is enough: two steps back could exceed the age of
    /// credentials, which would not be a node's bug.
    stepped: bool,
    /// The lying node. It lies only once: every guarantee assumes a single liar.
    liar: Option<String>,
}

struct Site {
    name: String,
    nodes: u32,
    origins: u32,
    relays: u32,
    joining: u32,
    nat: bool,
}

impl Site {
    /// A site without a NAT whose nodes all start immediately.
    fn new(index: u32, nodes: u32, origins: u32, relays: u32) -> Self {
        Self { name: format!("s{index}"), nodes, origins, relays, joining: 0, nat: false }
    }
}

/// Origins everywhere, so that nearly all nodes reach one directly.
fn usual(seed: u64) -> String {
    let mut draft = Draft::new(seed ^ 0x0073_746f_726d);
    let sites: u32 = draft.rng.random_range(2..=5);
    let happens_s = draft.rng.random_range(60..=150);
    let about = format!("A random world of the hunt, seed {seed}");
    draft.head(&about, happens_s, &[0.0, 0.1, 1.0, 2.0], 0.3);
    for index in 0..sites {
        let nodes = draft.rng.random_range(2..=9);
        let origins = draft.rng.random_range(1..=2);
        let relays = draft.rng.random_range(0..=2);
        let mut site = Site::new(index, nodes, origins, relays);
        if draft.rng.random_ratio(1, 5) {
            site.joining = draft.rng.random_range(1..=4);
        }
        draft.site(site);
    }
    if draft.rng.random_ratio(1, 3) {
        let nodes = draft.rng.random_range(1..=4);
        draft.site(Site { nat: true, ..Site::new(sites, nodes, 0, 0) });
    }
    if draft.rng.random_ratio(1, 4) {
        draft.site(Site { name: AWAY.into(), ..Site::new(0, 0, 0, 0) });
    }
    for _ in 0..draft.rng.random_range(0..=2) {
        draft.path();
    }
    let latest = f64::from(happens_s) - 15.0;
    for _ in 0..draft.rng.random_range(1..=7) {
        let at = draft.rng.random_range(40.0..latest);
        draft.anything(at);
    }
    if seed % REVOKED_EVERY == 1 {
        let at = draft.rng.random_range(40.0..latest);
        draft.revocation(at);
    }
    draft.text
}

/// Origins only in the last site, and the path from the first site to it is cut: nodes in the first
/// need a relay in between. Some relays lie, and some lose their own path while they are used.
fn relayed(seed: u64) -> String {
    let mut draft = Draft::new(seed ^ 0x7265_6c61_7973);
    let sites: u32 = draft.rng.random_range(3..=4);
    let last = sites - 1;
    let happens_s = draft.rng.random_range(120..=160);
    let about = format!("A random world of the hunt that needs its relays, seed {seed}");
    draft.head(&about, happens_s, &[0.0, 0.1, 1.0], 0.5);
    for index in 0..sites {
        let between = index > 0 && index < last;
        let (origins, relays) = match between {
            true => (0, draft.rng.random_range(if sites == 3 { 2..=3 } else { 1..=3 })),
            false if index == last => (draft.rng.random_range(1..=2), 0),
            false => (0, draft.rng.random_range(0..=1)),
        };
        let nodes = draft.rng.random_range(3..=5);
        let nat = index == 0 && draft.rng.random_ratio(1, 4);
        draft.site(Site { nat, ..Site::new(index, nodes, origins, relays) });
    }
    if draft.rng.random_ratio(1, 4) {
        draft.path();
    }
    let at: f64 = draft.rng.random_range(40.0..55.0);
    let way = if draft.rng.random_ratio(1, 3) { "one-way = true\n" } else { "" };
    let long = draft.rng.random_range(40.0..60.0);
    draft.event(at, &format!("cut = [\"s0\", \"s{last}\"]\n{way}for-s = {long:.1}"));
    for _ in 0..draft.rng.random_range(1..=3) {
        let at = at + draft.rng.random_range(5.0..25.0);
        draft.of_relays(at, last);
    }
    for _ in 0..draft.rng.random_range(0..=2) {
        let at = draft.rng.random_range(40.0..f64::from(happens_s) - 15.0);
        draft.anything(at);
    }
    draft.text
}

/// Origins and relays in all sites but one, which is behind a NAT; one site has lossy access links.
/// Some round trips violate the triangle inequality, so relays are nearer than the direct path. A
/// single cut between two sites with their own origins leaves every node a path, so no request may
/// fail.
fn parted(seed: u64) -> String {
    let mut draft = Draft::new(seed ^ 0x0070_6172_7465_6400);
    let sites: u32 = draft.rng.random_range(3..=4);
    let about = format!("A random world of the hunt with a cut between origins, seed {seed}");
    let _ = write!(
        draft.text,
        "description = \"{about}\"\nduration-s = 200\nwarmup-s = 30\n\n[load]\n\
         sessions-per-s = 0.3\nhold-s = 20\nrequests-per-s = 0.5\nmay-fail = false\n"
    );
    let lossy = draft.rng.random_range(0..sites);
    for index in 0..sites {
        let nodes = draft.rng.random_range(4..=8);
        let [origins, relays] = [0; 2].map(|_| draft.rng.random_range(1..=2));
        let site = Site::new(index, nodes, origins, relays);
        draft.placed(site, (index == lossy).then_some("lossy-lte"));
    }
    let nodes = draft.rng.random_range(2..=5);
    draft.placed(Site { nat: true, ..Site::new(sites, nodes, 0, 0) }, None);
    for one in 0..=sites {
        for other in 0..one {
            let rtt = draft.rng.random_range(8..150);
            let _ = write!(
                draft.text,
                "\n[[path]]\nbetween = [\"s{one}\", \"s{other}\"]\nrtt-ms = {rtt}\n"
            );
        }
    }
    let at: f64 = draft.rng.random_range(50.0..80.0);
    let long: f64 = draft.rng.random_range(15.0..50.0);
    let one = draft.rng.random_range(0..sites);
    let other = (one + draft.rng.random_range(1..sites)) % sites;
    draft.event(at, &format!("cut = [\"s{one}\", \"s{other}\"]\nfor-s = {long:.1}"));
    draft.text
}

impl Draft {
    /// A site without coordinates, fully specified.
    fn placed(&mut self, site: Site, access: Option<&str>) {
        let Site { name, nodes, origins, relays, nat, .. } = &site;
        let _ = write!(
            self.text,
            "\n[[site]]\nname = \"{name}\"\nnodes = {nodes}\norigins = {origins}\n\
             relays = {relays}\nnat = {nat}\n"
        );
        if let Some(access) = access {
            let _ = writeln!(self.text, "access = \"{access}\"");
        }
        self.sites.push(site);
    }

    fn new(seed: u64) -> Self {
        let rng = ChaCha8Rng::seed_from_u64(seed);
        Self { rng, text: String::new(), sites: Vec::new(), stepped: false, liar: None }
    }

    fn head(&mut self, about: &str, happens_s: u32, losses: &[f64], sessions_per_s: f64) {
        let lasts = happens_s + QUIET_S + 30;
        let loss = losses.choose(&mut self.rng).expect("not empty");
        let _ = write!(
            self.text,
            "description = \"{about}\"\nduration-s = {lasts}\nloss-percent = {loss}\n\
             warmup-s = 30\n"
        );
        if self.rng.random_ratio(1, 6) {
            self.text.push_str("known-at-start = true\n");
        }
        let arrival = ["poisson", "poisson", "regular", "bursts"].choose(&mut self.rng);
        let _ = write!(
            self.text,
            "\n[load]\nsessions-per-s = {sessions_per_s}\narrival = \"{}\"\nhold-s = 20\n\
             requests-per-s = 0.2\n",
            arrival.expect("not empty")
        );
    }

    fn site(&mut self, site: Site) {
        let Site { name, nodes, origins, relays, joining, nat } = &site;
        let _ = write!(
            self.text,
            "\n[[site]]\nname = \"{name}\"\nnodes = {nodes}\norigins = {origins}\n\
             relays = {relays}\nat = [{:.1}, {:.1}]\n",
            self.rng.random_range(-50.0..60.0),
            self.rng.random_range(-120.0..140.0),
        );
        if *joining > 0 {
            let _ = writeln!(self.text, "joining = {joining}");
        }
        if *nat {
            let timeout = [20, 30, 60, 120].choose(&mut self.rng).expect("not empty");
            let _ = write!(self.text, "nat = true\nnat-timeout-s = {timeout}\n");
        }
        if self.rng.random_ratio(if *nat { 2 } else { 1 }, 8) {
            let access = events::preset(&mut self.rng);
            let _ = writeln!(self.text, "access = \"{access}\"");
        }
        if self.rng.random_ratio(1, 8) {
            let settings = events::settings(&mut self.rng);
            let _ = writeln!(self.text, "settings = {settings}");
        }
        self.sites.push(site);
    }

    /// A path between two sites whose latency differs from the map.
    fn path(&mut self) {
        let (a, b) = self.two_sites();
        let how = events::quality(&mut self.rng);
        let how = how.replace(", ", "\n");
        let _ = write!(self.text, "\n[[path]]\nbetween = [\"{a}\", \"{b}\"]\n{how}\n");
    }

    fn event(&mut self, at: f64, what: &str) {
        let _ = writeln!(self.text, "\n[[event]]\nat-s = {at:.1}\n{what}");
    }

    /// Two sites, for an event on the path between them.
    fn two_sites(&mut self) -> (String, String) {
        let two: Vec<&Site> = self.sites.choose_multiple(&mut self.rng, 2).collect();
        (two[0].name.clone(), two[1].name.clone())
    }

    /// A site with nodes that satisfies `holds`.
    fn site_with(&mut self, holds: impl Fn(&Site) -> bool) -> Option<&Site> {
        let good: Vec<usize> = (0..self.sites.len()).filter(|at| holds(&self.sites[*at])).collect();
        good.choose(&mut self.rng).map(|at| &self.sites[*at])
    }

    /// The name of a node that starts immediately and is not behind a NAT.
    fn node(&mut self) -> String {
        let number: u32 = self.rng.random();
        let site = self.site_with(|site| site.nodes > 0 && !site.nat).expect("there are two");
        format!("{}-{}", site.name, number % site.nodes + 1)
    }

    /// The name of a node with an instance.
    fn origin(&mut self) -> String {
        let number: u32 = self.rng.random();
        let site = self.site_with(|site| site.origins > 0).expect("there is one");
        format!("{}-{}", site.name, number % site.origins + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Scenario;

    #[test]
    fn every_world_is_a_good_scenario() {
        for seed in 0..400 {
            let text = scenario(seed);
            if let Err(error) = Scenario::parse(&text) {
                panic!("seed {seed}: {error}\n{text}");
            }
        }
    }

    /// An event that is never drawn is never tested: together the worlds of the seeds with planted
    /// bugs use all events.
    #[test]
    fn all_worlds_together_have_every_event_and_every_lie() {
        let all: String = (1..=200).map(scenario).collect();
        let events = [
            "kill",
            "hang",
            "unready",
            "recover",
            "crash",
            "restart",
            "rolling-restart",
            "join",
            "leave",
            "cut",
            "heal",
            "isolate",
            "degrade",
            "restore",
            "flap",
            "clock-step",
            "starve",
            "rebind",
            "roam",
            "configure",
            "lie",
            "revoke",
            "through",
            "without-state",
            "one-way",
            "stall-ms",
            "over-s",
            "times",
            "nat",
            "joining",
            "access",
            "rate-mbit",
            "queue-ms",
            "duplicate-percent",
            "known-at-start",
            "may-fail",
        ];
        for key in events {
            let said = |line: &str| {
                line.split([' ', ',', '{']).any(|word| word == key) && line.contains('=')
            };
            assert!(all.lines().any(said), "no world says {key}");
        }
        let lies = ["ready", "garbage", "replay", "silent", "relay", "near", "accuse"];
        for how in lies {
            assert!(all.contains(&format!("how = \"{how}\"")), "nobody lies by {how}");
        }
        for preset in meshport_demo::wan::link::PRESETS {
            assert!(all.contains(&format!("\"{preset}\"")), "no link is {preset}");
        }
    }
}
