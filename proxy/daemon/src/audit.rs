//! The audit log: admissions, refusals, revocations and operators' sessions.
//!
//! Each entry is one log line with tracing's target `audit` at INFO, independent of the log level.
//! Field names are stable; `docs/audit.md` lists them.
//!
//! Rate limits: a budget of lines per admitted node, and one shared by all unknown nodes, since
//! anyone with the mesh secret can make up keys. Suppressed lines are counted, and reported with
//! the next line of the same source. Bounds: [`MAX_SOURCES`] budgets; nodes beyond that share the
//! one of unknown nodes. Nodes without a tunnel and with a full budget are evicted; their last
//! suppressed lines are then only in the totals.

mod exposed;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use meshport_config::{
    Credential, Endpoint, Issued, NodeId, Revocation, Revoked, ServiceName, UnixSeconds,
};
use meshport_core::access::Denial;

use crate::clock;
use crate::log_budget::{FEW, LogBudget};
use crate::sessions::splice::Carried;

pub(crate) use self::exposed::{ExposedBudgets, ExposedClient, ExposedSession};

/// Maximum nodes with their own budget: as many as the mesh has peers.
const MAX_SOURCES: usize = 20_736;
/// Interval between searches of a full table for budgets to evict, since each search reads all of
/// it.
const SEARCH_INTERVAL: Duration = Duration::from_secs(1);
/// How long an operator may keep reading this node's view before it is logged again.
const VIEWING: Duration = Duration::from_secs(600);

/// Writes a line: the number of lines suppressed before it, its event and its fields.
macro_rules! line {
    ($suppressed:expr, $event:literal, $($fields:tt)*) => {{
        // Not among the fields, which are not evaluated where nobody reads the log.
        let suppressed: u64 = $suppressed;
        tracing::info!(target: "audit", event = $event, $($fields)*, suppressed);
    }};
}
use line;

/// A stream refused because of credentials.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RefusedStream<'a> {
    /// Its sender.
    pub(crate) peer: &'a NodeId,
    /// That node's credential, if known.
    pub(crate) credential: Option<&'a Credential>,
    /// The node for which a relay carries it.
    pub(crate) client: Option<&'a Credential>,
    pub(crate) service: &'a ServiceName,
    pub(crate) reason: &'a str,
}

/// See the module's doc. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Audit(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    sources: Mutex<Sources>,
    written: AtomicU64,
    held_back: AtomicU64,
}

#[derive(Debug, Default)]
struct Sources {
    strangers: Option<LogBudget>,
    nodes: BTreeMap<NodeId, Source>,
    searched: Option<Instant>,
}

#[derive(Debug)]
struct Source {
    budget: LogBudget,
    /// The credential it was admitted with, while its tunnel is up.
    admitted: Option<[u8; 8]>,
    /// When the log last reported that it reads this node's view.
    viewed: Option<Instant>,
}

impl Sources {
    /// The node's own entry, if there is room for it.
    fn node(&mut self, node: NodeId, now: Instant) -> Option<&mut Source> {
        if self.nodes.len() >= MAX_SOURCES && !self.nodes.contains_key(&node) {
            self.forget_idle(now);
            if self.nodes.len() >= MAX_SOURCES {
                return None;
            }
        }
        let new = || Source { budget: LogBudget::new(FEW, now), admitted: None, viewed: None };
        Some(self.nodes.entry(node).or_insert_with(new))
    }

    /// Evicts unneeded budgets, if the next search is due.
    fn forget_idle(&mut self, now: Instant) {
        let is_early = |at| now.saturating_duration_since(at) < SEARCH_INTERVAL;
        if self.searched.is_some_and(is_early) {
            return;
        }
        self.searched = Some(now);
        self.nodes.retain(|_, source| source.admitted.is_some() || !source.budget.is_whole(now));
    }

    fn take(&mut self, source: Option<NodeId>, now: Instant) -> Option<u64> {
        if let Some(source) = source.and_then(|node| self.node(node, now)) {
            return source.budget.take(now);
        }
        self.strangers.get_or_insert_with(|| LogBudget::new(FEW, now)).take(now)
    }
}

