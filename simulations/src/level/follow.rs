//! How nodes react to events: detection, failover and the quality of their choices, by the
//! scenario's ground truth and not by the nodes' beliefs.

use std::time::Duration;

use super::{Level, Scene, is_near};
use crate::flight::StreamPath;
use crate::instance::Instance;
use crate::measure::{Cut, Fault, Notice, Pair, Users, begin, micros};
use crate::rules::LONG_STALL;
use crate::scenario::Happening;
use crate::scenario::timeline::Planned;

impl<L: Level> Follow for L {}

/// See the module's description.
pub(crate) trait Follow: Level {
    /// Called just before the first of these happens. For a fault, it records the nodes that must
    /// notice it, and those that must or may leave an origin.
    fn begins(&mut self, plan: &[Planned]) {
        let Some(planned) = plan.first() else { return };
        let Scene { now, account, measures, trace, .. } = self.scene_mut();
        trace.world(*now, &planned.words);
        account.disturbed(*now);
        measures.disturbed = Some(*now);
        let nodes = account.len();
        let Some(index) = begin(&mut measures.faults, plan, nodes, *now) else { return };
        let mut faults = std::mem::take(&mut measures.faults);
        let fault = &mut faults[index];
        let (unaware, staying) = self.concerned(fault);
        fault.unaware.extend(unaware);
        fault.staying.extend(staying);
        self.scene_mut().measures.faults = faults;
    }

    /// The nodes that should notice the newest victim of a fault, and the nodes that use its
    /// instance.
    fn concerned(&self, fault: &Fault) -> (Vec<Pair>, Vec<Pair>) {
        let victim = fault.newest();
        let nodes = 0..self.account().len();
        let is_asked = |at: &usize| self.runs(*at) && self.account().revoked[*at].is_none();
        let others: Vec<usize> = nodes.filter(|at| Some(*at) != victim && is_asked(at)).collect();
        let goes_there = |at: &usize| match fault.users() {
            Users::Theirs => self.first(*at) == victim,
            Users::Ways => self.goes_into(&fault.cut, *at),
            Users::Own | Users::Joining => false,
        };
        let has_to_notice = |at: &usize| match victim {
            Some(victim) => fault.is_watched() && self.has_to_notice(*at, victim, fault.notice()),
            None => fault.notice() == Notice::Path && goes_there(at),
        };
        let pair = |at: &usize| (*at, victim.unwrap_or(*at));
        let unaware = others.iter().filter(|at| has_to_notice(at)).map(pair).collect();
        let mut staying: Vec<Pair> = others.iter().filter(|at| goes_there(at)).map(pair).collect();
        let is_user = |victim: &usize| match fault.users() {
            Users::Own => self.first(*victim).is_some(),
            Users::Joining => !self.runs(*victim),
            Users::Theirs | Users::Ways => false,
        };
        staying.extend(victim.filter(is_user).map(|victim| (victim, victim)));
        (unaware, staying)
    }

    /// Whether a node's first choice is behind these paths.
    fn goes_into(&self, cut: &Cut, at: usize) -> bool {
        let spot = |node| (node, self.scene().network.site(node));
        let parts = |first| cut.parts(spot(at), spot(first));
        self.first(at).is_some_and(parts)
    }

    /// Carries out an event in the world around the processes.
    fn happens(&mut self, happening: &Happening) {
        let Scene { now, network, account, .. } = self.scene_mut();
        let now = *now;
        match *happening {
            Happening::Instance(node, becomes) => {
                account.instances[node] = Some(becomes);
                if becomes == Instance::Ready {
                    self.fault_ends(node, &["kill", "hang", "stall", "unready"]);
                }
            }
            Happening::Start { node, .. } => {
                self.fault_ends(node, &["crash", "leave", "rolling-restart"]);
            }
            Happening::Path(a, b, up) => {
                network.set_up(a, b, up);
                self.path_changes(happening, up);
            }
            Happening::Pair(a, b, up) => {
                network.block(a, b, up);
                self.path_changes(happening, up);
            }
            Happening::Quality(a, b, ref quality) => {
                network.set_quality(a, b, quality.clone());
                self.path_changes(happening, quality.is_none());
            }
            Happening::Rebind(node) => {
                account.unsettled(node, now);
                network.rebind(node);
            }
            Happening::Roam(node, site) => {
                account.unsettled(node, now);
                network.roam(node, site);
            }
            Happening::Revoke { node, .. } => {
                account.revoked[node].get_or_insert(now);
            }
            Happening::Crash(_)
            | Happening::Leave(_)
            | Happening::Clock(..)
            | Happening::Starve { .. }
            | Happening::Configure(..)
            | Happening::Lie(..) => {}
        }
    }

