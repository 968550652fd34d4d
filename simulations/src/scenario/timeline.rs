//! Expands the events of a scenario for one seed: a list of single happenings ordered by time.
//!
//! Random times and random nodes are drawn here, from a generator that nothing else uses, so that a
//! change of the world does not change the plan.

use std::time::Duration;

use meshport_core::counter_hash::mix;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::event::When;
use super::target::Target;
use super::{
    Event, Happening, Instance, MAX_HAPPENINGS, NodeRef, Scenario, keys, paths, seconds, strict,
};
use crate::Error;

/// A happening at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct Planned {
    /// Time.
    pub at: Duration,
    /// Description for people.
    pub words: String,
    /// The happening.
    pub happening: Happening,
    /// The event it belongs to: those of one event, at one of its times, have the same number.
    pub event: usize,
    /// The key of that event, if it is a fault; none for an event that ends a fault, and for all
    /// but the first of the paths that one event changes.
    pub fault: Option<&'static str>,
}

/// Default gaps, pauses and periods of events.
const USUAL_GAP_S: f64 = 10.0;
const USUAL_DOWN_S: f64 = 2.0;
const USUAL_PERIOD_S: f64 = 1.0;
const USUAL_STALL_MS: f64 = 200.0;

/// All happenings of a scenario for a seed, in order.
///
/// # Errors
/// [`Error::Scenario`] for an event that names something unknown, or not exactly one thing, or has
/// a key without effect there.
pub fn expand(scenario: &Scenario, seed: u64) -> Result<Vec<Planned>, Error> {
    let mut plan = Plan {
        scenario,
        rng: ChaCha8Rng::seed_from_u64(seed ^ 0x7469_6d65_6c69_6e65),
        all: Vec::new(),
        configured: 0,
        events: 0,
    };
    for (index, event) in scenario.events.iter().enumerate() {
        plan.event(event).map_err(|error| keys::of_event(index, event, error))?;
        plan.configured += usize::from(event.configure.is_some());
        if plan.all.len() > MAX_HAPPENINGS {
            let most = format!("more than {MAX_HAPPENINGS} happenings in all");
            return Err(Error::Scenario(most));
        }
    }
    plan.all.sort_by_key(|planned| planned.at);
    Ok(plan.all)
}

/// Expands an event that happens now, or from now on, with its number among all events; also
/// returns the event in the form of a scenario. Times in the event are ignored.
///
/// # Errors
/// As [`expand`]; also for `configure`, whose settings must be known in advance.
pub(crate) fn improvise(
    scenario: &Scenario,
    seed: u64,
    event: &Event,
    now: Duration,
    turn: usize,
) -> Result<(Vec<Planned>, String), Error> {
    if event.configure.is_some() {
        return Err(Error::Scenario("configure: only a scenario can say it, beforehand".into()));
    }
    // Rounded for people; the event happens exactly now.
    let told = (now.as_secs_f64() * 1e3).round() / 1e3;
    let event = Event { at_s: Some(When::At(told)), ..event.clone() };
    let seed = seed ^ mix(turn as u64);
    let rng = ChaCha8Rng::seed_from_u64(seed);
    let mut plan = Plan { scenario, rng, all: Vec::new(), configured: 0, events: turn };
    plan.event(&event)?;
    if plan.all.len() > MAX_HAPPENINGS {
        return Err(Error::Scenario(format!("more than {MAX_HAPPENINGS} happenings in one event")));
    }
    for planned in &mut plan.all {
        planned.at = now + planned.at.saturating_sub(seconds(told, "at-s")?);
    }
    plan.all.sort_by_key(|planned| planned.at);
    let said = toml::to_string(&event).map_err(|error| Error::Scenario(error.to_string()))?;
    Ok((plan.all, said))
}

struct Plan<'a> {
    scenario: &'a Scenario,
    rng: ChaCha8Rng,
    all: Vec<Planned>,
    /// Number of events with `configure` until now.
    configured: usize,
    /// Number of times of events until now.
    events: usize,
}

/// For one node, how a fault begins, and how it ends if it can be undone.
type Turn = (Happening, Option<Happening>);

