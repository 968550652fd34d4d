//! Services that a program on this machine offers through this node, such as those of a cluster:
//! which ones are accepted, and for how long.
//!
//! An offer is complete and must be renewed. It requires the role `gateway` in this node's
//! credential, and each of its services the role `origin:SERVICE`. Services in the settings take
//! precedence. Refused services get a reason.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use meshport_config::{Allow, Credential, Role, ServiceName};
use meshport_discovery::OriginState;
use serde::{Deserialize, Serialize};

use crate::egress::{Offer, Offers};

/// Maximum services in an offer: neither a credential nor a record has room for more.
pub const MAX_OFFERED_SERVICES: usize = 16;
/// Instances of one offered service. An EndpointSlice of Kubernetes has 100; a stream dials few of
/// them, and further gateways can offer the same service.
pub const MAX_INSTANCES: usize = 100;
/// Entries in the allow list of an offered service.
pub const MAX_ALLOWED: usize = 64;
/// The shortest time for which an offer can be made.
pub const MIN_OFFER_TIME: Duration = Duration::from_secs(5);
/// The longest time, and the default: offers of a program that ended silently last this long.
pub const MAX_OFFER_TIME: Duration = Duration::from_secs(60);

/// An instance of an offered service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instance {
    /// The address to dial.
    pub address: SocketAddr,
    /// Whether it accepts new connections.
    pub ready: bool,
}

/// A service as a program offers it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Its instances.
    pub instances: Vec<Instance>,
    /// The nodes and operators that may use it.
    pub allow: Vec<Allow>,
}

/// This node accepts no offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this node's credential lacks the role gateway; invite the node with it")]
pub struct NoGateway;

/// Why a service of an offer is not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The credential does not allow it.
    #[error("this node's credential lacks the role origin:{0}")]
    NoRole(ServiceName),
    /// The settings have a service of this name, which takes precedence.
    #[error("the node's configuration has a service of this name")]
    Configured,
}

/// The result of an offer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judged {
    /// The accepted services.
    pub offers: Offers,
    /// The others, and why.
    pub refused: BTreeMap<ServiceName, Refusal>,
}

/// Decides which services of an offer a node with this credential accepts; `is_configured` returns
/// whether the settings have a service.
///
/// # Errors
/// [`NoGateway`] if it accepts no offers at all.
pub fn judge(
    wanted: BTreeMap<ServiceName, Wanted>,
    own: &Credential,
    is_configured: impl Fn(&ServiceName) -> bool,
) -> Result<Judged, NoGateway> {
    if !own.roles.contains(&Role::Gateway) {
        return Err(NoGateway);
    }
    let (mut offers, mut refused) = (Offers::new(), BTreeMap::new());
    for (name, Wanted { instances, allow }) in wanted {
        if !own.roles.may_offer(&name) {
            refused.insert(name.clone(), Refusal::NoRole(name));
        } else if is_configured(&name) {
            refused.insert(name, Refusal::Configured);
        } else {
            // Each once, in an order that does not depend on the program.
            let ready: BTreeSet<SocketAddr> =
                instances.iter().filter(|it| it.ready).map(|it| it.address).collect();
            let addresses = ready.iter().map(ToString::to_string).collect();
            offers.insert(name, Offer { addresses, allow });
        }
    }
    Ok(Judged { offers, refused })
}

/// The state of an offered service as announced to other nodes.
pub fn state(offer: &Offer) -> OriginState {
    if offer.addresses.is_empty() { OriginState::Unready } else { OriginState::Ready }
}

/// The offer in force.
#[derive(Debug, Default)]
pub(crate) struct Offered {
    offers: Arc<Offers>,
    ends: Option<Instant>,
}

impl Offered {
    /// The offered services.
    pub(crate) fn offers(&self) -> &Arc<Offers> {
        &self.offers
    }

    /// Replaces the offer, which lasts until this time unless it is renewed. Returns whether it
    /// differs from the previous one.
    pub(crate) fn set(&mut self, offers: Offers, ends: Option<Instant>) -> bool {
        self.ends = ends.filter(|_| !offers.is_empty());
        let changed = *self.offers != offers;
        if changed {
            self.offers = Arc::new(offers);
        }
        changed
    }

    /// Keeps only the services for which `keep` holds, until the same time as before.
    pub(crate) fn retained(
        &self,
        keep: impl Fn(&ServiceName) -> bool,
    ) -> (Offers, Option<Instant>) {
        let mut offers = Offers::clone(&self.offers);
        offers.retain(|name, _| keep(name));
        (offers, self.ends)
    }

    /// Time at which the offer ends.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.ends
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "an origin for virtual time")]

    use super::*;
    use crate::testing::credential;

    fn name(text: &str) -> ServiceName {
        text.parse().expect("a name")
    }

    fn wanted(names: &[&str], instances: &[(u16, bool)]) -> BTreeMap<ServiceName, Wanted> {
        let instance = |&(port, ready)| Instance { address: ([10, 77, 0, 1], port).into(), ready };
        let instances: Vec<Instance> = instances.iter().map(instance).collect();
        let of = |it: &&str| {
            let (instances, allow) = (instances.clone(), Allow::everyone());
            (name(it), Wanted { instances, allow })
        };
        names.iter().map(of).collect()
    }

    #[test]
    fn an_offer_takes_the_role_of_a_gateway_and_one_for_each_service() {
        let judge = |roles, names: &[&str]| {
            judge(wanted(names, &[(80, true)]), &credential(1, roles), |it| *it == name("own"))
        };
        for roles in ["node,origin:web", "operator,origin:web", "node,relay,vip,origin:web"] {
            assert_eq!(judge(roles, &["web"]), Err(NoGateway), "{roles}");
        }
        let judged = judge("gateway,origin:web,origin:own", &["web", "db", "own"]);
        let Judged { offers, refused } = judged.expect("it is a gateway");
        assert_eq!(offers.keys().collect::<Vec<_>>(), [&name("web")]);
        let why = [(name("db"), Refusal::NoRole(name("db"))), (name("own"), Refusal::Configured)];
        assert_eq!(refused, BTreeMap::from(why));
    }

    #[test]
    fn ready_instances_are_dialled_each_once_and_none_makes_it_unready() {
        let own = credential(1, "gateway,origin:web");
        let of = |instances: &[(u16, bool)]| {
            let judged = judge(wanted(&["web"], instances), &own, |_| false).expect("a gateway");
            let offer = judged.offers[&name("web")].clone();
            (state(&offer), offer.addresses)
        };
        let ready =
            (OriginState::Ready, ["10.77.0.1:80", "10.77.0.1:82"].map(str::to_owned).to_vec());
        assert_eq!(of(&[(82, true), (80, true), (81, false), (80, true)]), ready);
        assert_eq!(of(&[(80, false)]), (OriginState::Unready, Vec::new()));
        assert_eq!(of(&[]), (OriginState::Unready, Vec::new()));
    }

    #[test]
    fn an_empty_offer_has_no_end() {
        let (own, now) = (credential(1, "gateway,origin:web"), Instant::now());
        let judged = judge(wanted(&["web"], &[(80, true)]), &own, |_| false).expect("a gateway");
        let mut offered = Offered::default();
        assert!(offered.set(judged.offers.clone(), Some(now)));
        assert!(!offered.set(judged.offers, Some(now + MAX_OFFER_TIME)), "it is the same");
        assert_eq!(offered.poll_timeout(), Some(now + MAX_OFFER_TIME));
        assert!(offered.set(Offers::new(), Some(now)));
        assert_eq!(offered.poll_timeout(), None);
    }
}
