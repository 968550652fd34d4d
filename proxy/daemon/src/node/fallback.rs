//! Addresses outside the mesh, used when no origin of a service answers.
//!
//! Names are resolved every [`REFRESH`]. After a failed lookup the previous addresses stay. Bounded
//! by [`MAX_FALLBACK_ADDRESSES`] per service.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use meshport_config::{Endpoint, ServiceName, Settings};
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;

use crate::driver::commands::{Command, ServiceChange};
use crate::driver::endpoints;
use meshport_core::node::MAX_FALLBACK_ADDRESSES;

/// Interval between lookups of all names.
const REFRESH: Duration = Duration::from_secs(30);
/// The same after a failed lookup; doubles up to [`REFRESH`].
const RETRY: Duration = Duration::from_secs(2);

pub(crate) type Fallbacks = BTreeMap<ServiceName, Vec<Endpoint>>;

pub(crate) fn of(settings: &Settings) -> Fallbacks {
    let services = settings.services.iter().filter(|(_, service)| !service.fallback.is_empty());
    services.map(|(name, service)| (name.clone(), service.fallback.clone())).collect()
}

/// Periodically resolves the fallback of all services, and reports changed addresses to the driver.
pub(crate) async fn follow(
    mut wanted: watch::Receiver<Fallbacks>,
    commands: mpsc::Sender<Command>,
) {
    let mut known: BTreeMap<ServiceName, Vec<SocketAddr>> = BTreeMap::new();
    let mut told = known.clone();
    let mut pause = RETRY;
    loop {
        let fallbacks = wanted.borrow_and_update().clone();
        let mut complete = true;
        for (name, endpoints) in &fallbacks {
            let addresses = known.entry(name.clone()).or_default();
            let most = MAX_FALLBACK_ADDRESSES;
            endpoints::refresh(addresses, endpoints, most, &mut complete).await;
        }
        let names: BTreeSet<ServiceName> = known.keys().chain(told.keys()).cloned().collect();
        for name in names {
            let addresses = known.get(&name).cloned().unwrap_or_default();
            if told.get(&name) == Some(&addresses) {
                continue;
            }
            told.insert(name.clone(), addresses.clone());
            if commands
                .send(Command::Service(name, ServiceChange::Fallback(addresses)))
                .await
                .is_err()
            {
                return;
            }
        }
        let wait = if complete { REFRESH } else { pause };
        pause = if complete { RETRY } else { (pause * 2).min(REFRESH) };
        let named = fallbacks.values().flatten().any(endpoints::is_name);
        tokio::select! {
            () = sleep(wait), if named => {}
            changed = wanted.changed() => {
                if changed.is_err() {
                    return;
                }
                // Even after a failed lookup, drop entries that were removed from the settings.
                let wanted = wanted.borrow();
                known.retain(|name, _| wanted.get(name) == fallbacks.get(name));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;
    use crate::testing::service;

    const SOON: Duration = Duration::from_secs(5);

    fn fallbacks(texts: &[&str]) -> Fallbacks {
        let endpoints = texts.iter().map(|text| text.parse().expect("an endpoint")).collect();
        Fallbacks::from([(service(), endpoints)])
    }

    #[tokio::test]
    async fn names_are_looked_up_and_a_reload_is_followed() {
        let (sender, wanted) = watch::channel(fallbacks(&["192.0.2.1:6443", "localhost:6443"]));
        let (commands, mut received) = mpsc::channel(1);
        tokio::spawn(follow(wanted, commands));
        let mut next = async || {
            let command = timeout(SOON, received.recv()).await.expect("soon").expect("it goes on");
            let Command::Service(name, ServiceChange::Fallback(addresses)) = command else {
                panic!("{command:?}")
            };
            assert_eq!(name, service());
            addresses.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let first = next().await;
        assert_eq!(first[0], "192.0.2.1:6443");
        assert!(first[1..].iter().any(|it| it == "127.0.0.1:6443"), "{first:?}");
        sender.send_replace(fallbacks(&["name.invalid:6443", "192.0.2.2:6443"]));
        assert_eq!(next().await, ["192.0.2.2:6443"], "the former ones are not kept");
        sender.send_replace(Fallbacks::new());
        assert!(next().await.is_empty());
    }
}
