//! Access control for streams from other nodes: which to serve or relay, and which open sessions
//! must end. [`access`] checks roles; this module adds what the node offers and what the authority
//! has revoked.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use meshport_config::{Allow, Credential, NodeId, Revocations, Revoked, ServiceName, UnixSeconds};

use crate::access::{self, Denial};
use crate::wire::Answer;

/// Maximum interval between checks of an open session's node: after a suspend or a clock change, a
/// credential expires before its timer fires.
pub(crate) const MAX_TRUST: Duration = Duration::from_secs(600);

/// The services of this node.
pub type Offers = BTreeMap<ServiceName, Offer>;

/// An offered service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    /// Addresses of its ready instances: one for a configured service, any number for one that a
    /// program offers.
    pub addresses: Vec<String>,
    /// The nodes and operators that may use it.
    pub allow: Vec<Allow>,
}

/// A refused stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    /// The answer to its opener.
    pub answer: Answer,
    /// The reason for the audit log, if access was denied.
    pub why: Option<Denial>,
}

impl From<Answer> for Refused {
    fn from(answer: Answer) -> Self {
        Self { answer, why: None }
    }
}

impl From<Denial> for Refused {
    fn from(why: Denial) -> Self {
        Self { answer: Answer::NotAllowed, why: Some(why) }
    }
}

/// A node's knowledge of other nodes' credentials.
pub trait Credentials {
    /// The credential of a peer that has a tunnel.
    fn of_peer(&self, node: &NodeId) -> Option<Arc<Credential>>;
    /// The newest known credential of a node, which may have expired.
    fn known(&self, node: &NodeId) -> Option<Arc<Credential>>;
    /// Whether a credential presented by another node is valid now.
    fn is_valid(&self, credential: &Credential) -> bool;
}

/// The credential of the node whose client opened a stream: the peer's own, or that of the `client`
/// for which the peer relays it.
///
/// # Errors
/// [`Denial`] if the peer is unknown, may not relay, or presents an invalid credential.
pub fn holder(
    peer: &NodeId,
    client: Option<&Credential>,
    credentials: &impl Credentials,
    now: UnixSeconds,
) -> Result<Arc<Credential>, Denial> {
    let own = credentials.of_peer(peer).ok_or(Denial::Unknown)?;
    let Some(client) = client else { return Ok(own) };
    access::may_relay(&own, now)?;
    shown(client, credentials)
}

/// The credential that a relay presents for the node whose stream it carries.
///
/// # Errors
/// [`Denial::BadClient`] if it is not valid.
pub fn shown(
    client: &Credential,
    credentials: &impl Credentials,
) -> Result<Arc<Credential>, Denial> {
    // Most are known, and were verified on arrival.
    if let Some(known) = credentials.of_peer(&client.node).filter(|known| **known == *client) {
        return Ok(known);
    }
    match credentials.is_valid(client) {
        true => Ok(Arc::new(client.clone())),
        false => Err(Denial::BadClient),
    }
}

/// Checks whether the holder of a credential may use a service: this node must offer it to that
/// holder, and its `own` credential must have the role for it.
///
/// # Errors
/// [`Refused`] with the answer to send.
pub fn admit<'a>(
    holder: &Credential,
    service: &ServiceName,
    offers: &'a Offers,
    own: &Credential,
    now: UnixSeconds,
) -> Result<&'a Offer, Refused> {
    access::may_use(holder, now)?;
    let offer = offers.get(service).filter(|_| own.roles.may_offer(service));
    let offer = offer.ok_or(Answer::NoSuchService)?;
    access::may_enter(holder, &offer.allow, now)?;
    Ok(offer)
}

/// How long the session of a `holder` may stay open before the next check; `None` if it must end:
/// the node was revoked, its credential expired, or it may no longer use the service.
pub fn stays(
    holder: &Arc<Credential>,
    offer: Option<&Offer>,
    revocations: &Revocations,
    credentials: &impl Credentials,
    now: UnixSeconds,
) -> Option<Duration> {
    let holder = present(holder, revocations, credentials)?;
    let allowed = match offer {
        Some(offer) => access::may_enter(&holder, &offer.allow, now),
        // A reload removed the service; open sessions are kept.
        None => access::may_use(&holder, now),
    };
    allowed.ok()?;
    let left = Duration::from_secs(holder.expires_at.0.saturating_sub(now.0));
    Some(left.min(MAX_TRUST))
}

