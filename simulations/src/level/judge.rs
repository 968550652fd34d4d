//! The rules that more than one level checks, on the facts that the levels provide.
//!
//! * No session starts at an origin its node knows to be dead while another is healthy: at each
//!   first attempt.
//! * A directory never goes back to an older record: periodically, for some nodes.
//! * No running node within reach is considered down for longer than `MAX_EVICTION`, counted from
//!   when both nodes and the links have had `SETTLING`: every second.
//! * Sessions opened = closed + open: at the end.
//! * Every request is answered, where the scenario requires it: at each request.
//! * Revoked nodes are known as such, have no tunnel or session, and are not served: every second
//!   and at each answer.
//! * After a quiet time all nodes within reach of each other agree, and routes are usable and near:
//!   at the end. A nearer origin need not be used if its path has more loss or jitter.
//!
//! The names of the rules and the state they need are in [`crate::rules`].

use std::collections::BTreeSet;

use super::{Held, Level, Scene};
use crate::report::Violation;
use crate::rules::{self, Key, LASTING, Line, MAX_EVICTION, MAX_NEWS, QUIET, SETTLING, is_far};

impl<L: Level> Judge for L {}

/// See the module's description.
pub(crate) trait Judge: Level {
    fn violates(&mut self, rule: &'static str, node: usize, what: String) {
        if self.account().has_enough() {
            return;
        }
        let (at, last) = (self.now(), self.last(node));
        let node = Some(self.account().name(node).to_owned());
        self.scene_mut().account.violations.push(Violation { at, rule, node, what, last });
    }

    /// A session is about to try its first candidate.
    fn check_choice(&mut self, node: usize, first: &Line) {
        let (Line::Direct(origin), Some(route)) = (*first, self.route(node)) else { return };
        let Some(better) = rules::better_than_dead(route, origin) else { return };
        let account = self.account();
        let name = |id| account.number(&id).map_or("?", |at| account.name(at));
        let (to, better) = (name(origin), name(better));
        let what = format!("a session goes to {to} while {better} is healthy");
        self.violates(rules::DEAD_ORIGIN, node, what);
    }

    /// A node has found a member silent and suspects it. That is a mistake if the member takes
    /// part, is reachable, and no recent change excuses it.
    fn suspects(&mut self, at: usize, subject: usize) {
        let now = self.now();
        self.says(at, format!("suspects {}", self.account().name(subject)));
        if now < self.account().warmup {
            return;
        }
        let is_wrong = self.settles(at, subject).is_some_and(|since| since <= now);
        let seen = self.scene_mut().measures.suspicions.get_or_insert_default();
        seen.raised += 1;
        seen.wrong += u64::from(is_wrong);
    }

    /// A node considers another one down or gone; checks whether that is right.
    fn evicts(&mut self, holder: usize, subject: usize, has_left: bool) {
        let Scene { now, account, .. } = self.scene_mut();
        account.evictions.begin(holder, subject, *now);
        if *now < account.warmup {
            return;
        }
        let is_wrong = self.settles(holder, subject).is_some_and(|at| at <= self.now());
        let measures = &mut self.scene_mut().measures;
        measures.suspicions.get_or_insert_default().evictions += u64::from(!has_left);
        measures.false_evictions += u64::from(is_wrong);
    }

    /// The complete set of nodes that a node now considers down or gone, including those that left.
    fn holds_absent(
        &mut self,
        holder: usize,
        all: &BTreeSet<usize>,
        has_left: impl Fn(usize) -> bool,
    ) {
        let Scene { now, account, .. } = self.scene_mut();
        for subject in account.evictions.set(holder, all, *now) {
            self.evicts(holder, subject, has_left(subject));
        }
    }

    /// A node considers another one alive again.
    fn readmits(&mut self, holder: usize, subject: usize) {
        self.scene_mut().account.evictions.end(holder, subject);
    }

    /// No living node stays evicted.
    fn check_evicted(&mut self) {
        let settles = |holder, subject| self.settles(holder, subject);
        for (holder, subject) in self.account().evictions.overdue(self.now(), settles) {
            self.readmits(holder, subject);
            if !self.holds(holder, subject).is_there() {
                let (name, bound) = (self.account().name(subject), MAX_EVICTION.as_secs());
                let what = format!(
                    "{name} is running and reachable, but considered down for over \
                                    {bound} s"
                );
                self.violates(rules::EVICTED, holder, what);
            }
        }
    }

