//! Connections with previous processes of peers: their streams continue, and no new ones open.

use std::sync::Mutex;
use std::sync::atomic::Ordering;

use meshport_config::NodeId;

use super::Live;
use crate::lock;

/// Retired connections per peer: enough for both directions of a peer's draining processes, since
/// most have no stream. Beyond that, the one with the fewest streams is closed.
pub(super) const MAX_RETIRED: usize = 8;

/// All retired connections, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Retired(Mutex<Vec<(NodeId, Live)>>);

impl Retired {
    /// Adds a connection. If the peer has too many then, removes and returns the one with the
    /// fewest streams.
    pub(super) fn add(&self, node: NodeId, live: Live) -> Option<Live> {
        let mut all = lock(&self.0);
        all.retain(|(_, live)| live.is_open());
        all.push((node, live));
        let of_node = || all.iter().enumerate().filter(|(_, (of, _))| *of == node);
        if of_node().count() <= MAX_RETIRED {
            return None;
        }
        let streams = |live: &Live| live.streams.load(Ordering::Relaxed);
        let (least, _) = of_node().min_by_key(|(_, (_, live))| streams(live))?;
        Some(all.remove(least).1)
    }

    /// Removes and returns those of a peer.
    pub(super) fn take(&self, node: &NodeId) -> Vec<Live> {
        self.take_if(|of, _| of == node)
    }

    /// Removes and returns those without open streams.
    pub(super) fn take_unused(&self) -> Vec<Live> {
        self.take_if(|_, live| live.streams.load(Ordering::Relaxed) == 0)
    }

    fn take_if(&self, is_meant: impl Fn(&NodeId, &Live) -> bool) -> Vec<Live> {
        let mut all = lock(&self.0);
        all.extract_if(.., |(of, live)| is_meant(of, live)).map(|(_, live)| live).collect()
    }

    /// A peer has a new NodeId.
    pub(super) fn rename(&self, previous: &NodeId, node: NodeId) {
        lock(&self.0).iter_mut().filter(|(of, _)| of == previous).for_each(|it| it.0 = node);
    }

    /// Streams that are open on those of a peer.
    pub(super) fn streams(&self, node: &NodeId) -> usize {
        let all = lock(&self.0);
        let of_node = all.iter().filter(|(of, _)| of == node);
        of_node.map(|(_, live)| live.streams.load(Ordering::Relaxed)).sum()
    }

    /// The peers that have any, once per connection.
    pub(super) fn nodes(&self) -> Vec<NodeId> {
        lock(&self.0).iter().map(|(node, _)| *node).collect()
    }
}
