//! Rules for `[[expose]]`.

use std::collections::BTreeMap;

use super::Rules;
use crate::ids::{ListenerName, ServiceName};
use crate::settings::problem::ProblemKind;
use crate::settings::read::join;
use crate::settings::{ExposeSettings, HealthMode, ProxyHeader, Settings};

impl Rules<'_, '_> {
    /// Every rule for one listener.
    pub(super) fn exposed(
        &mut self,
        settings: &Settings,
        name: &ListenerName,
        listener: &ExposeSettings,
    ) {
        let path = join("expose", name.as_ref());
        self.has_addresses(&path, listener);
        self.leads_somewhere(&path, listener);
        self.leads_to_services(&path, settings, listener);
        self.names_differ(&path, listener);
        self.balancers_are_named(&path, listener);
        self.proxy_header_is_wanted(&path, settings, listener);
    }

    fn missing(&mut self, table: &str, key: &str, expected: &str) {
        let span = self.positions.get(table).map_or(0..0, |position| position.span.clone());
        self.problems.add(ProblemKind::Missing, &span, &join(table, key), "nothing", expected);
    }

    fn has_addresses(&mut self, path: &str, listener: &ExposeSettings) {
        if listener.listen.is_empty() && self.are_good(&[&join(path, "listen")]) {
            self.missing(path, "listen", "at least one address and port for clients");
        }
    }

    fn leads_somewhere(&mut self, path: &str, listener: &ExposeSettings) {
        let key = join(path, "service");
        if listener.service.is_none() && listener.rules.is_empty() && self.are_good(&[&key]) {
            self.missing(path, "service", "a service, or rules in [[expose.rule]]");
        }
        for (service, rule) in &listener.rules {
            let table = join(&join(path, "rule"), service.as_ref());
            if rule.sni.is_empty() && self.are_good(&[&join(&table, "sni")]) {
                self.missing(&table, "sni", "at least one server name");
            }
        }
    }

    /// The key that names a service: in the listener's table or in that of a rule.
    fn place_of(path: &str, listener: &ExposeSettings, service: &ServiceName) -> String {
        match listener.rules.contains_key(service) {
            true => join(&join(&join(path, "rule"), service.as_ref()), "service"),
            false => join(path, "service"),
        }
    }

    fn leads_to_services(&mut self, path: &str, settings: &Settings, listener: &ExposeSettings) {
        for service in listener.services() {
            if settings.services.contains_key(service) {
                continue;
            }
            let key = Self::place_of(path, listener, service);
            let expected = format!("a service of this node: add [service.{service}]");
            self.conflict(&key, None, format!("\"{service}\""), expected);
        }
    }

    fn names_differ(&mut self, path: &str, listener: &ExposeSettings) {
        let mut seen = BTreeMap::new();
        for (service, rule) in &listener.rules {
            let key = join(&join(&join(path, "rule"), service.as_ref()), "sni");
            for (index, name) in rule.sni.iter().enumerate() {
                let Some(earlier) = seen.insert(name, service) else { continue };
                let found = format!("\"{name}\", which already selects {earlier}");
                self.conflict(&key, Some(index), found, "a name of one service");
            }
        }
    }

    fn balancers_are_named(&mut self, path: &str, listener: &ExposeSettings) {
        let key = join(path, "accept-proxy-from");
        for (index, network) in listener.accept_proxy_from.iter().enumerate() {
            if network.is_everything() {
                let found = format!("\"{network}\", with which any client could claim any address");
                self.conflict(&key, Some(index), found, "the addresses of the balancers");
            }
        }
    }

    fn proxy_header_is_wanted(
        &mut self,
        path: &str,
        settings: &Settings,
        listener: &ExposeSettings,
    ) {
        if listener.send_proxy == ProxyHeader::Off {
            return;
        }
        let is_apiserver = |name: &&ServiceName| {
            name.as_str() == ServiceName::KUBE_APISERVER
                || settings
                    .services
                    .get(*name)
                    .is_some_and(|service| service.health.mode == HealthMode::Kubernetes)
        };
        if let Some(service) = listener.services().find(is_apiserver) {
            let found =
                format!("\"{}\", but {service} is a service of apiservers", listener.send_proxy);
            let expected = "\"off\": an apiserver refuses connections with a PROXY header; the \
                            audit log has the clients' addresses";
            self.conflict(&join(path, "send-proxy"), None, found, expected);
        }
    }
}
