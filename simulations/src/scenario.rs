//! What a run is made from: a TOML file, strictly read.
//!
//! ```toml
//! description = "Three sites, the nearest origin dies and comes back"
//! duration-s = 120
//!
//! [[site]]
//! name = "fra"
//! nodes = 8
//! origins = 1          # the first nodes of the site host an instance
//!
//! [[path]]
//! between = ["fra", "ams"]
//! rtt-ms = 9.0
//!
//! [[event]]
//! at-s = 40
//! instance = "fra-1"
//! becomes = "down"     # ready, unready, hung, down
//! ```
//!
//! Other events: `crash = "fra-2"`, `restart = "fra-2"`, `cut = ["fra", "ams"]`,
//! `heal = ["fra", "ams"]`. Nodes are named after their site and number, from 1.

use std::collections::BTreeSet;
use std::time::Duration;

use meshport_config::SiteName;
use serde::Deserialize;

use crate::Error;
pub use crate::instance::Instance;

/// Nodes of one run.
pub const MAX_NODES: usize = 10_000;

/// A whole scenario.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Scenario {
    /// What it is about, in a sentence.
    pub description: String,
    /// How long it lasts, in virtual seconds.
    pub duration_s: f64,
    /// Loss on paths between sites that do not say otherwise, in percent.
    #[serde(default)]
    pub loss_percent: f64,
    /// Round-trip time between sites without a path of their own, in milliseconds.
    #[serde(default = "default_rtt_ms")]
    pub default_rtt_ms: f64,
    /// The sites.
    #[serde(rename = "site")]
    pub sites: Vec<Site>,
    /// The paths between them.
    #[serde(rename = "path", default)]
    pub paths: Vec<SitePath>,
    /// What happens, in any order.
    #[serde(rename = "event", default)]
    pub events: Vec<Event>,
}

/// A place with its nodes.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Site {
    /// Its name.
    pub name: SiteName,
    /// How many nodes it has.
    pub nodes: usize,
    /// How many of them host an instance.
    #[serde(default)]
    pub origins: usize,
    /// Round-trip time between its nodes, in milliseconds.
    #[serde(default = "default_inside_rtt_ms")]
    pub rtt_ms: f64,
}

/// A path between two sites, the same both ways.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SitePath {
    /// The two sites.
    pub between: [SiteName; 2],
    /// Undisturbed round-trip time, in milliseconds.
    pub rtt_ms: f64,
    /// Mean of the jitter added in each direction, in milliseconds (exponential).
    #[serde(default)]
    pub jitter_ms: f64,
    /// Loss in each direction, in percent; the scenario's own if absent.
    pub loss_percent: Option<f64>,
}

/// Something that happens.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Event {
    /// When, in virtual seconds.
    pub at_s: f64,
    /// An instance changes: the name of its node...
    pub instance: Option<String>,
    /// ...and what it becomes.
    pub becomes: Option<Instance>,
    /// A node's process dies.
    pub crash: Option<String>,
    /// A crashed node's process starts again, with its state folder.
    pub restart: Option<String>,
    /// Nothing passes between two sites from here on.
    pub cut: Option<[SiteName; 2]>,
    /// Everything passes between two sites again.
    pub heal: Option<[SiteName; 2]>,
}

/// An event in a form that cannot be wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Happening {
    /// The instance on this node becomes this.
    Instance(usize, Instance),
    /// This node's process dies.
    Crash(usize),
    /// This node's process starts again.
    Restart(usize),
    /// The paths between two sites, by their places in the scenario, go down or up.
    Path(usize, usize, bool),
}

fn default_rtt_ms() -> f64 {
    60.0
}

fn default_inside_rtt_ms() -> f64 {
    0.3
}

