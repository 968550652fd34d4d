use meshport_core::route::PathView;

use super::*;
use crate::tcp::memory;
use crate::testing::{self, route, until};

const ADDRESS: &str = "127.0.0.1:7500";

#[tokio::test]
async fn an_exposed_address_that_another_process_takes_is_said_to_be_lost() {
    let (near, _far) = testing::pair();
    let host = Host::Memory(memory::Host::default());
    let exposures = Exposures::new(host.clone(), Audit::default());
    let (ingress, routes) = testing::ingress(&near, host.clone(), "127.0.0.1:1");
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
    routes.send_replace(route(near.mesh.node_id(), PathView::Dead));
    until("it is closed", async || now().closed == [address]).await;
    let thief = host.listen(address).expect("in memory everybody may");
    routes.send_replace(route(near.mesh.node_id(), PathView::Own));
    until("it is lost", async || now().lost == [address] && now().closed.is_empty()).await;
    drop(thief);
    until("it is back", async || now().lost.is_empty() && now().closed.is_empty()).await;
}
