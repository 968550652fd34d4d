//! Views of each path to the instances of a service.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Instant;

use meshport_config::{NodeId, Role, ServiceName};
use meshport_discovery::{Entry, Liveness, OriginState, PathState};

use super::{MAX_ORIGINS, NodeCore, Service};
use crate::relay::{Near, Offer};
use crate::route::{Line, OriginView, PathView};

impl NodeCore {
    /// The direct path to each instance of a service.
    pub(super) fn direct_views(&self, service: &ServiceName) -> Vec<OriginView> {
        let own = self.own_state(service).map(|state| OriginView {
            path: PathView::Own,
            ..OriginView::of_node(self.me, self.name.to_string(), self.site.clone(), state)
        });
        let others = self.discovery.directory().origins(service).filter_map(|(entry, state)| {
            let credential = &entry.credential;
            let (node, name) = (credential.node, credential.name.to_string());
            (node != self.me && entry.liveness != Liveness::Left).then(|| OriginView {
                present: entry.liveness != Liveness::Down,
                ..self.measured(OriginView::of_node(node, name, credential.site.clone(), state))
            })
        });
        let views = own.into_iter().chain(others).take(MAX_ORIGINS);
        let Some(service) = self.services.get(service) else { return Vec::new() };
        let evidence = &service.evidence;
        let judged = |view: OriginView| {
            let (suspect, denied) =
                (evidence.is_suspect(&view.line), evidence.is_denied(&view.line));
            let weight = service.balance.weights.of(&view);
            OriginView { suspect, denied, weight, ..view }
        };
        views.map(judged).collect()
    }

    /// Adds this node's measurements of the path to a view.
    fn measured(&self, view: OriginView) -> OriginView {
        let hop = view.line.first_hop();
        let Some(path) = hop.and_then(|hop| self.discovery.paths().get(&hop)) else { return view };
        let (usual_rtt, deviation, loss_percent) =
            (path.usual_rtt, path.deviation, path.loss_percent);
        let path = hop.and_then(|hop| self.path_to(&hop)).unwrap_or(PathView::Unmeasured);
        let broken = self.broken.contains(&view.line);
        OriginView { path, usual_rtt, deviation, loss_percent, broken, ..view }
    }

    /// Judges the loss of all measured paths.
    pub(super) fn judge_loss(&mut self) {
        let paths = self.discovery.paths().iter();
        let paths = paths.filter(|(_, path)| path.state == PathState::Up);
        self.broken.judge(paths.map(|(node, path)| (Line::Direct(*node), path.loss_percent)));
    }

    /// The measurements of the path to a node, if any.
    pub(super) fn path_to(&self, node: &NodeId) -> Option<PathView> {
        let path = self.discovery.paths().get(node)?;
        Some(match (path.state, path.rtt) {
            (PathState::Dead, _) => PathView::Dead,
            (PathState::Up, Some(rtt)) => PathView::Up(rtt),
            (PathState::Up | PathState::Unknown, _) => PathView::Unmeasured,
        })
    }

    /// The members that may relay and answer from here, with what they report of their paths.
    pub(super) fn relays(&self) -> Vec<Near> {
        let paths = self.discovery.paths().iter();
        paths
            .filter_map(|(node, path)| {
                let entry = self.discovery.directory().get(node).filter(|it| may_relay(it))?;
                let rtt = path.rtt.filter(|_| path.state == PathState::Up)?;
                let (deviation, loss_percent) = (path.deviation, path.loss_percent);
                let onward = entry.node_state()?.distances.clone();
                Some(Near { relay: *node, rtt, deviation, loss_percent, onward })
            })
            .collect()
    }

    /// The paths to an origin through other members, best first.
    pub fn offers(&self, service: &ServiceName, origin: NodeId, now: Instant) -> Vec<Offer> {
        let Some(service) = self.services.get(service) else { return Vec::new() };
        let (evidence, timings) = (&service.evidence, &service.timings);
        let (broken, relays) = (&self.broken, self.relays());
        let offers = relays
            .iter()
            .filter_map(|near| Offer::of(near, origin, broken, evidence, timings, now));
        let mut offers: Vec<Offer> = offers.collect();
        offers.sort_by_key(|offer| (offer.suspect, offer.cost(), offer.relay));
        offers
    }

    /// The known facts about a path through a relay that is no longer offered.
    fn former_path(&self, origin: NodeId, present: bool, relay: &NodeId) -> PathView {
        let entry = self.discovery.directory().get(relay);
        let said = entry.and_then(Entry::node_state).map_or(&[][..], |state| &state.distances);
        // There are no records about a node that is no longer a member.
        let word = said.iter().find(|it| it.origin == origin);
        let lost = word.map_or(!present, |it| it.rtt_us.is_none());
        // A node that has just replaced another may be unknown yet.
        let mut ends = self.discovery.revocations().iter();
        if entry.is_none() && ends.any(|it| it.successor() == Some(*relay)) {
            return PathView::Unmeasured;
        }
        match self.path_to(relay) {
            _ if lost || entry.is_none() => PathView::Dead,
            Some(PathView::Dead) => PathView::Dead,
            // The state of the second leg is unknown, which is no reason to cut sessions.
            Some(_) | None => PathView::Unmeasured,
        }
    }

