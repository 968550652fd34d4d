//! The kinds of gossip that take turns: news, rumours, comparisons of directories, announcements.

use std::time::{Duration, Instant};

use crate::config::DiscoveryConfig;
use crate::dice::Dice;
use crate::news::{News, Rumours};
use crate::seeds::Seeds;
use crate::sync::Sync;

/// The state and timing of each.
#[derive(Debug)]
pub(super) struct Gossip {
    pub(super) news: News,
    pub(super) rumours: Rumours,
    pub(super) sync: Sync,
    pub(super) seeds: Seeds,
    /// Time of the next announcement to nodes that are known but are not members.
    pub(super) search_at: Instant,
}

impl Gossip {
    pub(super) fn new(config: &DiscoveryConfig, now: Instant) -> Self {
        Self {
            news: News::default(),
            rumours: Rumours::default(),
            sync: Sync::new(now + config.announce_first),
            seeds: Seeds::new(config.announce_first, config.announce_longest),
            search_at: now + config.announce_first,
        }
    }

    /// Whether a search is due; the next one follows after about `pause`.
    pub(super) fn take_search(&mut self, pause: Duration, dice: &mut Dice, now: Instant) -> bool {
        let is_due = self.search_at <= now;
        if is_due {
            self.search_at = now + dice.jitter(pause, 25);
        }
        is_due
    }

    /// Time of the next message; rumours wait while there is no member to receive them.
    pub(super) fn next_telling(&self, is_alone: bool) -> Option<Instant> {
        let rumours = self.rumours.poll_timeout().filter(|_| !is_alone);
        self.news.poll_timeout().into_iter().chain(rumours).min()
    }

    /// Time of the next comparison, request or announcement.
    pub(super) fn next_question(&self) -> Option<Instant> {
        let due = [self.sync.poll_timeout(), self.seeds.poll_timeout(), Some(self.search_at)];
        due.into_iter().flatten().min()
    }
}
