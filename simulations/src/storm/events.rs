//! Events of a random world: a snippet of a scenario for each kind.

use rand::Rng;
use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;

use super::{AWAY, Draft, Site};

/// All kinds of lies. Worlds that need their relays have another one: see [`Draft::of_relays`].
const LIES: [&str; 7] = ["ready", "garbage", "replay", "silent", "relay", "near", "accuse"];

/// The farthest jump of a clock: 400 days, less than the age of credentials when a world begins.
const MAX_JUMP_S: i64 = 400 * 24 * 3600;

impl Draft {
    /// Any event, anywhere.
    pub(super) fn anything(&mut self, at: f64) {
        match self.rng.random_range(0..10) {
            0..=2 => self.of_nodes(at),
            3..=5 => self.of_paths(at),
            6..=7 => self.of_operators(at),
            _ => self.of_machines(at),
        }
    }

    /// How far a clock jumps, in seconds: forwards or back, each order of magnitude equally often.
    fn jump(&mut self) -> i64 {
        let order: u32 = self.rng.random_range(0..=7);
        let by_s = (self.rng.random_range(1..=9) * 10_i64.pow(order)).min(MAX_JUMP_S);
        if self.rng.random_ratio(1, 2) { by_s } else { -by_s }
    }

    fn long(&mut self) -> f64 {
        self.rng.random_range(5.0..25.0)
    }

    /// Whether a failure is repaired before the end; otherwise the quiet time begins without the
    /// repair.
    fn is_mended(&mut self) -> bool {
        self.rng.random_ratio(2, 3)
    }

    /// Instances and processes fail; most recover after a while.
    fn of_nodes(&mut self, at: f64) {
        let long = self.long();
        let back = at + long;
        match self.rng.random_range(0..9) {
            0 => self.event(at, &format!("kill = \"all origins any\"\nfor-s = {long:.1}")),
            1 => self.event(at, &format!("hang = \"all origins any\"\nfor-s = {long:.1}")),
            2 => self.event(at, &format!("unready = \"all origins any\"\nfor-s = {long:.1}")),
            3 => self.event(at, &format!("crash = \"all any\"\nfor-s = {long:.1}")),
            4 => {
                let what =
                    format!("crash = \"all any 2\"\nfor-s = {long:.1}\nwithout-state = true");
                self.event(at, &what);
            }
            5 => {
                let site = self.site_with(|site| site.nodes > 2).map(|site| site.name.clone());
                let target = site.unwrap_or_else(|| "all".into());
                let what = format!("crash = \"{target}\"\nover-s = 10\nfor-s = {long:.1}");
                self.event(at, &what);
            }
            6 => {
                let (what, origin) = (["kill", "hang", "unready"], self.origin());
                let what = what.choose(&mut self.rng).expect("not empty");
                self.event(at, &format!("{what} = \"{origin}\""));
                if self.is_mended() {
                    self.event(back, &format!("recover = \"{origin}\""));
                }
            }
            7 => {
                let node = self.node();
                let state = ["", "\nwithout-state = true"].choose(&mut self.rng);
                let state = state.expect("not empty");
                self.event(at, &format!("crash = \"{node}\""));
                if self.is_mended() {
                    self.event(back, &format!("restart = \"{node}\"{state}"));
                }
            }
            _ => {
                let what = "kill = \"all origins any\"\nfor-s = 2\ntimes = 4\nevery-s = 5";
                self.event(at, what);
            }
        }
    }

    /// Paths between sites, and between two nodes, are cut or get worse, most for a while.
    fn of_paths(&mut self, at: f64) {
        let long = self.long();
        let back = at + long;
        let (a, b) = self.two_sites();
        match self.rng.random_range(0..9) {
            0 => self.event(at, &format!("cut = [\"{a}\", \"{b}\"]\nfor-s = {long:.1}")),
            1 => {
                let what = format!("cut = [\"{a}\", \"{b}\"]\none-way = true\nfor-s = {long:.1}");
                self.event(at, &what);
            }
            2 => self.event(at, &format!("isolate = \"{a}\"\nfor-s = {long:.1}")),
            3 => {
                let what = format!("flap = [\"{a}\", \"{b}\"]\nperiod-s = 2\nfor-s = {long:.1}");
                self.event(at, &what);
            }
            4 => {
                let (a, b) = match self.rng.random_ratio(1, 3) {
                    true => (a, b),
                    false => (self.node(), self.origin()),
                };
                self.event(at, &format!("cut = [\"{a}\", \"{b}\"]"));
                if self.is_mended() {
                    self.event(back, &format!("heal = [\"{a}\", \"{b}\"]"));
                }
            }
            5..=6 => {
                let how = quality(&mut self.rng);
                let what = format!(
                    "degrade = {{ between = [\"{a}\", \"{b}\"], {how} }}\nfor-s = {long:.1}"
                );
                self.event(at, &what);
            }
            7 => {
                let what =
                    format!("degrade = {{ between = [\"{a}\", \"{b}\"], preset = \"satellite\" }}");
                self.event(at, &what);
                self.event(back, &format!("restore = [\"{a}\", \"{b}\"]"));
            }
            _ => {
                let what = format!(
                    "degrade = {{ between = [\"{a}\", \"{b}\"], loss-percent = 20, \
                     loss-burst-ms = 80 }}\nfor-s = {long:.1}"
                );
                self.event(at, &what);
            }
        }
    }

