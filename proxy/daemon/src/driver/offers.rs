//! Services that programs on this machine offer through this node.

use std::sync::Arc;
use std::time::Duration;

use meshport_core::egress::Offers;
use tracing::{info, warn};

use super::Driver;
use super::answers::{Answer, Asker};
use crate::Error;
use crate::admin::offers::{OffersReport, OffersRequest};
use crate::admin::request::Request;
use crate::clock;

impl Answer for OffersRequest {
    type Reply = <Self as Request>::Reply;

    fn answer(self, driver: &mut Driver, to: Asker<Self::Reply>) {
        let _ = to.send(driver.take_offers(&self));
    }
}

impl Driver {
    fn take_offers(&mut self, request: &OffersRequest) -> Result<OffersReport, Error> {
        let lasts = Duration::from_secs(request.ttl_s);
        let own = self.state.identity.credential.clone();
        let wanted = request.wanted()?;
        let refused = self.core.handle_offers(wanted, &own, lasts, clock::now());
        let refused = refused.map_err(|error| Error::Refused(error.to_string()))?;
        // Applied before the program gets its answer, since it may then end an instance.
        while let Some(event) = self.core.poll_event() {
            self.take_decision(event);
        }
        let refused = refused.into_iter().map(|(name, why)| (name, why.to_string())).collect();
        Ok(OffersReport { offered: self.core.offered().keys().cloned().collect(), refused })
    }

    /// Serves these offers from now on. Open sessions stay.
    pub(crate) fn publish_offers(&mut self, offers: Arc<Offers>, why: &'static str) {
        let before = self.outputs.offered.borrow().clone();
        for service in before.keys().filter(|it| !offers.contains_key(*it)) {
            warn!(%service, why, "the service is no longer offered here");
        }
        for (service, offer) in &*offers {
            if before.get(service) != Some(offer) {
                self.sessions.register(service);
                let instances = offer.addresses.len();
                info!(%service, instances, "a program on this machine offers the service");
            }
        }
        self.outputs.offered.send_replace(offers);
    }
}
