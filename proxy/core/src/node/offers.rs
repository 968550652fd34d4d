//! Services that programs on this machine offer through this node, and the announcement of these
//! and of the node's own.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use meshport_config::{Credential, Role, ServiceName};

use super::{Event, NodeCore};
use crate::egress::Offers;
use crate::offered::{self, Judged, NoGateway, Refusal, Wanted};

impl NodeCore {
    /// Handles a complete offer, which is withdrawn unless renewed within `lasts`. `own` is this
    /// node's credential. Returns the services that are not accepted.
    ///
    /// # Errors
    /// [`NoGateway`] if this node accepts no offers; earlier offers stay as they are.
    pub fn handle_offers(
        &mut self,
        wanted: BTreeMap<ServiceName, Wanted>,
        own: &Credential,
        lasts: Duration,
        now: Instant,
    ) -> Result<BTreeMap<ServiceName, Refusal>, NoGateway> {
        let judged = offered::judge(wanted, own, |name| self.services.contains_key(name))?;
        let Judged { offers, refused } = judged;
        self.replace_offers(offers, Some(now + lasts), "the program withdrew it", now);
        Ok(refused)
    }

    /// The current offers of a program on this machine.
    pub fn offered(&self) -> &Offers {
        self.offered.offers()
    }

    /// When the offer ends unless renewed.
    pub fn offered_until(&self) -> Option<Instant> {
        self.offered.poll_timeout()
    }

    /// Withdraws an offer that was not renewed.
    pub(super) fn let_offers_end(&mut self, now: Instant) {
        if self.offered.poll_timeout().is_some_and(|ends| ends <= now) {
            self.replace_offers(Offers::new(), None, "not renewed in time", now);
        }
    }

    /// Drops the offer of a service that the settings now define.
    pub(super) fn yield_to_settings(&mut self, name: &ServiceName, now: Instant) {
        let (offers, ends) = self.offered.retained(|it| it != name);
        self.replace_offers(offers, ends, "the configuration has it now", now);
    }

    fn replace_offers(
        &mut self,
        offers: Offers,
        ends: Option<Instant>,
        why: &'static str,
        now: Instant,
    ) {
        for name in self.offered.offers().keys().filter(|name| !offers.contains_key(*name)) {
            self.discovery.remove_service(name, now);
        }
        for (name, offer) in &offers {
            self.discovery.set_service(name.clone(), offered::state(offer), now);
        }
        if self.offered.set(offers, ends) {
            let offers = self.offered.offers().clone();
            self.events.push_back(Event::Offered { offers, why });
        }
        self.settle(now);
    }

    /// Announces the services that this node's new credential allows, and withdraws the rest. What
    /// denied the former may admit this one.
    pub(super) fn announce_services(&mut self, credential: &Credential, now: Instant) {
        self.services.values_mut().for_each(|it| it.evidence.handle_credential(now));
        self.stale = true;
        let own = self.services.iter().filter_map(|(name, it)| Some((name, it.own_state()?)));
        for (name, state) in own {
            match credential.roles.may_offer(name) {
                true => self.discovery.set_service(name.clone(), state, now),
                false => self.discovery.remove_service(name, now),
            }
        }
        let roles = &credential.roles;
        let is_gateway = roles.contains(&Role::Gateway);
        let (offers, ends) = self.offered.retained(|name| is_gateway && roles.may_offer(name));
        self.replace_offers(offers, ends, "the credential has changed", now);
    }
}
