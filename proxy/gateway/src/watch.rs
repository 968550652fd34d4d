//! Services and their endpoints, as reported by the apiserver and kept up to date.
//!
//! While no apiserver answers, the last known state is kept: removed instances accept no
//! connections, so the daemon tries the next one.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::TryStreamExt;
use futures_util::future::join_all;
use k8s_openapi::api::core::v1::{Endpoints as LegacyEndpoints, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::runtime::reflector::{Lookup, Store};
use kube::runtime::{WatchStreamExt, reflector, watcher};
use kube::{Api, Client, Resource};
use meshport_daemon::clock;
use serde::de::DeserializeOwned;
use tokio::sync::Notify;
use tokio::time::timeout;
use tracing::{info, warn};

use crate::Error;
use crate::endpoints::{self, Endpoints, Key};
use crate::plan::{Rules, Snapshot, external_name, is_wanted, key};

/// The API of EndpointSlices.
const SLICES: &str = "discovery.k8s.io/v1";
/// Time limit for resolving an external name.
const RESOLVE_TIME: Duration = Duration::from_secs(2);
/// Maximum age of such addresses: the usual TTL of a DNS record that must follow changes.
const NAMES_AGE: Duration = Duration::from_secs(30);

/// A cluster's Services and endpoints.
#[derive(Debug)]
pub(crate) struct Cluster {
    services: Store<Service>,
    backends: Backends,
    changed: Arc<Notify>,
    names: Names,
}

/// The last known addresses of external names.
#[derive(Debug, Default)]
struct Names {
    addresses: BTreeMap<String, Vec<IpAddr>>,
    /// When they were resolved.
    at: Option<Instant>,
}

/// The source of endpoints.
#[derive(Debug)]
enum Backends {
    Slices(Store<EndpointSlice>),
    Legacy(Store<LegacyEndpoints>),
}

impl Cluster {
    /// Watches a cluster until it is dropped together with its runtime. Returns after the first
    /// complete lists.
    ///
    /// # Errors
    /// [`Error::Cluster`] if the apiserver denies this client the queries. Waits for a cluster that
    /// does not answer.
    pub(crate) async fn watch(client: &Client) -> Result<Self, Error> {
        let changed = Arc::new(Notify::new());
        let services = follow(Api::all(client.clone()), "services", changed.clone());
        let backends = if has_slices(client).await? {
            Backends::Slices(follow(Api::all(client.clone()), "endpointslices", changed.clone()))
        } else {
            info!("this cluster has no {SLICES}; watching Endpoints instead");
            Backends::Legacy(follow(Api::all(client.clone()), "endpoints", changed.clone()))
        };
        let cluster = Self { services, backends, changed, names: Names::default() };
        let known = match &cluster.backends {
            Backends::Slices(store) => ready(store).await,
            Backends::Legacy(store) => ready(store).await,
        };
        if !(known && ready(&cluster.services).await) {
            return Err(Error::Ended);
        }
        Ok(cluster)
    }

    /// Waits until something has changed since the last wait.
    pub(crate) fn changed(&self) -> impl Future<Output = ()> + use<> {
        let changed = self.changed.clone();
        async move { changed.notified().await }
    }

    /// The part of the cluster's state that is relevant under `rules`.
    pub(crate) async fn snapshot(&mut self, rules: &Rules) -> Snapshot {
        let services =
            self.services.state().into_iter().filter(|it| is_wanted(it, rules)).collect::<Vec<_>>();
        let keys: BTreeSet<Key> = services.iter().map(|it| key(it)).collect();
        let mut endpoints = Endpoints::new();
        let mut add = |found: Option<(Key, Vec<endpoints::Endpoint>)>| {
            if let Some((key, found)) = found.filter(|(key, _)| keys.contains(key)) {
                endpoints.entry(key).or_default().extend(found);
            }
        };
        match &self.backends {
            Backends::Slices(store) => {
                store.state().iter().for_each(|it| add(endpoints::of_slice(it)));
            }
            Backends::Legacy(store) => {
                store.state().iter().for_each(|it| add(endpoints::of_endpoints(it)));
            }
        }
        if rules.external_names {
            let names = services.iter().filter_map(|it| external_name(it)).map(str::to_owned);
            self.names.keep(names.collect(), clock::now()).await;
        }
        Snapshot { services, endpoints, resolved: self.names.addresses.clone() }
    }
}

impl Names {
    /// Updates the addresses of these names: resolves them if one is new or all are old. A name
    /// that does not resolve keeps its addresses.
    async fn keep(&mut self, names: BTreeSet<String>, now: Instant) {
        let is_old = self.at.is_none_or(|at| now.duration_since(at) >= NAMES_AGE);
        if !is_old && names.iter().all(|it| self.addresses.contains_key(it)) {
            self.addresses.retain(|name, _| names.contains(name));
            return;
        }
        self.at = Some(now);
        let found = join_all(names.iter().map(|name| resolve(name))).await;
        let mut former = std::mem::take(&mut self.addresses);
        let found = names.into_iter().zip(found).map(|(name, found)| {
            let former = former.remove(&name).unwrap_or_default();
            (name, found.unwrap_or(former))
        });
        self.addresses = found.collect();
    }
}

/// The addresses of a name.
async fn resolve(name: &str) -> Option<Vec<IpAddr>> {
    // The port is irrelevant: each Service has its own.
    match timeout(RESOLVE_TIME, tokio::net::lookup_host((name, 0))).await {
        Ok(Ok(found)) => return Some(found.map(|it| it.ip()).collect()),
        Ok(Err(error)) => warn!(name, %error, "cannot resolve the external name"),
        Err(_) => warn!(name, "timed out resolving the external name"),
    }
    None
}

/// Whether the cluster serves EndpointSlices; repeats the query until it is answered.
async fn has_slices(client: &Client) -> Result<bool, Error> {
    const AGAIN: Duration = Duration::from_secs(1);
    let mut told = false;
    loop {
        let error = match client.list_api_group_resources(SLICES).await {
            Ok(_) => return Ok(true),
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(false),
            Err(kube::Error::Api(status)) if matches!(status.code, 401 | 403) => {
                return Err(Error::Cluster(Box::new(kube::Error::Api(status))));
            }
            Err(error) => error,
        };
        if !std::mem::replace(&mut told, true) {
            warn!(%error, "the apiserver does not answer; retrying every second");
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// Keeps all objects of a kind up to date, and notifies on each change.
fn follow<K>(api: Api<K>, what: &'static str, changed: Arc<Notify>) -> Store<K>
where
    K: Resource<DynamicType = ()> + Lookup<DynamicType = ()> + Clone + Debug + Send + Sync,
    K: DeserializeOwned + 'static,
{
    let (store, writer) = reflector::store();
    let watched = watcher(api, watcher::Config::default()).default_backoff().modify(|it| {
        // Often the largest part of an object, and not needed here.
        it.meta_mut().managed_fields = None;
    });
    let events = reflector(writer, watched);
    tokio::spawn(async move {
        let mut events = std::pin::pin!(events);
        loop {
            match events.try_next().await {
                Ok(Some(_)) => changed.notify_one(),
                Ok(None) => break,
                Err(error) => {
                    warn!(what, %error, "cannot watch; keeping the last known state");
                }
            }
        }
    });
    store
}

/// Waits until a store has received its first list.
async fn ready<K>(store: &Store<K>) -> bool
where
    K: Lookup<DynamicType = ()> + Clone + 'static,
{
    store.wait_until_ready().await.is_ok()
}
