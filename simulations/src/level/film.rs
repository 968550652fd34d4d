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
        let Scene { now, film: place, .. } = self.scene_mut();
        film.push(*now, &frame);
        *place = Some(film);
    }

    /// How it is now.
    fn frame(&self, film: &Film) -> Frame {
        let (account, network) = (self.account(), &self.scene().network);
        let mut sites = vec![SiteFrame::default(); film.sites.len()];
        let mut flows: BTreeMap<(usize, usize, Option<usize>), (usize, usize)> = BTreeMap::new();
        for at in (0..account.len()).filter(|at| self.runs(*at)) {
            let Some(from) = film.place(network.site(at)) else { continue };
            sites[from].running += 1;
            sites[from].ready += usize::from(account.instances[at] == Some(Instance::Ready));
            let line = self.first_line(at);
            let way = line.as_ref().and_then(|line| account.way(line));
            let Some((line, way)) = line.zip(way) else {
                // Targets outside the mesh are not on the map.
                sites[from].nowhere += usize::from(line.is_none());
                continue;
            };
            let Some(to) = film.place(network.site(way.origin)) else { continue };
            let via = way.is_relayed().then(|| film.place(network.site(way.hop))).flatten();
            let (nodes, failing) = flows.entry((from, to, via)).or_default();
            *nodes += 1;
            *failing += usize::from(!self.works(at, &line));
        }
        let flow = |((from, to, via), (nodes, failing))| Flow { from, to, via, nodes, failing };
        let changed = ways(film, network, |it| it.is_changed);
        Frame { sites, flows: flows.into_iter().map(flow).collect(), ways: changed }
    }
}

/// The film of a scenario, before its first frame.
pub(crate) fn film(scenario: &Scenario, network: &Network) -> Film {
    let nodes: Vec<_> = scenario.nodes().collect();
    let site = |place: usize| Site {
        place,
        name: scenario.sites[place].name.to_string(),
        nodes: nodes.iter().filter(|it| it.site == place).count(),
        origins: nodes.iter().filter(|it| it.site == place && scenario.hosts(**it)).count(),
    };
    let mut film = Film::new((0..scenario.sites.len()).map(site).collect());
    film.ways = ways(&film, network, |_| true);
    film
}

/// The ways of the film that fit, as they are now.
fn ways(film: &Film, network: &Network, fits: impl Fn(&Between) -> bool) -> Vec<SitePath> {
    let mut ways = Vec::new();
    for (from, a) in film.sites.iter().enumerate() {
        for (to, b) in film.sites.iter().enumerate().skip(from + 1) {
            let between = network.between_sites(a.place, b.place);
            if fits(&between) {
                let rtt_ms = between.rtt.map(in_ms);
                ways.push(SitePath { from, to, rtt_ms, loss_percent: between.loss_percent });
            }
        }
    }
    ways
}

/// Rounded to a tenth, finer than any map.
fn in_ms(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e4).round() / 10.0
}