    /// A path has changed; `ends` if it is back in its initial state.
    fn path_changes(&mut self, path: &Happening, ends: bool) {
        let now = self.now();
        for fault in &mut self.scene_mut().measures.faults {
            if ends && fault.over.is_none() && fault.at < now && fault.cut.concerns(path) {
                fault.over = Some(now);
            }
        }
        self.scene_mut().account.since.paths = now;
    }

    /// Ends faults of these kinds at a node.
    fn fault_ends(&mut self, node: usize, kinds: &[&str]) {
        let now = self.now();
        for fault in &mut self.scene_mut().measures.faults {
            if kinds.contains(&fault.kind) {
                fault.ends(node, now);
            }
        }
    }

    /// A node's process is stopped for this long at a time, until then. A node that is stopped for
    /// a long time counts as gone.
    fn stands_still(&mut self, node: usize, stall: Duration, until: Duration) {
        let account = &mut self.scene_mut().account;
        account.disturbed(until);
        if stall > LONG_STALL {
            account.unsettled(node, until);
        }
    }

    fn process_starts(&mut self, node: usize, boot: u32) {
        let Scene { now, account, .. } = self.scene_mut();
        account.unsettled(node, *now);
        account.uptime.since[node] = Some(*now);
        self.says(node, format!("starts, process {boot}"));
    }

    fn process_ends(&mut self, node: usize) {
        let Scene { now, account, measures, .. } = self.scene_mut();
        let since = account.uptime.since[node].take();
        account.uptime.sum += now.saturating_sub(since.unwrap_or(*now));
        account.evictions.forget(node);
        account.records.forget(node);
        account.disturbed(*now);
        measures.gone(node);
        self.says(node, "its process ends".into());
    }

    /// A node has noticed the event at another one.
    fn notices(&mut self, at: usize, subject: usize, notice: Notice) {
        let Scene { now, measures, .. } = self.scene_mut();
        for fault in measures.followed(*now).filter(|fault| fault.notice() == notice) {
            fault.notices(at, subject, *now);
        }
    }

    /// The node's route, in words.
    fn goes(&self, at: usize) -> String {
        match self.first(at) {
            Some(first) => format!("goes to {}", self.account().name(first)),
            None => "has nowhere to go".to_owned(),
        }
    }

    /// A node's route has changed; returns its target in words if the first origin has changed.
    fn route_changed(&mut self, at: usize, moved: Option<String>) {
        let (now, is_other) = (self.now(), moved.is_some());
        if let Some(words) = moved {
            let measures = &mut self.scene_mut().measures;
            measures.choices.changed += 1;
            measures.second(now).moved += 1;
            self.says(at, words);
        }
        let first = self.first(at);
        let mut faults = std::mem::take(&mut self.scene_mut().measures.faults);
        for fault in faults.iter_mut().filter(|fault| fault.followed_until() > now) {
            // A route also changes when only its tail does: only the first origin counts.
            let away = match fault.users() {
                Users::Theirs => !first.is_some_and(|first| fault.out.contains(&first)),
                Users::Ways => !self.goes_into(&fault.cut, at),
                Users::Own => is_other,
                Users::Joining => first.is_some(),
            };
            if away {
                fault.leaves(at, now);
            }
            if Self::SHOWN_BY_ROUTE.contains(&fault.notice()) {
                for victim in fault.unnoticed(at) {
                    if !self.believes_in(at, victim) {
                        fault.notices(at, victim, now);
                    }
                }
            }
        }
        self.scene_mut().measures.faults = faults;
    }

    /// A session has reached its origin, or something outside the mesh: how good was the choice?
    fn measure_choice(&mut self, node: usize, chosen: Option<StreamPath>, took: Duration) {
        let now = self.now();
        if now < self.account().warmup {
            return;
        }
        self.scene_mut().measures.latency.connect.add(micros(took));
        let Some((way, best)) = chosen.zip(self.best(node)) else { return };
        let onward = way.is_relayed().then(|| self.distance(way.hop, way.origin));
        let own = self.distance(node, way.hop) + onward.unwrap_or_default();
        let stretch = own.as_nanos() * 1000 / best.as_nanos().max(1);
        let stretch = u64::try_from(stretch).unwrap_or(u64::MAX);
        let measures = &mut self.scene_mut().measures;
        let (is_quiet, choices) = (measures.is_quiet(now), &mut measures.choices);
        choices.stretch.add(stretch);
        if is_quiet {
            choices.stretch_quiet.add(stretch);
        }
        choices.compared += 1;
        choices.nearest += u64::from(is_near(own, best));
    }
}
