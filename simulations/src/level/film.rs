//! Takes the frames of a [`Film`], by the scenario's ground truth.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Level, Scene};
use crate::instance::Instance;
use crate::network::{Between, Network};
use crate::report::film::{Film, Flow, Frame, Site, SiteFrame, SitePath};
use crate::scenario::Scenario;

impl<L: Level> Camera for L {}

/// See the module's description.
pub(crate) trait Camera: Level {
    /// Takes a frame, if the run is filmed.
    fn film(&mut self) {
        let Some(mut film) = self.scene_mut().film.take() else { return };
        let frame = self.frame(&film);
        let Scene { now, film: taken, .. } = self.scene_mut();
        film.push(*now, &frame);
        *taken = Some(film);
    }

    /// The current state.
    fn frame(&self, film: &Film) -> Frame {
        let (account, network) = (self.account(), &self.scene().network);
        let mut sites = vec![SiteFrame::default(); film.sites.len()];
        let mut flows: BTreeMap<(usize, usize, Option<usize>), (usize, usize)> = BTreeMap::new();
        for at in (0..account.len()).filter(|at| self.runs(*at)) {
            let Some(from) = film.index(network.site(at)) else { continue };
            sites[from].running += 1;
            sites[from].ready += usize::from(account.instances[at] == Some(Instance::Ready));
            let line = self.first_line(at);
            let way = line.as_ref().and_then(|line| account.way(line));
            let Some((line, way)) = line.zip(way) else {
                // Targets outside the mesh are not on the map.
                sites[from].nowhere += usize::from(line.is_none());
                continue;
            };
            let Some(to) = film.index(network.site(way.origin)) else { continue };
            let via = way.is_relayed().then(|| film.index(network.site(way.hop))).flatten();
            let (nodes, failing) = flows.entry((from, to, via)).or_default();
            *nodes += 1;
            *failing += usize::from(!self.works(at, &line));
        }
        let flow = |((from, to, via), (nodes, failing))| Flow { from, to, via, nodes, failing };
        let changed = paths(film, network, |it| it.is_changed);
        Frame { sites, flows: flows.into_iter().map(flow).collect(), paths: changed }
    }
}

/// The film of a scenario, before its first frame.
pub(crate) fn film(scenario: &Scenario, network: &Network) -> Film {
    let nodes: Vec<_> = scenario.nodes().collect();
    let site = |index: usize| Site {
        index,
        name: scenario.sites[index].name.to_string(),
        nodes: nodes.iter().filter(|it| it.site == index).count(),
        origins: nodes.iter().filter(|it| it.site == index && scenario.hosts(**it)).count(),
    };
    let mut film = Film::new((0..scenario.sites.len()).map(site).collect());
    film.paths = paths(&film, network, |_| true);
    film
}

/// The matching paths of the film, in their current state.
fn paths(film: &Film, network: &Network, fits: impl Fn(&Between) -> bool) -> Vec<SitePath> {
    let mut found = Vec::new();
    for (from, a) in film.sites.iter().enumerate() {
        for (to, b) in film.sites.iter().enumerate().skip(from + 1) {
            let between = network.between_sites(a.index, b.index);
            if fits(&between) {
                let rtt_ms = between.rtt.map(in_ms);
                found.push(SitePath { from, to, rtt_ms, loss_percent: between.loss_percent });
            }
        }
    }
    found
}

/// Rounded to a tenth, finer than any map.
fn in_ms(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e4).round() / 10.0
}
