//! Informs the owners of Services: Events, and the address in the status.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{LoadBalancerIngress, Service};
use kube::api::{Patch, PatchParams};
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Api, Client, Resource};
use meshport_core::offered::MAX_INSTANCES;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::timeout;
use tracing::{info, warn};

use crate::plan::{Cause, Refusal, has_address, key};

/// The name under which Events are written and fields are owned.
pub(crate) const CONTROLLER: &str = "meshport-gateway";
/// Limit for one write to the apiserver.
const WRITE_TIME: Duration = Duration::from_secs(10);

/// The outcome of a plan.
#[derive(Debug, Clone, Default)]
pub(crate) struct Outcome {
    /// The Services that are offered, with the facts to report.
    pub(crate) offered: Vec<Offered>,
    /// Those that are not.
    pub(crate) refusals: Vec<Refusal>,
}

/// A Service that is offered.
#[derive(Debug, Clone)]
pub(crate) struct Offered {
    pub(crate) service: Arc<Service>,
    /// Its names in the mesh, with their ports.
    pub(crate) names: Vec<String>,
    /// Those of the names of which endpoints are left out.
    pub(crate) incomplete: Vec<String>,
}

impl Offered {
    /// The message for its owner.
    fn said(&self) -> Said {
        let mut note = format!("offered in the mesh as {}", self.names.join(", "));
        if self.incomplete.is_empty() {
            return Said { is_good: true, reason: "MeshOffered", note };
        }
        // Without their number, which changes with each pod: each text is another Event.
        note.push_str(&format!(
            ", without some endpoints of {}: those above {MAX_INSTANCES}, or at addresses \
             excluded by the gateway (--endpoints)",
            self.incomplete.join(", ")
        ));
        Said { is_good: false, reason: "MeshEndpointsLeftOut", note }
    }
}

/// Writes to the apiserver, in its own task so that offers do not wait for it.
pub(crate) struct Reports {
    client: Client,
    recorder: Recorder,
    addresses: Vec<IpAddr>,
    /// The last message, by the uid of a Service.
    told: BTreeMap<String, Said>,
}

/// The content of an Event.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Said {
    is_good: bool,
    reason: &'static str,
    note: String,
}

impl Reports {
    /// Reports with these addresses in the status of Services of the class.
    pub(crate) fn new(client: Client, addresses: Vec<IpAddr>) -> Self {
        let recorder = Recorder::new(client.clone(), Reporter::from(CONTROLLER));
        Self { client, recorder, addresses, told: BTreeMap::new() }
    }

    /// Reports the latest outcome until the channel closes.
    pub(crate) async fn run(mut self, mut outcomes: watch::Receiver<Outcome>) {
        while outcomes.changed().await.is_ok() {
            let outcome = outcomes.borrow_and_update().clone();
            self.tell(&outcome).await;
        }
    }

    async fn tell(&mut self, outcome: &Outcome) {
        let mut present = BTreeSet::new();
        for offered in &outcome.offered {
            let service = &offered.service;
            present.extend(self.say(service, offered.said()).await);
            if has_address(service) && !self.addresses.is_empty() {
                self.write_status(service, &self.addresses).await;
            }
        }
        for Refusal { service, cause } in &outcome.refusals {
            let (reason, note) = (cause.reason(), format!("not offered in the mesh: {cause}"));
            present.extend(self.say(service, Said { is_good: false, reason, note }).await);
            // Another gateway may offer a Service that only this one refuses.
            let is_for_all = !matches!(cause, Cause::Daemon { .. });
            if is_for_all && has_address(service) {
                self.write_status(service, &[]).await;
            }
        }
        self.told.retain(|uid, _| present.contains(uid));
    }

    /// Writes an Event unless it equals the last one written. Returns the Service's uid.
    async fn say(&mut self, service: &Service, said: Said) -> Option<String> {
        let uid = service.metadata.uid.clone()?;
        if self.told.get(&uid) == Some(&said) {
            return Some(uid);
        }
        let name = key(service);
        match said.is_good {
            true => info!(service = %name, "{}", said.note),
            false => warn!(service = %name, reason = said.reason, "{}", said.note),
        }
        let event = Event {
            type_: if said.is_good { EventType::Normal } else { EventType::Warning },
            reason: said.reason.to_owned(),
            note: Some(said.note.clone()),
            action: "Offer".to_owned(),
            secondary: None,
        };
        let reference = service.object_ref(&());
        match timeout(WRITE_TIME, self.recorder.publish(&event, &reference)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => warn!(service = %name, %error, "cannot write an Event"),
            Err(_) => warn!(service = %name, "timed out writing an Event"),
        }
        // Not repeated on failure: the log has it.
        self.told.insert(uid.clone(), said);
        Some(uid)
    }