impl Plan<'_> {
    fn event(&mut self, event: &Event) -> Result<(), Error> {
        keys::check_event(event)?;
        let times = event.times.unwrap_or(1);
        let every = seconds(event.every_s.unwrap_or(0.0), "every-s")?;
        if times > MAX_HAPPENINGS {
            return Err(Error::Scenario(format!("times = {times}: at most {MAX_HAPPENINGS}")));
        }
        for turn in 0..times {
            let first = self.when(event)?;
            let turn = u32::try_from(turn).expect("at most MAX_HAPPENINGS");
            self.once(event, first + every * turn)?;
            self.events += 1;
        }
        Ok(())
    }

    fn when(&mut self, event: &Event) -> Result<Duration, Error> {
        match event.at_s {
            Some(When::At(at)) => seconds(at, "at-s"),
            Some(When::Between([from, to])) => {
                let (from, to) = (seconds(from, "at-s")?, seconds(to, "at-s")?);
                if to <= from {
                    return Err(Error::Scenario("at-s: the second time is not later".into()));
                }
                Ok(self.rng.random_range(from..to))
            }
            None => Err(Error::Scenario("an event lacks its time: at-s = ...".into())),
        }
    }

    fn once(&mut self, event: &Event, at: Duration) -> Result<(), Error> {
        let start = |with_state| move |node| Happening::Start { node, with_state };
        let with_state = !event.without_state.unwrap_or(false);
        let instance = |becomes| {
            move |node| {
                let back = Happening::Instance(node, Instance::Ready);
                (Happening::Instance(node, becomes), Some(back))
            }
        };
        let crash = move |node| (Happening::Crash(node), Some(start(with_state)(node)));
        let one = |happening: fn(usize) -> Happening| move |node| (happening(node), None);
        for (key, target, turn) in [
            ("kill", &event.kill, &instance(Instance::Down) as &dyn Fn(usize) -> Turn),
            ("hang", &event.hang, &instance(Instance::Hung)),
            ("stall", &event.stall, &instance(Instance::Stalled)),
            ("unready", &event.unready, &instance(Instance::Unready)),
            ("crash", &event.crash, &crash),
        ] {
            if let Some(target) = target {
                return self.nodes(event, at, key, target, turn);
            }
        }
        let recover = |node| (Happening::Instance(node, Instance::Ready), None);
        for (key, target, turn) in [
            ("recover", &event.recover, &recover as &dyn Fn(usize) -> Turn),
            ("restart", &event.restart, &move |node| (start(with_state)(node), None)),
            ("join", &event.join, &move |node| (start(true)(node), None)),
            ("leave", &event.leave, &one(Happening::Leave)),
            ("rebind", &event.rebind, &one(Happening::Rebind)),
        ] {
            if let Some(target) = target {
                return self.nodes(event, at, key, target, turn);
            }
        }
        self.rarer(event, at)
    }

    /// The kinds of events that need more than nodes.
    fn rarer(&mut self, event: &Event, at: Duration) -> Result<(), Error> {
        if let Some(target) = &event.rolling_restart {
            return self.rolling(event, at, target);
        }
        if let Some(target) = &event.clock_step {
            let by = whole_seconds(event.by_s.unwrap_or(0.0))?;
            let turn = move |node| (Happening::Clock(node, by), None);
            return self.nodes(event, at, "clock-step", target, &turn);
        }
        if let Some(target) = &event.starve {
            return self.starve(event, at, target);
        }
        if let (Some(target), Some(to)) = (&event.roam, &event.to) {
            let to = self.scenario.site(to)?;
            let turn = move |node| (Happening::Roam(node, to), None);
            return self.nodes(event, at, "roam", target, &turn);
        }
        if let Some(target) = &event.configure {
            let index = self.configured;
            let turn = move |node| (Happening::Configure(node, index), None);
            return self.nodes(event, at, "configure", target, &turn);
        }
        if let Some(target) = &event.revoke {
            let through = event.through.as_deref();
            let through = through.map(|it| Target::parse(it, self.scenario)).transpose()?;
            let through = through.and_then(|it| it.draw(&mut self.rng).first().copied());
            let turn = move |node| (Happening::Revoke { node, through }, None);
            return self.nodes(event, at, "revoke", target, &turn);
        }
        if let (Some(target), Some(how)) = (&event.lie, event.how) {
            let turn =
                move |node| (Happening::Lie(node, Some(how)), Some(Happening::Lie(node, None)));
            return self.nodes(event, at, "lie", target, &turn);
        }
        self.switches(event, at)
    }

    fn switches(&mut self, event: &Event, at: Duration) -> Result<(), Error> {
        if let Some(pair) = &event.cut {
            let words = format!("cut: {} and {}{}", pair[0], pair[1], direction(event));
            let directions = self.directions(pair, is_one_way(event))?;
            return self.switch(event, at, "cut", &words, &directions);
        }
        if let Some(pair) = &event.heal {
            let words = format!("heal: {} and {}{}", pair[0], pair[1], direction(event));
            for switch in self.directions(pair, is_one_way(event))? {
                self.add(at, &words, switch(true), None);
            }
            return Ok(());
        }
        if let Some(site) = &event.isolate {
            let own = self.scenario.site(site)?;
            let others = (0..self.scenario.sites.len()).filter(|other| *other != own);
            let directions: Vec<Direction> = others
                .flat_map(|other| [site_direction(own, other), site_direction(other, own)])
                .collect();
            // A reader who expects all of its nodes to switch should see why they do not.
            let words = match self.scenario.sites[own].origins {
                0 => format!("isolate: {site}"),
                1 => format!("isolate: {site} with its origin"),
                origins => format!("isolate: {site} with its {origins} origins"),
            };
            return self.switch(event, at, "isolate", &words, &directions);
        }
        if let Some(pair) = &event.flap {
            return self.flap(event, at, pair);
        }
        self.qualities(event, at)
    }

    fn qualities(&mut self, event: &Event, at: Duration) -> Result<(), Error> {
        if let Some([a, b]) = &event.restore {
            let (a, b) = (self.scenario.site(a)?, self.scenario.site(b)?);
            for (a, b) in [(a, b), (b, a)] {
                self.add(at, "restore", Happening::Quality(a, b, None), None);
            }
        }
        let configs = paths::configs(self.scenario)?;
        let Some(path) = &event.degrade else { return Ok(()) };
        let [a, b] = &path.between;
        let mut fault = Some("degrade");
        for pair in paths::pairs(self.scenario, path)? {
            let worse = paths::apply(configs[&pair].clone(), path)?;
            let words = format!("degrade: {a} and {b}");
            self.add(at, &words, Happening::Quality(pair.0, pair.1, Some(worse)), fault.take());
            if let Some(length) = event.for_s {
                let end = at + seconds(length, "for-s")?;
                let words = format!("restore: {a} and {b}");
                self.add(end, &words, Happening::Quality(pair.0, pair.1, None), None);
            }
        }
        Ok(())
    }

    /// Directions that go down, and up again if the event has an end.
    fn switch(
        &mut self,
        event: &Event,
        at: Duration,
        key: &'static str,
        words: &str,
        directions: &[Direction],
    ) -> Result<(), Error> {
        let mut fault = Some(key);
        for switch in directions {
            self.add(at, words, switch(false), fault.take());
            if let Some(length) = event.for_s {
                let words = format!("{words} ends");
                self.add(at + seconds(length, "for-s")?, &words, switch(true), None);
            }
        }
        Ok(())
    }

    fn flap(&mut self, event: &Event, at: Duration, pair: &[String; 2]) -> Result<(), Error> {
        let period = seconds(event.period_s.unwrap_or(USUAL_PERIOD_S), "period-s")?;
        let length = seconds(event.for_s.unwrap_or(0.0), "for-s")?;
        if period.is_zero() || length.is_zero() {
            return Err(Error::Scenario("a flap needs for-s and a period-s above 0".into()));
        }
        let directions = self.directions(pair, is_one_way(event))?;
        let (mut now, mut up, mut fault) = (at, false, Some("flap"));
        while now < at + length && self.all.len() <= MAX_HAPPENINGS {
            for switch in &directions {
                let words = format!("flap: {} and {}", pair[0], pair[1]);
                self.add(now, &words, switch(up), fault.take());
            }
            (now, up) = (now + period, !up);
        }
        for switch in &directions {
            self.add(
                at + length,
                &format!("flap: {} and {} ends", pair[0], pair[1]),
                switch(true),
                None,
            );
        }
        Ok(())
    }

    fn rolling(&mut self, event: &Event, at: Duration, target: &str) -> Result<(), Error> {
        let gap = seconds(event.gap_s.unwrap_or(USUAL_GAP_S), "gap-s")?;
        let down = seconds(event.down_s.unwrap_or(USUAL_DOWN_S), "down-s")?;
        let nodes = Target::parse(target, self.scenario)?.draw(&mut self.rng);
        let mut now = at;
        for node in nodes {
            let name = self.name(node);
            let (key, words) = ("rolling-restart", format!("rolling-restart: {name}"));
            self.add(now, &words, Happening::Leave(node), Some(key));
            let start =
                Happening::Start { node, with_state: !event.without_state.unwrap_or(false) };
            self.add(now + down, &format!("rolling-restart: {name} is back"), start, None);
            now += gap;
        }
        Ok(())
    }

    fn starve(&mut self, event: &Event, at: Duration, target: &str) -> Result<(), Error> {
        let stall = event.stall_ms.unwrap_or(USUAL_STALL_MS);
        super::milliseconds(stall, "stall-ms")?;
        let stall = Duration::from_secs_f64(stall / 1000.0);
        let length = seconds(event.for_s.unwrap_or(0.0), "for-s")?;
        if stall.is_zero() || length.is_zero() {
            return Err(Error::Scenario("starve needs for-s and a stall-ms above 0".into()));
        }
        for node in Target::parse(target, self.scenario)?.draw(&mut self.rng) {
            let words = format!("starve: {}", self.name(node));
            let happening = Happening::Starve { node, stall, until: at + length };
            self.add(at, &words, happening, Some("starve"));
        }
        Ok(())
    }

    fn nodes(
        &mut self,
        event: &Event,
        at: Duration,
        key: &'static str,
        target: &str,
        turn: &dyn Fn(usize) -> Turn,
    ) -> Result<(), Error> {
        let mut nodes = Target::parse(target, self.scenario)?.draw(&mut self.rng);
        if key == "rebind" {
            self.keep_behind_nat(&mut nodes);
        }
        let over = seconds(event.over_s.unwrap_or(0.0), "over-s")?;
        if !over.is_zero() {
            nodes.shuffle(&mut self.rng);
        }
        let gives_back = matches!(key, "recover" | "restart");
        let fault = (!gives_back).then_some(key);
        for node in nodes {
            let later =
                if over.is_zero() { over } else { self.rng.random_range(Duration::ZERO..over) };
            let (begins, ends) = turn(node);
            self.must_host(node, &begins)?;
            let name = self.name(node);
            self.add(at + later, &format!("{key}: {name}"), begins, fault);
            if let (Some(ends), Some(length)) = (ends, event.for_s) {
                let end = at + later + seconds(length, "for-s")?;
                self.add(end, &format!("{key}: {name} is over"), ends, None);
            }
        }
        Ok(())
    }

    /// A NAT gives new addresses to nodes behind it; nodes without a NAT keep theirs, unless the
    /// event selects only such nodes.
    fn keep_behind_nat(&self, nodes: &mut Vec<usize>) {
        let all: Vec<NodeRef> = self.scenario.nodes().collect();
        let is_behind = |node: &usize| self.scenario.sites[all[*node].site].nat;
        if nodes.iter().any(is_behind) {
            nodes.retain(is_behind);
        }
    }

    fn must_host(&self, node: usize, happening: &Happening) -> Result<(), Error> {
        let is_about_instance = matches!(happening, Happening::Instance(..));
        if is_about_instance && !self.scenario.hosts(self.node_ref(node)) {
            let name = self.name(node);
            return Err(Error::Scenario(format!("\"{name}\" hosts no instance")));
        }
        Ok(())
    }

    /// Two sites, or two nodes, as directions that can be switched.
    fn directions(&self, pair: &[String; 2], one_way: bool) -> Result<Vec<Direction>, Error> {
        let names = [&pair[0], &pair[1]];
        let sites: Vec<usize> =
            names.iter().filter_map(|name| self.scenario.site(name).ok()).collect();
        let directions = if let [a, b] = sites[..] {
            [site_direction(a, b), site_direction(b, a)]
        } else {
            let node = |name: &str| {
                let found = self.scenario.nodes().position(|it| self.scenario.name(it) == name);
                let sites = self.scenario.sites.iter().map(|site| site.name.as_str());
                let near = strict::near(name, sites);
                found.ok_or_else(|| {
                    Error::Scenario(format!("there is no site or node \"{name}\"{near}"))
                })
            };
            let (a, b) = (node(names[0])?, node(names[1])?);
            [node_direction(a, b), node_direction(b, a)]
        };
        Ok(directions.into_iter().take(if one_way { 1 } else { 2 }).collect())
    }

    fn name(&self, node: usize) -> String {
        self.scenario.name(self.node_ref(node))
    }

    fn node_ref(&self, node: usize) -> NodeRef {
        self.scenario.nodes().nth(node).expect("targets are nodes")
    }

    fn add(&mut self, at: Duration, words: &str, what: Happening, fault: Option<&'static str>) {
        let (words, event) = (words.to_owned(), self.events);
        self.all.push(Planned { at, words, happening: what, event, fault });
    }
}

type Direction = Box<dyn Fn(bool) -> Happening>;

fn site_direction(a: usize, b: usize) -> Direction {
    Box::new(move |up| Happening::Path(a, b, up))
}

fn node_direction(a: usize, b: usize) -> Direction {
    Box::new(move |up| Happening::Pair(a, b, up))
}

fn direction(event: &Event) -> &'static str {
    if is_one_way(event) { ", one way" } else { "" }
}

fn is_one_way(event: &Event) -> bool {
    event.one_way.unwrap_or(false)
}

/// How far a wall clock jumps, which counts seconds.
fn whole_seconds(by: f64) -> Result<i64, Error> {
    if by.fract() != 0.0 || by.abs() > 1e9 {
        let wrong = format!("by-s = {by}: expected whole seconds, -1000000000 to 1000000000");
        return Err(Error::Scenario(wrong));
    }
    #[expect(clippy::cast_possible_truncation, reason = "whole and small, as just checked")]
    Ok(by as i64)
}