/// The current credential of an open session's node or of its successor; none if revoked.
pub(crate) fn present(
    holder: &Arc<Credential>,
    revocations: &Revocations,
    credentials: &impl Credentials,
) -> Option<Arc<Credential>> {
    if is_revoked(&holder.node, revocations) {
        return None;
    }
    let node = revocations.successor_of(&holder.node);
    // The node may have replaced the credential that opened the session.
    let known = credentials.known(&node).filter(|known| known.issued_at >= holder.issued_at);
    let present = known.unwrap_or_else(|| holder.clone());
    let invite = present.delegation.as_ref().map(|it| Revoked::Invite(it.key));
    let is_revoked = invite.is_some_and(|it| revocations.get(&it).is_some());
    (!is_revoked).then_some(present)
}

/// Whether a node, or the one that succeeds it, is revoked by its key.
pub fn is_revoked(node: &NodeId, revocations: &Revocations) -> bool {
    let own = revocations.get(&Revoked::Node(*node));
    own.is_some_and(|it| it.successor().is_none())
        || revocations.has_node(&revocations.successor_of(node))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{WALL, credential};

    /// Peers with a tunnel, and other valid credentials.
    #[derive(Default)]
    struct Known {
        peers: Vec<Arc<Credential>>,
        valid: Vec<Credential>,
    }

    impl Credentials for Known {
        fn of_peer(&self, node: &NodeId) -> Option<Arc<Credential>> {
            self.peers.iter().find(|it| it.node == *node).cloned()
        }

        fn known(&self, node: &NodeId) -> Option<Arc<Credential>> {
            self.of_peer(node)
        }

        fn is_valid(&self, credential: &Credential) -> bool {
            self.valid.contains(credential)
        }
    }

    fn service() -> ServiceName {
        ServiceName::kube_apiserver()
    }

    fn offers(allow: &str) -> Offers {
        let allow = vec![allow.parse().expect("whom to allow")];
        Offers::from([(service(), Offer { addresses: vec!["127.0.0.1:6443".into()], allow })])
    }

    #[test]
    fn a_stream_is_its_peers_or_that_of_a_node_its_relay_vouches_for() {
        let (relay, node) = (Arc::new(credential(1, "relay")), Arc::new(credential(2, "node")));
        let other = credential(3, "node");
        let known = Known { peers: vec![relay.clone(), node.clone()], valid: vec![other.clone()] };
        let of = |peer: &Credential, client| holder(&peer.node, client, &known, WALL);
        assert_eq!(of(&node, None), Ok(node.clone()));
        assert_eq!(of(&other, None), Err(Denial::Unknown));
        assert_eq!(of(&relay, Some(&*node)), Ok(node.clone()));
        assert_eq!(of(&relay, Some(&other)), Ok(Arc::new(other.clone())));
        assert_eq!(of(&node, Some(&other)), Err(Denial::NoRelay));
        assert_eq!(of(&relay, Some(&credential(4, "node"))), Err(Denial::BadClient));
    }

    #[test]
    fn a_service_takes_an_offer_a_role_and_an_entry_of_its_list() {
        let (node, origin) = (credential(2, "node"), credential(1, "origin:kube-apiserver"));
        let get = |offers: &Offers, own| {
            admit(&node, &service(), offers, own, WALL).map(|it| it.addresses.join(" "))
        };
        assert_eq!(get(&offers("role:node"), &origin), Ok("127.0.0.1:6443".into()));
        assert_eq!(get(&Offers::new(), &origin), Err(Answer::NoSuchService.into()));
        assert_eq!(get(&offers("role:node"), &node), Err(Answer::NoSuchService.into()));
        assert_eq!(get(&offers("site:ber"), &origin), Err(Denial::NotAllowed.into()));
    }

    #[test]
    fn a_session_is_judged_again_and_ends_with_its_credential_or_its_entry() {
        let (node, none) = (Arc::new(credential(2, "node")), Revocations::default());
        let known = Known { peers: vec![node.clone()], valid: Vec::new() };
        let at = |offers: &Offers, now| stays(&node, offers.get(&service()), &none, &known, now);
        assert_eq!(at(&offers("role:node"), WALL), Some(MAX_TRUST));
        let late = UnixSeconds(node.expires_at.0 - 5);
        assert_eq!(at(&offers("role:node"), late), Some(Duration::from_secs(5)));
        assert_eq!(at(&offers("role:node"), node.expires_at), None);
        assert_eq!(at(&offers("site:ber"), WALL), None);
        assert_eq!(at(&Offers::new(), WALL), Some(MAX_TRUST), "a reload leaves it alone");
    }
}
