use meshport_core::route::PathView;

use super::*;
use crate::tcp::memory;
use crate::testing::{self, route, until};

const ADDRESS: &str = "127.0.0.1:7500";

/// Settings with a listener for the tests' service.
fn settings(listen: &str) -> Settings {
    let settings = format!(
        "site = \"a\"\n[service.{0}]\nlisten = [\"127.0.0.1:7445\"]\n[[expose]]\nname = \"out\"\n\
         listen = [\"{listen}\"]\nservice = \"{0}\"\nallow = [\"127.0.0.0/8\"]\n",
        testing::service()
    );
    meshport_config::parse(&settings).expect("settings")
}

#[tokio::test]
async fn an_exposed_address_that_this_machine_does_not_have_yet_is_waited_for_at_a_start_only() {
    let exposures = Exposures::new(Host::Kernel, Audit::default());
    // The documentation prefix (RFC 5737) belongs to no machine.
    let settings = settings("192.0.2.1:7500");
    let error = exposures.prepare(&settings, IfTaken::Fail).expect_err("it is not here");
    assert!(error.to_string().contains("expose.out.listen"), "{error}");
    let prepared = exposures.prepare(&settings, IfTaken::Wait).expect("it may wait");
    let _owner = exposures.start(prepared, &settings);
    let missing: SocketAddr = "192.0.2.1:7500".parse().expect("an address");
    until("it is lost", async || exposures.status()[0].lost == [missing]).await;
}

#[tokio::test]
async fn an_exposed_address_that_another_process_takes_is_said_to_be_lost() {
    let (near, _far) = testing::pair();
    let host = Host::Memory(memory::Host::default());
    let exposures = Exposures::new(host.clone(), Audit::default());
    let (ingress, routes) = testing::ingress(&near, host.clone(), "127.0.0.1:1");
    exposures.add_service(&ingress);
    let settings = settings(ADDRESS);
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