    /// A followed node now has these records, by owner; checks that none has gone back.
    fn check_records(&mut self, at: usize, boot: u32, records: Vec<(usize, Key)>) {
        let account = &mut self.scene_mut().account;
        let nodes = account.len();
        let back = account.records.follow(at, boot, nodes, records.into_iter());
        if let Some((owner, had, has)) = back {
            let name = account.name(owner);
            let what = format!("its record of {name} goes back from {had:?} to {has:?}");
            self.violates(rules::NEVER_BACK, at, what);
        }
    }

    /// Checks the numbers of sessions that the clients of a node opened, closed and hold open.
    fn check_sessions(&mut self, at: usize, [opened, closed, open]: [u64; 3]) {
        if opened != closed + open {
            let what = format!("{opened} sessions opened, {closed} closed, {open} open");
            self.violates(rules::SESSIONS, at, what);
        }
    }

    /// A request of a node's client was not answered.
    fn check_unanswered(&mut self, node: usize, what: String) {
        if self.account().answers_all {
            self.violates(rules::ANSWERED, node, what);
        }
    }

    /// Nodes whose revocation was long enough ago to be known everywhere.
    fn long_revoked(&self) -> Vec<usize> {
        let (now, account) = (self.now(), self.account());
        let is_late = |at: &usize| {
            account.revoked[*at].is_some_and(|since| now.saturating_sub(since) > MAX_NEWS)
        };
        (0..account.len()).filter(is_late).collect()
    }

    /// All nodes that a revoked node can reach know of the revocation, and none still has a
    /// connection with it.
    fn check_revoked(&mut self) {
        for subject in self.long_revoked() {
            let nodes = 0..self.account().len();
            let wrong = nodes.into_iter().find_map(|at| Some((at, self.keeps(at, subject)?)));
            if let Some((at, what)) = wrong {
                let what = format!("{what} {}", self.account().name(subject));
                self.violates(rules::SHUT_OUT, at, what);
            }
        }
    }

