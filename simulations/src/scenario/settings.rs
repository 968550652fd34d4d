//! Settings under test: any key of the daemon's own settings file, read by the daemon's own parser.

use meshport_config::{Problem, ServiceName, Settings};
use toml::Table;

use super::Scenario;
use crate::Error;

/// The settings of all nodes, parsed and merged.
#[derive(Debug, Clone)]
pub struct Overrides {
    /// For each site: the settings with which its nodes start.
    by_site: Vec<Settings>,
    /// For each event with `configure`, in order: the settings of each site from then on.
    by_event: Vec<Vec<Settings>>,
}

impl Overrides {
    /// Reads all settings of a scenario.
    pub fn new(scenario: &Scenario) -> Result<Self, Error> {
        let merged = |site: &super::Site| {
            let mut table = scenario.settings.clone();
            merge(&mut table, &site.settings);
            table
        };
        let parse_all = |over: &Table| -> Result<Vec<Settings>, Error> {
            let sites = scenario.sites.iter();
            sites
                .map(|site| {
                    let mut table = merged(site);
                    merge(&mut table, over);
                    parse(table, site.name.as_str())
                })
                .collect()
        };
        let configured = scenario.events.iter().filter(|event| event.configure.is_some());
        Ok(Self {
            by_site: parse_all(&Table::new())?,
            by_event: configured
                .map(|event| parse_all(event.settings.as_ref().unwrap_or(&Table::new())))
                .collect::<Result<_, Error>>()?,
        })
    }

    /// Whether this holds for the nodes of any site, at any time.
    pub(super) fn any(&self, is_so: impl Fn(&Settings) -> bool) -> bool {
        self.by_event.iter().flatten().chain(&self.by_site).any(is_so)
    }

    /// The settings with which the nodes of a site start.
    pub fn site(&self, site: usize) -> &Settings {
        &self.by_site[site]
    }

    /// The settings of the nodes of a site after a `configure`.
    pub fn event(&self, event: usize, site: usize) -> &Settings {
        &self.by_event[event][site]
    }
}

fn parse(mut table: Table, site: &str) -> Result<Settings, Error> {
    // The scenario defines the site; each node names it in its own file.
    table.insert("site".into(), site.into());
    let text = table.to_string();
    meshport_config::parse(&text).map_err(|problems| Error::Scenario(explain(&problems)))
}

fn explain(problems: &[Problem]) -> String {
    let one = |problem: &Problem| {
        let near = problem.nearest.as_ref();
        let near = near.map(|near| format!("; did you mean \"{near}\"?")).unwrap_or_default();
        let (key, found, expected) = (&problem.key, &problem.found, &problem.expected);
        let last = key.rsplit('.').next().unwrap_or(key);
        format!("\"{last}\" in settings.{key}: {found}, expected {expected}{near}")
    };
    problems.iter().map(one).collect::<Vec<_>>().join("\n")
}

/// Merges one table over another.
pub(crate) fn merge(into: &mut Table, over: &Table) {
    for (key, value) in over {
        match (into.get_mut(key), value) {
            (Some(toml::Value::Table(below)), toml::Value::Table(above)) => merge(below, above),
            _ => {
                into.insert(key.clone(), value.clone());
            }
        }
    }
}

/// The service that every simulated client uses.
pub fn service() -> ServiceName {
    ServiceName::kube_apiserver()
}