impl Scenario {
    /// Reads a scenario and checks it against itself.
    ///
    /// # Errors
    /// [`Error::Syntax`] with line and key, [`Error::Scenario`] for contradictions.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let scenario: Self = toml::from_str(text)?;
        scenario.check()?;
        Ok(scenario)
    }

    /// How long it lasts.
    pub fn duration(&self) -> Duration {
        Duration::from_secs_f64(self.duration_s)
    }

    /// The nodes: site's place in the list, and number within the site from 1.
    pub fn nodes(&self) -> impl Iterator<Item = (usize, usize)> {
        let sites = self.sites.iter().enumerate();
        sites.flat_map(|(site, config)| (1..=config.nodes).map(move |number| (site, number)))
    }

    /// The events in order of time.
    ///
    /// # Errors
    /// [`Error::Scenario`] for an event that names something unknown, or more than one thing.
    pub fn happenings(&self) -> Result<Vec<(Duration, String, Happening)>, Error> {
        let mut all = Vec::new();
        for event in &self.events {
            let at = seconds(event.at_s, "event at-s")?;
            let (words, happening) = self.happening(event)?;
            all.push((at, words, happening));
        }
        all.sort_by_key(|(at, ..)| *at);
        Ok(all)
    }

    fn happening(&self, event: &Event) -> Result<(String, Happening), Error> {
        let node = |name: &str| {
            self.nodes()
                .position(|(site, number)| format!("{}-{number}", self.sites[site].name) == name)
                .ok_or_else(|| Error::Scenario(format!("event: there is no node \"{name}\"")))
        };
        match (event.instance.as_ref(), event.becomes, &event.crash, &event.restart) {
            (Some(name), Some(becomes), None, None)
                if event.cut.is_none() && event.heal.is_none() =>
            {
                let words = format!("instance on {name} becomes {becomes:?}").to_lowercase();
                return Ok((words, Happening::Instance(node(name)?, becomes)));
            }
            (None, None, Some(name), None) if event.cut.is_none() && event.heal.is_none() => {
                return Ok((format!("{name} crashes"), Happening::Crash(node(name)?)));
            }
            (None, None, None, Some(name)) if event.cut.is_none() && event.heal.is_none() => {
                return Ok((format!("{name} restarts"), Happening::Restart(node(name)?)));
            }
            (None, None, None, None) => {}
            _ => return Err(one_thing(event)),
        }
        let (pair, up, word) = match (&event.cut, &event.heal) {
            (Some(pair), None) => (pair, false, "cut"),
            (None, Some(pair)) => (pair, true, "healed"),
            _ => return Err(one_thing(event)),
        };
        let [a, b] = pair;
        let words = format!("{a} and {b} are {word}");
        Ok((words, Happening::Path(self.site(a)?, self.site(b)?, up)))
    }

    /// A site's place in the list.
    ///
    /// # Errors
    /// [`Error::Scenario`] if there is none of that name.
    pub fn site(&self, name: &SiteName) -> Result<usize, Error> {
        let place = self.sites.iter().position(|site| site.name == *name);
        place.ok_or_else(|| Error::Scenario(format!("there is no site \"{name}\"")))
    }

    fn check(&self) -> Result<(), Error> {
        seconds(self.duration_s, "duration-s")?;
        percent(self.loss_percent, "loss-percent")?;
        milliseconds(self.default_rtt_ms, "default-rtt-ms")?;
        let mut names = BTreeSet::new();
        for site in &self.sites {
            if !names.insert(&site.name) {
                return Err(Error::Scenario(format!("two sites are named \"{}\"", site.name)));
            }
            if site.origins > site.nodes {
                let text = format!("site \"{}\" has more origins than nodes", site.name);
                return Err(Error::Scenario(text));
            }
            milliseconds(site.rtt_ms, "site rtt-ms")?;
        }
        let nodes = self.nodes().count();
        if nodes == 0 || nodes > MAX_NODES {
            return Err(Error::Scenario(format!("{nodes} nodes; 1 to {MAX_NODES} are possible")));
        }
        for path in &self.paths {
            self.site(&path.between[0])?;
            self.site(&path.between[1])?;
            milliseconds(path.rtt_ms, "path rtt-ms")?;
            milliseconds(path.jitter_ms, "path jitter-ms")?;
            percent(path.loss_percent.unwrap_or_default(), "path loss-percent")?;
        }
        self.happenings().map(|_| ())
    }
}

fn one_thing(event: &Event) -> Error {
    Error::Scenario(format!(
        "the event at {} s must say exactly one thing: instance with becomes, crash, restart, cut \
         or heal",
        event.at_s
    ))
}

fn seconds(value: f64, key: &str) -> Result<Duration, Error> {
    let wrong = || Error::Scenario(format!("{key} = {value}: expected 0 to 1000000 seconds"));
    if !(0.0..=1e6).contains(&value) {
        return Err(wrong());
    }
    Duration::try_from_secs_f64(value).map_err(|_| wrong())
}

fn milliseconds(value: f64, key: &str) -> Result<(), Error> {
    if (0.0..=60_000.0).contains(&value) {
        return Ok(());
    }
    Err(Error::Scenario(format!("{key} = {value}: expected 0 to 60000 milliseconds")))
}

fn percent(value: f64, key: &str) -> Result<(), Error> {
    if (0.0..=100.0).contains(&value) {
        return Ok(());
    }
    Err(Error::Scenario(format!("{key} = {value}: expected 0 to 100")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = r#"
        description = "two sites"
        duration-s = 10
        [[site]]
        name = "fra"
        nodes = 2
        origins = 1
        [[site]]
        name = "ams"
        nodes = 1
        [[path]]
        between = ["fra", "ams"]
        rtt-ms = 9.0
    "#;

    fn with(event: &str) -> Result<Scenario, Error> {
        Scenario::parse(&format!("{SMALL}\n[[event]]\n{event}"))
    }

    #[test]
    fn reads_sites_and_events_in_order() {
        let scenario =
            with("at-s = 5\ncut = [\"fra\", \"ams\"]\n[[event]]\nat-s = 1\ncrash = \"fra-2\"")
                .expect("a good scenario");
        let all = scenario.happenings().expect("checked already");
        let kinds: Vec<_> = all.into_iter().map(|(_, _, happening)| happening).collect();
        assert_eq!(kinds, [Happening::Crash(1), Happening::Path(0, 1, false)]);
    }

    #[test]
    fn refuses_what_it_does_not_know() {
        for (event, word) in [
            ("at-s = 1\ncrash = \"fra-9\"", "fra-9"),
            ("at-s = 1\ncut = [\"fra\", \"oslo\"]", "oslo"),
            ("at-s = 1", "exactly one thing"),
            ("at-s = 1\ncrash = \"fra-1\"\nrestart = \"fra-1\"", "exactly one thing"),
            ("at-s = -1\ncrash = \"fra-1\"", "at-s"),
            ("at-s = 1\nexplode = true", "explode"),
        ] {
            let error = with(event).expect_err("not a scenario").to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