impl Audit {
    /// Logs that a peer with a verified credential has a tunnel, or presents another credential in
    /// it.
    pub(crate) fn admitted(&self, peer: &Credential) {
        let now = clock::now();
        let id = peer.id();
        let known = self.with(|sources| {
            sources.node(peer.node, now).is_some_and(|it| it.admitted.replace(id) == Some(id))
        });
        if known {
            return;
        }
        let Some(suppressed) = self.take(Some(peer.node), now) else { return };
        let invite = peer.delegation.as_ref().map(|it| it.key.to_string());
        line!(
            suppressed, "admitted",
            node = %peer.node, name = %peer.name, site = %peer.site, roles = %peer.roles,
            credential = hex(&id), invite, expires_at = %peer.expires_at
        );
    }

    /// Notes that the tunnel of a peer has ended.
    pub(crate) fn gone(&self, node: &NodeId) {
        self.with(|sources| {
            if let Some(source) = sources.nodes.get_mut(node) {
                source.admitted = None;
            }
        });
    }

    /// A credential was refused, by this node or by the peer.
    pub(crate) fn refused_peer(&self, node: &NodeId, reason: &str) {
        let Some(suppressed) = self.take(None, clock::now()) else { return };
        line!(suppressed, "refused", %node, reason);
    }

    /// Logs handshakes in the name of a revoked node. Only the key's owner could complete one, but
    /// the sender is not proven yet.
    pub(crate) fn knocked(&self, node: &NodeId, why: &str) {
        let reason = format!("unproven sender claims to be this node, {why}");
        self.refused_peer(node, &reason);
    }

    /// A stream was refused because of credentials.
    pub(crate) fn refused_stream(&self, stream: &RefusedStream<'_>) {
        let RefusedStream { peer, credential, client, service, reason } = stream;
        let source = credential.map(|_| **peer);
        let Some(suppressed) = self.take(source, clock::now()) else { return };
        let name = credential.map(|it| it.name.to_string());
        let client = client.map(|it| it.node.to_string());
        line!(suppressed, "stream-refused", node = %peer, name, client, %service, reason);
    }

    /// A node without the role operator asked for this node's view, or for another's through this
    /// node.
    pub(crate) fn refused_view(
        &self,
        peer: &NodeId,
        credential: Option<&Credential>,
        client: Option<&Credential>,
        why: &Denial,
    ) {
        let source = credential.map(|_| *peer);
        let Some(suppressed) = self.take(source, clock::now()) else { return };
        let name = credential.map(|it| it.name.to_string());
        let client = client.map(|it| it.node.to_string());
        line!(suppressed, "view-refused", node = %peer, name, client, reason = %why);
    }

    /// An operator reads this node's view. `dashboard` asks every few seconds, so one line covers
    /// [`VIEWING`].
    pub(crate) fn operator_view(&self, operator: &Credential, carrier: Option<NodeId>) {
        let now = clock::now();
        let is_told = self.with(|sources| {
            sources.node(operator.node, now).is_some_and(|source| {
                let is_told =
                    source.viewed.is_some_and(|at| now.saturating_duration_since(at) < VIEWING);
                if !is_told {
                    source.viewed = Some(now);
                }
                is_told
            })
        });
        if is_told {
            return;
        }
        let Some(suppressed) = self.take(Some(operator.node), now) else { return };
        let relay = carrier.map(|carrier| carrier.to_string());
        line!(suppressed, "operator-view", node = %operator.node, name = %operator.name, relay);
    }

    /// Logs an apiserver's refused request, or one of a process that may not use the socket.
    pub(crate) fn refused_target(&self, target: Option<&Endpoint>, rule: &str, reason: &str) {
        let Some(suppressed) = self.take(None, clock::now()) else { return };
        let target = target.map(ToString::to_string);
        line!(suppressed, "way-back-refused", to = target, rule, reason);
    }

    /// The authority revoked something, or a node continues under another key.
    pub(crate) fn revoked(&self, revocation: &Revocation) {
        let (revoked, at) = (&revocation.revoked, revocation.at);
        if let Revoked::Succeeded { node, .. } = revoked
            && revoked.is_departure()
        {
            line!(self.unlimited(), "departed", %node, %at);
            return;
        }
        if let Revoked::Succeeded { node: former, by } = revoked {
            line!(self.unlimited(), "succeeded", %former, node = %by, %at);
            return;
        }
        line!(self.unlimited(), "revoked", %revoked, %at);
    }

