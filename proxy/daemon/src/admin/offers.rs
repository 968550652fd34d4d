//! `POST /offers`: a program on this machine, such as the gateway of a cluster, offers services
//! through this node. For programs only; people use `[service.NAME]`.

use std::collections::BTreeMap;
use std::time::Duration;

use meshport_config::{Allow, ServiceName};
use meshport_core::offered::{
    Instance, MAX_ALLOWED, MAX_INSTANCES, MAX_OFFER_TIME, MAX_OFFERED_SERVICES, MIN_OFFER_TIME,
    Wanted,
};
use serde::{Deserialize, Serialize};

use super::request::{Kind, Request};
use crate::Error;

/// All services that a program offers; earlier ones that are missing here are withdrawn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OffersRequest {
    /// The services by name.
    pub services: BTreeMap<ServiceName, OfferedService>,
    /// Time in seconds, 5 to 60, after which all services are withdrawn unless offered again.
    #[serde(default = "longest")]
    pub ttl_s: u64,
}

/// An offered service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfferedService {
    /// Its instances.
    pub instances: Vec<Instance>,
    /// Who may use it, like `allow` of `[service.NAME]` and with the same default.
    #[serde(default = "everyone")]
    pub allow: Vec<String>,
}

fn longest() -> u64 {
    MAX_OFFER_TIME.as_secs()
}

fn everyone() -> Vec<String> {
    Allow::everyone().iter().map(ToString::to_string).collect()
}

/// The result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OffersReport {
    /// The services that this node now offers.
    pub offered: Vec<ServiceName>,
    /// Services that were refused, and why.
    pub refused: BTreeMap<ServiceName, String>,
}

impl Request for OffersRequest {
    const PATH: &'static str = "/offers";
    const KIND: Kind = Kind::Command;
    type Reply = OffersReport;
    /// The most services and instances with the longest addresses take 150 KB.
    const MAX_BODY_BYTES: usize = 256 * 1024;

    fn check(&self) -> Result<(), Error> {
        let (services, ttl) = (self.services.len(), Duration::from_secs(self.ttl_s));
        let wrong = if services > MAX_OFFERED_SERVICES {
            format!("{services} services; at most {MAX_OFFERED_SERVICES} can be offered")
        } else if !(MIN_OFFER_TIME..=MAX_OFFER_TIME).contains(&ttl) {
            let (from, to) = (MIN_OFFER_TIME.as_secs(), MAX_OFFER_TIME.as_secs());
            format!("ttl_s is {}; it must be {from} to {to}", self.ttl_s)
        } else if let Some(wrong) = self.services.iter().find_map(|(name, it)| it.wrong(name)) {
            wrong
        } else {
            return self.wanted().map(drop);
        };
        Err(Error::Usage(wrong))
    }
}

impl OfferedService {
    /// Its error, if any.
    fn wrong(&self, name: &ServiceName) -> Option<String> {
        let (instances, allowed) = (self.instances.len(), self.allow.len());
        if instances > MAX_INSTANCES {
            Some(format!("{name} has {instances} instances; at most {MAX_INSTANCES} are allowed"))
        } else if allowed > MAX_ALLOWED {
            Some(format!(
                "{name} has {allowed} entries in allow; at most {MAX_ALLOWED} are \
                 allowed"
            ))
        } else {
            let wrong = self
                .instances
                .iter()
                .find(|it| it.address.port() == 0 || it.address.ip().is_unspecified())?;
            Some(format!("{name}: {} is not a valid instance address", wrong.address))
        }
    }
}

impl OffersRequest {
    /// The part that the core checks.
    pub(crate) fn wanted(&self) -> Result<BTreeMap<ServiceName, Wanted>, Error> {
        let services = self.services.iter().map(|(name, service)| {
            let allow: Result<Vec<Allow>, _> = service.allow.iter().map(|it| it.parse()).collect();
            let allow = allow.map_err(|error| Error::Usage(format!("allow of {name}: {error}")))?;
            Ok((name.clone(), Wanted { instances: service.instances.clone(), allow }))
        });
        services.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> Result<(), String> {
        let request: OffersRequest = serde_json::from_str(text).map_err(|it| it.to_string())?;
        request.check().map_err(|it| it.to_string())
    }

    fn offer(instances: usize) -> String {
        let host = "2001:db8:ffff:ffff:ffff:ffff:ffff";
        let instance = |n| format!("{{\"address\": \"[{host}:{n:x}]:65535\", \"ready\": false}}");
        let instances: Vec<String> = (0..instances).map(instance).collect();
        format!("{{\"instances\": [{}]}}", instances.join(","))
    }

    fn offers(services: usize, instances: usize) -> String {
        let services: Vec<String> =
            (0..services).map(|n| format!("\"web-{n}\": {}", offer(instances))).collect();
        format!("{{\"services\": {{{}}}}}", services.join(","))
    }

    #[test]
    fn the_largest_offer_fits_and_one_more_of_anything_does_not() {
        let largest = offers(MAX_OFFERED_SERVICES, MAX_INSTANCES);
        assert!(largest.len() < OffersRequest::MAX_BODY_BYTES, "{}", largest.len());
        assert_eq!(check(&largest), Ok(()));
        assert!(check(&offers(MAX_OFFERED_SERVICES + 1, 1)).is_err());
        assert!(check(&offers(1, MAX_INSTANCES + 1)).is_err());
    }

    #[test]
    fn an_offer_that_makes_no_sense_is_refused() {
        assert_eq!(check("{\"services\": {}}"), Ok(()), "it withdraws all");
        for ttl in [0, 4, 61] {
            assert!(check(&format!("{{\"services\": {{}}, \"ttl_s\": {ttl}}}")).is_err(), "{ttl}");
        }
        let web = |instance: &str| format!("{{\"services\": {{\"web\": {instance}}}}}");
        let at = |it: &str| {
            web(&format!("{{\"instances\": [{{\"address\": \"{it}\", \"ready\": true}}]}}"))
        };
        assert_eq!(check(&at("10.0.0.1:80")), Ok(()));
        for address in ["10.0.0.1:0", "0.0.0.0:80", "[::]:80", "web:80", "10.0.0.1"] {
            assert!(check(&at(address)).is_err(), "{address}");
        }
        assert!(check(&web("{\"instances\": [], \"allow\": [\"site\"]}")).is_err());
        assert_eq!(check(&web("{\"instances\": [], \"allow\": [\"site:fra\"]}")), Ok(()));
        assert!(check("{\"services\": {\"Web\": {\"instances\": []}}}").is_err());
    }
}