    /// Writes these addresses if the status has different ones.
    async fn write_status(&self, service: &Service, addresses: &[IpAddr]) {
        let Some(ingress) = ingress(service, addresses) else { return };
        let name = key(service);
        let patch = json!({ "status": { "loadBalancer": { "ingress": ingress } } });
        let api: Api<Service> = Api::namespaced(self.client.clone(), &name.namespace);
        let params =
            PatchParams { field_manager: Some(CONTROLLER.to_owned()), ..PatchParams::default() };
        let patch = Patch::Merge(&patch);
        let written = api.patch_status(&name.name, &params, &patch);
        match timeout(WRITE_TIME, written).await {
            Ok(Ok(_)) => {
                let texts: Vec<String> = addresses.iter().map(ToString::to_string).collect();
                let addresses = texts.join(",");
                info!(service = %name, addresses, "wrote the load balancer's status");
            }
            Ok(Err(error)) => warn!(service = %name, %error, "cannot write the status"),
            Err(_) => warn!(service = %name, "timed out writing the status"),
        }
    }
}

/// The new `ingress` of a status for these addresses; `None` if it is up to date.
fn ingress(service: &Service, addresses: &[IpAddr]) -> Option<Vec<LoadBalancerIngress>> {
    let status = service.status.as_ref().and_then(|it| it.load_balancer.as_ref());
    let present = status.and_then(|it| it.ingress.as_ref()).into_iter().flatten();
    let present: Vec<Option<&str>> = present.map(|it| it.ip.as_deref()).collect();
    let wanted: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    if present.iter().map(|it| it.unwrap_or_default()).eq(wanted.iter().map(String::as_str)) {
        return None;
    }
    let entry = |ip| LoadBalancerIngress {
        ip: Some(ip),
        // Connections from inside the cluster also use the address instead of going directly to a
        // pod.
        ip_mode: Some("Proxy".to_owned()),
        ..LoadBalancerIngress::default()
    };
    Some(wanted.into_iter().map(entry).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(ips: &[&str]) -> Service {
        let ingress: Vec<_> = ips.iter().map(|ip| json!({ "ip": ip })).collect();
        let status = json!({ "loadBalancer": { "ingress": ingress } });
        serde_json::from_value(json!({ "metadata": {}, "status": status })).expect("a Service")
    }

    #[test]
    fn endpoints_that_are_left_out_are_told_once_whatever_their_number() {
        let offered = |incomplete: &[&str]| Offered {
            service: Arc::new(service(&[])),
            names: vec!["web (port 80)".to_owned()],
            incomplete: incomplete.iter().map(|it| (*it).to_owned()).collect(),
        };
        let said = offered(&[]).said();
        assert_eq!((said.is_good, said.reason), (true, "MeshOffered"));
        let said = offered(&["web"]).said();
        assert_eq!((said.is_good, said.reason), (false, "MeshEndpointsLeftOut"));
        let text = "offered in the mesh as web (port 80), without some endpoints of web: those \
                    above 100, or";
        assert!(said.note.starts_with(text), "{}", said.note);
    }

    #[test]
    fn a_status_is_written_only_where_it_differs() {
        let addresses: Vec<IpAddr> =
            ["10.0.0.5", "2001:db8::5"].map(|it| it.parse().expect("ip")).into();
        assert_eq!(ingress(&service(&["10.0.0.5", "2001:db8::5"]), &addresses), None);
        let written = ingress(&service(&["10.0.0.6"]), &addresses).expect("others");
        assert_eq!(written.len(), 2);
        assert_eq!(written[0].ip_mode.as_deref(), Some("Proxy"));
        assert_eq!(ingress(&service(&[]), &[]), None);
        assert_eq!(ingress(&service(&["10.0.0.5"]), &[]), Some(Vec::new()), "it is taken back");
    }
}