    /// Two processes use one node's key. Reported at most once in ten minutes per node.
    pub(crate) fn duplicate(&self, node: &NodeId, at: &str, by: Option<&NodeId>) {
        let source = by.copied().unwrap_or(*node);
        let Some(suppressed) = self.take(Some(source), clock::now()) else { return };
        let by = by.map(ToString::to_string);
        line!(suppressed, "duplicate-identity", %node, at, by);
    }

    /// This node presents another credential.
    pub(crate) fn renewed(&self, own: &Credential) {
        line!(
            self.unlimited(), "renewed",
            node = %own.node, credential = hex(&own.id()), expires_at = %own.expires_at
        );
    }

    /// This node presents its previous credential again.
    pub(crate) fn returned(&self, own: &Credential) {
        line!(
            self.unlimited(), "returned",
            node = %own.node, credential = hex(&own.id()), expires_at = %own.expires_at
        );
    }

    /// This node, an issuer, has renewed the credential of a node that joined with `base`, whose
    /// request came through a relay.
    pub(crate) fn issued(&self, issued: &Issued, base: &Credential, relay: Option<NodeId>) {
        let next = issued.content();
        let invite = base.delegation.as_ref().map(|it| it.key.to_string());
        let relay = relay.map(|it| it.to_string());
        line!(
            self.unlimited(), "issued",
            node = %next.node, name = %next.name, expires_at = %next.expires_at, invite, relay
        );
    }

    /// The mesh has another secret, received from a member or from an operator of this node.
    pub(crate) fn rotated(
        &self,
        number: u64,
        former_until: Option<UnixSeconds>,
        from: Option<&NodeId>,
    ) {
        let former_until = former_until.map(|it| it.to_string());
        let node = from.map(ToString::to_string);
        line!(self.unlimited(), "secret-rotated", number, former_until, node);
    }

    /// This node continues with another key.
    pub(crate) fn key_rotated(&self, node: &NodeId, former: &NodeId, former_until: UnixSeconds) {
        line!(self.unlimited(), "key-rotated", %node, %former, %former_until);
    }

    /// The previous key is no longer accepted.
    pub(crate) fn key_retired(&self, former: &NodeId) {
        line!(self.unlimited(), "key-retired", %former);
    }

    /// The previous secret is no longer accepted.
    pub(crate) fn retired(&self, number: u64) {
        line!(self.unlimited(), "secret-retired", number);
    }

    /// An operator's session with an instance of this node begins; it ends when the returned value
    /// is dropped.
    pub(crate) fn operator_session(
        &self,
        operator: &Arc<Credential>,
        relay: Option<NodeId>,
        service: &ServiceName,
    ) -> OperatorSession {
        let session = OperatorSession {
            audit: self.clone(),
            operator: operator.clone(),
            service: service.clone(),
            begun: clock::now(),
            carried: Carried::default(),
        };
        if let Some(suppressed) = self.take(Some(operator.node), session.begun) {
            let relay = relay.map(|relay| relay.to_string());
            line!(
                suppressed, "operator-session-started",
                node = %operator.node, name = %operator.name, %service, relay
            );
        }
        session
    }

