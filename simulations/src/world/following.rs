//! How nodes react to events that only this level sees: news of origins, and members joining and
//! leaving.

use std::collections::BTreeMap;
use std::time::Duration;

use meshport_discovery::{Liveness, OriginState};

use super::World;
use crate::brain::Line;
use crate::level::{Follow, Judge, Level};
use crate::measure::{FOLLOWED_FOR, MAX_FAULTS, News, Notice};
use crate::rules;

/// All nodes have found a process that has run for this long.
const SETTLED: Duration = Duration::from_secs(30);

impl World {
    pub(super) fn reroutes(&mut self, at: usize, first_changed: bool) {
        let words = first_changed.then(|| self.way(at));
        self.route_changed(at, words);
        self.follow_news(at);
        if self.nodes[at].clients.searches.under_way() > 0 {
            self.reroute(at);
        }
    }

    /// The node's route in words: the origin, and the relay if there is one.
    fn way(&self, at: usize) -> String {
        let to = self.goes(at);
        match self.first_line(at) {
            Some(Line::Relayed { relay, .. }) => {
                let relay = self.scene.account.number(&relay);
                format!(
                    "{to} by {}",
                    relay.map_or("a stranger", |relay| self.scene.account.name(relay))
                )
            }
            _ => to,
        }
    }

    fn follow_news(&mut self, at: usize) {
        let now = self.scene.now;
        let Some(brain) = &self.nodes[at].brain else { return };
        let fresh = |news: &&mut News| !news.superseded && now - news.at < FOLLOWED_FOR;
        for news in self.scene.measures.news.iter_mut().rev().take(16).filter(fresh) {
            let id = self.nodes[news.origin].credential.node;
            let knows = rules::views(brain.route())
                .any(|view| view.origin == id && view.state == news.state);
            if knows && at != news.origin {
                news.known.entry(at).or_insert(now - news.at);
            }
        }
    }

    /// An origin announced something about its local instance.
    pub(super) fn announced(&mut self, origin: usize, state: OriginState) {
        self.says(origin, format!("says of its instance: {state}"));
        for news in &mut self.scene.measures.news {
            news.superseded |= news.origin == origin;
        }
        // A process that has just started must be found first: that is joining, not news.
        let is_new = self.scene.now - self.nodes[origin].process.started < SETTLED;
        let is_early = self.scene.now < self.story.scenario.warmup();
        if is_new || is_early || self.scene.measures.news.len() >= MAX_FAULTS {
            return;
        }
        let reached = |at: &usize| {
            *at != origin
                && self.nodes[*at].brain.is_some()
                && self.scene.network.connects(*at, origin)
        };
        let audience = (0..self.nodes.len()).filter(reached).count();
        self.scene.measures.news.push(News {
            origin,
            state,
            at: self.scene.now,
            known: BTreeMap::new(),
            audience,
            superseded: false,
        });
    }

    pub(super) fn member_changed(&mut self, at: usize, subject: usize, up: bool) {
        let now = self.scene.now;
        let words = if up { "is present" } else { "is down" };
        self.says(at, format!("{} {words}", self.scene.account.name(subject)));
        self.notices(at, subject, if up { Notice::Came } else { Notice::Gone });
        if up {
            return self.readmits(at, subject);
        }
        self.scene.measures.second(now).downs += 1;
        let brain = self.nodes[at].brain.as_ref();
        let entry = brain.and_then(|it| it.directory().get(&self.nodes[subject].credential.node));
        // News of its end may arrive before its goodbye.
        let has_left = self.nodes[subject].process.leaving
            || entry.is_some_and(|it| it.liveness == Liveness::Left);
        self.evicts(at, subject, has_left);
    }
}