    /// The connection that a node still has with one that was revoked long ago.
    fn keeps(&self, at: usize, subject: usize) -> Option<&'static str> {
        if at == subject || !self.takes_part(at) {
            return None;
        }
        if !self.shuts_out(at, subject) {
            let told = self.account().settled(&[at]) <= self.now();
            let is_late = told && self.can_be_told(at, subject);
            return is_late.then_some("it does not know of the revocation of");
        }
        let ties = self.ties(at, subject);
        let id = Some(self.account().id(subject));
        let leads = |line: &Line| line.origin() == id || line.first_hop() == id;
        let route = self.route(at);
        if ties.entry {
            Some("its directory has an entry for")
        } else if route.is_some_and(|it| it.candidates.iter().any(|it| leads(&it.origin.line))) {
            Some("its route goes through")
        } else if ties.tunnel {
            Some("it has a tunnel to")
        } else if ties.session {
            Some("it has a session to")
        } else {
            None
        }
    }

    /// A node's instance answers a client of another node; checks that neither was revoked long
    /// ago. Two locked-out nodes may serve each other.
    fn check_served(&mut self, client: usize, origin: usize) {
        let account = self.account();
        let (revoked, other) = match (account.revoked[client], account.revoked[origin]) {
            (Some(since), None) => ((client, since), origin),
            (None, Some(since)) => ((origin, since), client),
            _ => return,
        };
        let (revoked, since) = revoked;
        let excused = account.settled(&[client, origin]).max(since + SETTLING);
        if client == origin || self.lies(other) || self.now() <= excused {
            return;
        }
        if self.shuts_out(other, revoked) || self.can_be_told(other, revoked) {
            let what = format!("it serves a client of {}", self.account().name(client));
            self.violates(rules::SERVED_NO_MORE, origin, what);
        }
    }

    /// Whether nothing has changed for long enough that all should agree.
    fn is_quiet(&self) -> bool {
        self.now().saturating_sub(self.account().last_disturbed()) >= QUIET
    }

    /// Checks the rules for quiet times, after one.
    fn check_quiet(&mut self) {
        if self.is_quiet() {
            self.check_settled();
        }
    }

    /// All nodes know all others within reach, and use the right origin.
    fn check_settled(&mut self) {
        let nodes: Vec<usize> =
            (0..self.account().len()).filter(|at| self.takes_part(*at)).collect();
        let wrong = nodes.iter().find_map(|at| Some((*at, self.disagreement(*at)?)));
        if let Some((at, what)) = wrong {
            self.violates(rules::AGREEMENT, at, what);
        }
        let wrong = nodes.iter().find_map(|at| Some((*at, self.bad_route(*at)?)));
        if let Some((at, (rule, what))) = wrong {
            self.violates(rule, at, what);
        }
    }

    /// The error in a node's view of the members within its reach, if any: they should be alive,
    /// with the newest record.
    fn disagreement(&self, at: usize) -> Option<String> {
        let (mut known, mut all) = (0, 0);
        let name = |node| self.account().name(node);
        for subject in self.within_reach(at) {
            all += 1;
            match self.holds(at, subject) {
                Held::Absent => return Some(format!("it considers {} down", name(subject))),
                Held::Older => {
                    return Some(format!("its record of {} is not the newest", name(subject)));
                }
                Held::Newest => known += 1,
                Held::Nothing => {}
            }
        }
        if known < all {
            return Some(format!("it knows {known} of {all} reachable nodes"));
        }
        let alive = self.alive(at).filter(|alive| *alive < all)?;
        Some(format!("it considers {alive} of {all} reachable nodes alive"))
    }

    /// A node's route, if it does not work although another origin does, or is clearly farther than
    /// the nearest one.
    fn bad_route(&self, at: usize) -> Option<(&'static str, String)> {
        let bad = self.useless(at).map(|what| (rules::GOOD_ROUTES, what));
        let far = || {
            self.lasting(at).filter(|lasting| *lasting >= LASTING)?;
            let Line::Direct(first) = self.first_line(at)? else { return None };
            Some((rules::NEAR_ROUTES, self.strays(at, self.account().number(&first)?)?))
        };
        bad.or_else(far)
    }

    fn useless(&self, at: usize) -> Option<String> {
        let account = self.account();
        let line = self.first_line(at);
        let works = line.is_some_and(|line| self.works(at, &line));
        if works || !account.origins.iter().any(|origin| self.serves(at, *origin)) {
            return None;
        }
        let way = line.and_then(|line| account.way(&line));
        let ends = || way.into_iter().flat_map(|way| [way.origin, way.hop]);
        let lied = account.origins.iter().copied().chain(ends()).any(|node| self.lies(node));
        // The rules for revocations judge whether it should know by now.
        let unheard = |of: usize| account.revoked[of].is_some() && !self.shuts_out(at, of);
        if lied || ends().any(unheard) {
            return None;
        }
        let to = ends().next().map_or("nobody", |origin| account.name(origin));
        Some(format!("it uses {to}, which does not serve, although another origin does"))
    }

    /// The problem, if a node uses an origin that is clearly farther than the nearest one that
    /// serves.
    fn strays(&self, at: usize, to: usize) -> Option<String> {
        // There may be good reasons to leave an origin that lies, for example about its paths.
        let serves = |origin: &usize| self.serves(at, *origin) && !self.lies(*origin);
        // Latency is not the only criterion: a farther origin may be preferred if the nearer one's
        // path has more loss or jitter.
        let noise = |origin| self.scene().network.noise(at, origin);
        let (loses, varies) = noise(to);
        let calm = |origin: &usize| {
            let noise = noise(*origin);
            noise.0 <= loses && noise.1 <= varies
        };
        let account = self.account();
        let serving = account.origins.iter().copied().filter(serves).filter(calm);
        let best = serving.min_by_key(|origin| self.distance(at, *origin))?;
        let (own, least) = (self.distance(at, to), self.distance(at, best));
        is_far(own, least).then(|| {
            let (to, better) = (account.name(to), account.name(best));
            format!("it uses {to}, {own:?} away, although {better} serves at {least:?}")
        })
    }
}