    /// Lines written and lines suppressed since the start.
    pub(crate) fn counts(&self) -> [(&'static str, u64); 2] {
        let Inner { written, held_back, .. } = &*self.0;
        [("written", written), ("suppressed", held_back)]
            .map(|(outcome, count)| (outcome, count.load(Ordering::Relaxed)))
    }

    /// Whether a line may be written now; if so, the number of lines suppressed before it.
    fn take(&self, source: Option<NodeId>, now: Instant) -> Option<u64> {
        self.counted(self.with(|sources| sources.take(source, now)))
    }

    /// For a line that only the authority and nodes with their own keys can cause.
    fn unlimited(&self) -> u64 {
        self.counted(Some(0)).unwrap_or_default()
    }

    fn counted(&self, taken: Option<u64>) -> Option<u64> {
        let Inner { written, held_back, .. } = &*self.0;
        if taken.is_some() { written } else { held_back }.fetch_add(1, Ordering::Relaxed);
        taken
    }

    fn with<T>(&self, look: impl FnOnce(&mut Sources) -> T) -> T {
        look(&mut self.0.sources.lock().expect("no holder of this lock can panic"))
    }
}

/// An open session of an operator. See [`Audit::operator_session`].
#[derive(Debug)]
pub(crate) struct OperatorSession {
    audit: Audit,
    operator: Arc<Credential>,
    service: ServiceName,
    begun: Instant,
    /// The bytes carried so far; `up` counts those from the instance.
    pub(crate) carried: Carried,
}

impl Drop for OperatorSession {
    fn drop(&mut self) {
        let Self { audit, operator, service, begun, carried } = self;
        let now = clock::now();
        let Some(suppressed) = audit.take(Some(operator.node), now) else { return };
        let seconds = now.saturating_duration_since(*begun).as_secs();
        line!(
            suppressed, "operator-session-ended",
            node = %operator.node, name = %operator.name, %service, seconds,
            sent_bytes = carried.up.load(Ordering::Relaxed),
            received_bytes = carried.down.load(Ordering::Relaxed)
        );
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use meshport_config::{NodeKey, Succession};
    use serde_json::Value;

    use meshport_core::testing::credential;

    use super::*;
    use crate::testing::{Lines, revocations, service};

    /// The lines that `what` writes, as in the daemon's JSON log.
    fn lines(what: impl FnOnce(&Audit)) -> Vec<Value> {
        let kept = Lines::default();
        let writer = kept.clone();
        let subscriber =
            tracing_subscriber::fmt().json().with_writer(move || writer.clone()).finish();
        tracing::subscriber::with_default(subscriber, || what(&Audit::default()));
        kept.text().lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    /// The revocation of a node that continues with another key.
    fn succeeded() -> Revocation {
        let (mesh, by) = (credential(4, "node").mesh, credential(5, "node").node);
        let agreed = Succession::agree(&NodeKey::from_bytes([4; 32]), &by, &mesh, UnixSeconds(0));
        Revocation::of_succession(&mesh, &by, &agreed)
    }

    /// A stream that this node opened for itself.
    fn stream(peer: &Credential) -> RefusedStream<'_> {
        static SERVICE: LazyLock<ServiceName> = LazyLock::new(service);
        let (credential, reason) = (Some(peer), "no role");
        RefusedStream { peer: &peer.node, credential, client: None, service: &SERVICE, reason }
    }

    fn names(line: &Value) -> Vec<&str> {
        let fields = line["fields"].as_object().expect("fields");
        fields.keys().map(String::as_str).collect()
    }

    #[test]
    fn each_event_has_its_fields() {
        let peer = Arc::new(credential(4, "operator"));
        let written = lines(|audit| {
            audit.admitted(&peer);
            audit.refused_peer(&peer.node, "it is of another mesh");
            audit.knocked(&peer.node, "revoked by the authority");
            let client = credential(5, "node");
            audit.refused_stream(&RefusedStream { client: Some(&client), ..stream(&peer) });
            audit.revoked(revocations(peer.node).iter().next().expect("one"));
            audit.revoked(&succeeded());
            audit.renewed(&peer);
            audit.returned(&peer);
            audit.key_rotated(&peer.node, &peer.node, peer.expires_at);
            audit.key_retired(&peer.node);
            audit.rotated(2, Some(peer.expires_at), Some(&peer.node));
            audit.retired(2);
            drop(audit.operator_session(&peer, Some(peer.node), &service()));
        });
        let expected: [&[&str]; 14] = [
            &["credential", "event", "expires_at", "name", "node", "roles", "site", "suppressed"],
            &["event", "node", "reason", "suppressed"],
            &["event", "node", "reason", "suppressed"],
            &["client", "event", "name", "node", "reason", "service", "suppressed"],
            &["at", "event", "revoked", "suppressed"],
            &["at", "event", "former", "node", "suppressed"],
            &["credential", "event", "expires_at", "node", "suppressed"],
            &["credential", "event", "expires_at", "node", "suppressed"],
            &["event", "former", "former_until", "node", "suppressed"],
            &["event", "former", "suppressed"],
            &["event", "former_until", "node", "number", "suppressed"],
            &["event", "number", "suppressed"],
            &["event", "name", "node", "relay", "service", "suppressed"],
            &[
                "event",
                "name",
                "node",
                "received_bytes",
                "seconds",
                "sent_bytes",
                "service",
                "suppressed",
            ],
        ];
        let events = [
            "admitted",
            "refused",
            "refused",
            "stream-refused",
            "revoked",
            "succeeded",
            "renewed",
            "returned",
            "key-rotated",
            "key-retired",
            "secret-rotated",
            "secret-retired",
            "operator-session-started",
            "operator-session-ended",
        ];
        assert_eq!(written.len(), expected.len(), "{written:#?}");
        for ((line, fields), event) in written.iter().zip(expected).zip(events) {
            assert_eq!((&line["target"], &line["level"]), (&"audit".into(), &"INFO".into()));
            assert_eq!(line["fields"]["event"], event);
            assert_eq!(names(line), fields, "{event}");
        }
        assert_eq!(written[0]["fields"]["node"], peer.node.to_string());
        let reason = "unproven sender claims to be this node, revoked by the authority";
        assert_eq!(written[2]["fields"]["reason"], reason);
        assert_eq!(written[3]["fields"]["reason"], "no role");
    }

    #[test]
    fn an_admission_is_logged_once_per_tunnel_and_credential() {
        let (peer, other) = (credential(4, "node"), credential(4, "node,relay"));
        let written = lines(|audit| {
            audit.admitted(&peer);
            audit.admitted(&peer);
            audit.admitted(&other);
            audit.gone(&peer.node);
            audit.admitted(&other);
        });
        assert_eq!(written.len(), 3);
    }

    #[test]
    fn nobody_fills_the_disk_and_nobody_hides_the_others() {
        let (loud, quiet) = (credential(4, "relay"), credential(5, "relay"));
        let floods = 500;
        let written = lines(|audit| {
            for _ in 0..floods {
                audit.refused_stream(&stream(&loud));
            }
            for number in 0..floods {
                let mut id = [0; 32];
                id[..4].copy_from_slice(&u32::to_be_bytes(number));
                audit.refused_peer(&NodeId::from_bytes(id), "unknown");
            }
            audit.refused_stream(&stream(&quiet));
            let [(_, written), (_, held_back)] = audit.counts();
            assert_eq!(written + held_back, u64::from(2 * floods + 1));
            assert!(held_back > u64::from(floods), "{written} written");
        });
        // Two bursts, one line for each second that this took, and the quiet node's line.
        assert!(written.len() < 100, "{} lines", written.len());
        let last = written.last().expect("a line");
        assert_eq!(last["fields"]["node"], quiet.node.to_string());
        assert_eq!(last["fields"]["suppressed"], 0);
    }

    /// Nodes that have left fill the table; a new node still gets its own budget, even if unknown
    /// nodes have used up theirs.
    #[test]
    fn nodes_that_have_gone_make_room_for_others() {
        let node = |number: usize| {
            let mut id = [1; 32];
            id[..8].copy_from_slice(&number.to_be_bytes());
            NodeId::from_bytes(id)
        };
        let start = clock::now();
        let mut sources = Sources::default();
        for number in 0..MAX_SOURCES {
            assert_eq!(sources.take(Some(node(number)), start), Some(0));
        }
        let stays = node(7);
        sources.node(stays, start).expect("it is known").admitted = Some([1; 8]);
        while sources.take(None, start).is_some() {}
        let late = node(MAX_SOURCES);
        assert_eq!(sources.take(Some(late), start), None, "the budgets of all are in use");
        // Their budgets are full again; that of unknown nodes is not, since they never stop.
        let early = start + SEARCH_INTERVAL - Duration::from_millis(1);
        assert_eq!(sources.take(Some(late), early), None, "it was looked for a moment ago");
        let later = start + 2 * SEARCH_INTERVAL;
        while sources.take(None, later).is_some() {}
        assert_eq!(sources.take(Some(late), later), Some(0));
        assert_eq!(sources.nodes.len(), 2, "only those that need one have a budget");
        assert_eq!(sources.nodes[&stays].admitted, Some([1; 8]), "reported once per tunnel");
    }

    #[test]
    fn suppressed_lines_are_reported() {
        let mut sources = Sources::default();
        let node = credential(4, "node").node;
        let start = clock::now();
        let written = (0..100).filter(|_| sources.take(Some(node), start).is_some()).count() as u64;
        let later = start + Duration::from_secs(2);
        assert_eq!(sources.take(Some(node), later), Some(100 - written));
    }
}
