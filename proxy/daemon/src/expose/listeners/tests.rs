use std::time::Duration;

use meshport_core::connect::ConnectConfig;
use meshport_core::route::{OriginView, PathView, Policy, Preference, Route, choose};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::*;
use crate::sessions::ingress::{Context, SessionLimits};
use crate::sessions::registry::Sessions;
use crate::tcp::memory;
use crate::testing::{self, Node};

const SOON: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(5);
const ADDRESS: &str = "127.0.0.1:7500";

fn route(near: &Node, path: PathView) -> Arc<Route> {
    let origin = OriginView { path, ..testing::candidate(near.mesh.node_id()).origin };
    Arc::new(choose(vec![origin], &Policy::Spread, &Preference::default(), clock::now()).0)
}

/// The ingress of the service, and the sender that changes its route.
fn ingress(near: &Node, host: Host) -> (Arc<Ingress>, watch::Sender<Arc<Route>>) {
    let (sender, routes) = watch::channel(route(near, PathView::Own));
    let connect = ConnectConfig { connect_timeout: SOON, hold: Duration::ZERO, hedge: None };
    let limits =
        SessionLimits { connect, max_sessions: 10, local_instance: Some("127.0.0.1:1".into()) };
    let (mesh, findings) = (near.mesh.clone(), mpsc::channel(1).0);
    let context = Context { mesh, host, sessions: Sessions::default(), findings };
    let limits = watch::channel(Arc::new(limits)).1;
    (Arc::new(Ingress::new(context, testing::service(), routes, limits)), sender)
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let found = timeout(SOON, async {
        while !holds() {
            sleep(LOOK).await;
        }
    });
    found.await.unwrap_or_else(|_| panic!("not in time: {what}"));
}

#[tokio::test]
async fn an_exposed_address_that_another_process_takes_is_said_to_be_lost() {
    let (near, _far) = testing::pair();
    let host = Host::Memory(memory::Host::default());
    let exposures = Exposures::new(host.clone(), Audit::default());
    let (ingress, routes) = ingress(&near, host.clone());
    exposures.add_service(&ingress);
    let settings = format!(
        "site = \"a\"\n[service.{0}]\nlisten = [\"127.0.0.1:7445\"]\n[[expose]]\nname = \"out\"\n\
         listen = [\"{ADDRESS}\"]\nservice = \"{0}\"\nallow = [\"127.0.0.0/8\"]\n",
        testing::service()
    );
    let settings = meshport_config::parse(&settings).expect("settings");
    let prepared = exposures.prepare(&settings, IfTaken::Fail).expect("it is free");
    let _owner = exposures.start(prepared, &settings);
    let address: SocketAddr = ADDRESS.parse().expect("an address");
    let now = || exposures.status().remove(0);
    routes.send_replace(route(&near, PathView::Dead));
    until("it is closed", || now().closed == [address]).await;
    let thief = host.listen(address).expect("in memory everybody may");
    routes.send_replace(route(&near, PathView::Own));
    until("it is lost", || now().lost == [address] && now().closed.is_empty()).await;
    drop(thief);
    until("it is back", || now().lost.is_empty() && now().closed.is_empty()).await;
}