    /// Operations on nodes.
    fn of_operators(&mut self, at: f64) {
        let site = |site: &Site| site.nodes > 0;
        let here = self.site_with(site).expect("there are sites").name.clone();
        match self.rng.random_range(0..6) {
            0 => {
                let state = ["", "\nwithout-state = true"].choose(&mut self.rng);
                let state = state.expect("not empty");
                self.event(at, &format!("rolling-restart = \"{here}\"\ngap-s = 3{state}"));
            }
            1 => self.event(at, "leave = \"all any\""),
            2..=3 => match self.site_with(|site| site.joining > 0) {
                Some(site) => {
                    let what = format!("join = \"{}\"\nover-s = 5", site.name);
                    self.event(at, &what);
                }
                None => self.configuration(at, &here),
            },
            _ => self.configuration(at, &here),
        }
    }

    fn configuration(&mut self, at: f64, site: &str) {
        // Not from the start: a later change of only the policy would leave a list without effect.
        let pinned = for_service("policy = \"pinned\", pinned = [\"s1-1\", \"s0-1\"]");
        let drawn = settings(&mut self.rng);
        let settings = if self.rng.random_ratio(1, 8) { pinned } else { drawn };
        let target = if self.rng.random() { "all" } else { site };
        self.event(at, &format!("configure = \"{target}\"\nsettings = {settings}"));
    }

    /// Machines that are stopped, move, get another address or another time, or lie.
    fn of_machines(&mut self, at: f64) {
        let long = self.long();
        let site = |site: &Site| site.nodes > 0;
        let here = self.site_with(site).expect("there are sites").name.clone();
        match self.rng.random_range(0..7) {
            0 => self.event(at, &format!("starve = \"{here}\"\nfor-s = {long:.1}")),
            1 => {
                // A single stall, as of a machine that sleeps.
                let stall_ms = self.rng.random_range(500..20_000);
                let what = format!("starve = \"{here} any\"\nstall-ms = {stall_ms}\nfor-s = 0.4");
                self.event(at, &what);
            }
            2 => self.roaming(at, &here),
            3 => match self.site_with(|site| site.nat) {
                Some(site) => {
                    let what = format!("rebind = \"{}\"", site.name);
                    self.event(at, &what);
                }
                None => self.roaming(at, &here),
            },
            4 if !self.stepped => {
                self.stepped = true;
                let by_s = self.jump();
                self.event(at, &format!("clock-step = \"{here}\"\nby-s = {by_s}"));
            }
            _ => {
                let liar = self.liar();
                let how = LIES.choose(&mut self.rng).expect("not empty");
                self.event(at, &format!("lie = \"{liar}\"\nhow = \"{how}\"\nfor-s = {long:.1}"));
            }
        }
    }

    fn roaming(&mut self, at: f64, from: &str) {
        let away = |site: &Site| site.name == AWAY;
        let far = self.site_with(away).map(|site| site.name.clone());
        let to = far.unwrap_or_else(|| self.two_sites().0);
        let back = at + self.long();
        let number = 1;
        let node = format!("{from}-{number}");
        self.event(at, &format!("roam = \"{node}\"\nto = \"{to}\""));
        if self.rng.random() {
            self.event(back, &format!("roam = \"{node}\"\nto = \"{from}\""));
        }
    }

    fn liar(&mut self) -> String {
        let drawn = self.node();
        self.liar.get_or_insert(drawn).clone()
    }

    /// The authority revokes a credential; some other node learns of it first.
    pub(super) fn revocation(&mut self, at: f64) {
        let through = match self.rng.random() {
            true => format!("\nthrough = \"{}\"", self.node()),
            false => String::new(),
        };
        self.event(at, &format!("revoke = \"all any\"{through}"));
    }

    /// Events of relays in use.
    pub(super) fn of_relays(&mut self, at: f64, last: u32) {
        let between = self.rng.random_range(1..last);
        let long = self.rng.random_range(8.0..25.0);
        let what = match self.rng.random_range(0..6) {
            0 | 1 => format!("lie = \"all relays any\"\nhow = \"relay\"\nfor-s = {long:.1}"),
            2 => format!("cut = [\"s{between}\", \"s{last}\"]\nfor-s = {long:.1}"),
            3 => format!("cut = [\"s{between}\", \"s{last}\"]\none-way = true\nfor-s = {long:.1}"),
            4 => format!(
                "degrade = {{ between = [\"s{between}\", \"s{last}\"], preset = \"lossy-lte\" }}\n\
                 for-s = {long:.1}"
            ),
            _ => format!("crash = \"all relays any\"\nfor-s = {long:.1}"),
        };
        self.event(at, &what);
    }
}

/// The name of some preset of links.
pub(super) fn preset(rng: &mut ChaCha8Rng) -> &'static str {
    meshport_demo::wan::link::PRESETS.choose(rng).expect("not empty")
}

/// The quality of a path, as keys of an inline table.
pub(super) fn quality(rng: &mut ChaCha8Rng) -> String {
    let preset = preset(rng);
    match rng.random_range(0..5) {
        0 => {
            format!("rtt-ms = {}, jitter-ms = {}", rng.random_range(5..200), rng.random_range(1..9))
        }
        1 => format!("rate-mbit = {}, queue-ms = 100", rng.random_range(2..20)),
        2 => "duplicate-percent = 5, jitter-ms = 3, jitter = \"uniform\"".to_owned(),
        _ => format!("preset = \"{preset}\""),
    }
}

/// Settings of a site, from the start or changed by an operator: an inline table.
pub(super) fn settings(rng: &mut ChaCha8Rng) -> String {
    let all = [
        "policy = \"spread\"",
        "drift-percent = 50",
        "drift-percent = 0",
        "hedge = false",
        "band = \"20ms\"",
        "health = { interval = \"3s\" }",
        "fallback = [\"k8s.example.com:6443\"]",
        "hold = \"0s\", connect-timeout = \"3s\"",
    ];
    for_service(all.choose(rng).expect("not empty"))
}

fn for_service(settings: &str) -> String {
    format!("{{ service = {{ kube-apiserver = {{ {settings} }} }} }}")
}