    /// The addresses outside the mesh, including removed ones that still carry sessions.
    fn outside_views(&self, service: &Service, now: Instant) -> (Vec<OriginView>, Vec<OriginView>) {
        let former = self.busy.iter().filter_map(|line| match *line {
            Line::Outside(address) => Some(address).filter(|it| !service.fallback.contains(it)),
            Line::Direct(_) | Line::Relayed { .. } => None,
        });
        let view = |address| outside_view(service, address, now);
        (service.fallback.iter().copied().map(view).collect(), former.map(view).collect())
    }

    /// The direct paths to former origins that still carry sessions: they left or stopped offering
    /// the service, so only the state of their paths matters.
    fn former_views(&self, origins: &BTreeSet<NodeId>) -> impl Iterator<Item = OriginView> {
        self.busy.iter().filter_map(|line| match *line {
            Line::Direct(node) if node != self.me && !origins.contains(&node) => {
                let entry = self.discovery.directory().get(&node)?;
                let (name, site) = (entry.credential.name.to_string(), &entry.credential.site);
                let view = OriginView::of_node(node, name, site.clone(), OriginState::Unknown);
                Some(OriginView { present: false, ..self.measured(view) })
            }
            Line::Direct(_) | Line::Relayed { .. } | Line::Outside(_) => None,
        })
    }

    /// All paths to the instances of a service, for the sessions on them, and the path to each
    /// instance for new sessions.
    pub(super) fn choose_paths(
        &self,
        service: &mut Service,
        direct: Vec<OriginView>,
        relays: &[Near],
        now: Instant,
    ) -> (Vec<OriginView>, Vec<OriginView>) {
        let (evidence, timings) = (&service.evidence, &service.timings);
        let mut chosen = Vec::with_capacity(direct.len());
        let mut others = Vec::new();
        for view in &direct {
            let Line::Direct(origin) = view.line else { continue };
            let offers = relays
                .iter()
                .filter_map(|near| Offer::of(near, origin, &self.broken, evidence, timings, now));
            let offers: Vec<Offer> = offers.collect();
            let through = service.paths.choose(view, &offers, now);
            let is_other = |relay: &NodeId| {
                let line = Line::Relayed { origin, relay: *relay };
                through.as_ref().is_none_or(|view| view.line != line)
            };
            for relay in busy_relays(&self.busy, origin).filter(is_other) {
                others.push(match offers.iter().find(|offer| offer.relay == relay) {
                    Some(offer) => offer.view(origin, view),
                    None => OriginView {
                        line: Line::Relayed { origin, relay },
                        path: self.former_path(origin, view.present, &relay),
                        usual_rtt: None,
                        loss_percent: 0,
                        broken: false,
                        ..view.clone()
                    },
                });
            }
            chosen.push(through.unwrap_or_else(|| view.clone()));
        }
        let origins: BTreeSet<NodeId> = direct.iter().filter_map(|it| it.line.origin()).collect();
        service.paths.retain(|origin| origins.contains(origin));
        let (outside, former) = self.outside_views(service, now);
        chosen.extend(outside.iter().cloned());
        others.extend(outside.into_iter().chain(former));
        others.extend(self.former_views(&origins));
        let relayed = chosen.iter().filter(|view| view.relaying.is_some()).cloned();
        let all = direct.into_iter().chain(relayed).chain(others).collect();
        (all, chosen)
    }
}

fn outside_view(service: &Service, address: SocketAddr, now: Instant) -> OriginView {
    let view = OriginView::outside(address);
    let (suspect, took) =
        (service.evidence.is_suspect(&view.line), service.timings.least(&view.line, now));
    OriginView { path: took.map_or(PathView::Unmeasured, PathView::Up), suspect, ..view }
}

/// The relays through which sessions go to an origin.
fn busy_relays(busy: &BTreeSet<Line>, origin: NodeId) -> impl Iterator<Item = NodeId> {
    let (least, most) = (NodeId::from_bytes([0; 32]), NodeId::from_bytes([0xff; 32]));
    let of_origin = Line::Relayed { origin, relay: least }..=Line::Relayed { origin, relay: most };
    busy.range(of_origin).filter_map(|line| match *line {
        Line::Relayed { relay, .. } => Some(relay),
        Line::Direct(_) | Line::Outside(_) => None,
    })
}

/// Whether a node is a member that may carry sessions on to others.
pub(super) fn may_relay(entry: &Entry) -> bool {
    entry.liveness == Liveness::Alive && entry.credential.roles.contains(&Role::Relay)
}

/// The states of all origins, each with the time at which it was first seen in that state.
pub(super) fn states(
    service: &Service,
    views: &[OriginView],
    now: Instant,
) -> BTreeMap<NodeId, (OriginState, Instant)> {
    let of = |view: &OriginView| {
        let origin = view.line.origin()?;
        let known = service.states.get(&origin).copied();
        let known = known.filter(|(state, _)| *state == view.state);
        Some((origin, known.unwrap_or((view.state, now))))
    };
    views.iter().filter_map(of).collect()
}
