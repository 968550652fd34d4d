//! Streams of the way back: served for apiservers' nodes, at the node they name and nowhere else.

use meshport_config::Settings;
use meshport_core::wayback::Refusal;
use meshport_core::wayback::call::{Call, Want, read_answer};

use super::*;
use crate::wayback::WayBack;

const ORIGIN: &str = "node,origin:kube-apiserver";

/// Serves a node with these roles, whose kubelet is at `kubelet`.
fn serve_kubelet(far: Node, roles: &str, kubelet: &str) -> watch::Sender<Revocations> {
    let (know, revoked) = watch::channel(Revocations::default());
    let Node { mesh, incoming: Incoming { streams, .. } } = far;
    let mut egress = egress(mesh, roles, watch::channel(Arc::default()).1, revoked);
    let mut settings = Settings::defaults("fra".parse().expect("a site"));
    settings.kubelet.port = port(kubelet);
    egress.back = WayBack::new(&settings, None);
    tokio::spawn(egress.run(streams));
    know
}

fn port(address: &str) -> u16 {
    address.parse::<std::net::SocketAddr>().expect("an address").port()
}

/// What `hop` answers to a call.
async fn said(near: &Node, hop: NodeId, call: &Call) -> Result<(), Refusal> {
    let mut stream = near.mesh.open_stream(hop).await.expect("reachable");
    stream.send.write_chunk(call.encode().into()).await.expect("open");
    let mut bytes = Vec::new();
    let mut chunk = [Bytes::new()];
    loop {
        let read = timeout(HEADER_TIMEOUT, stream.recv.read_chunks(&mut chunk)).await;
        let is_end = read.expect("an answer").expect("open").is_none();
        bytes.extend_from_slice(&std::mem::take(&mut chunk[0]));
        if let Some((answer, _)) = read_answer(&bytes, is_end) {
            return answer;
        }
        assert!(!is_end, "no answer");
    }
}

fn direct(node: NodeId, port: u16) -> Call {
    Call::direct(node, Want::Kubelet(port), HEADER_TIMEOUT)
}

#[tokio::test]
async fn an_apiservers_node_reaches_the_kubelet_and_no_other_port() {
    let kubelet = greeter().await;
    let (near, far) = pair_with([ORIGIN, "node"]);
    let node = far.mesh.node_id();
    serve_kubelet(far, "node", &kubelet);
    assert_eq!(said(&near, node, &direct(node, port(&kubelet))).await, Ok(()));
    let other = port(&greeter().await);
    assert_eq!(said(&near, node, &direct(node, other)).await, Err(Refusal::Port));
    let pod = Want::Pod("10.244.0.7:443".parse().expect("an address"));
    let pod = Call::direct(node, pod, HEADER_TIMEOUT);
    assert_eq!(said(&near, node, &pod).await, Err(Refusal::Pod));
    let service = Want::Service("10.96.0.1:443".parse().expect("an address"));
    let service = Call::direct(node, service, HEADER_TIMEOUT);
    assert_eq!(said(&near, node, &service).await, Err(Refusal::NotEgress));
}

#[tokio::test]
async fn only_apiservers_nodes_reach_a_kubelet() {
    for roles in ["node", "operator", "relay", "node,relay,egress,origin:other"] {
        let kubelet = greeter().await;
        let (near, far) = pair_with([roles, "node"]);
        let node = far.mesh.node_id();
        serve_kubelet(far, "node", &kubelet);
        let answer = said(&near, node, &direct(node, port(&kubelet))).await;
        assert_eq!(answer, Err(Refusal::NotOrigin), "{roles}");
    }
}

#[tokio::test]
async fn a_call_never_ends_at_another_node_than_it_names() {
    let (kubelet, other) = (greeter().await, greeter().await);
    let (relay, near, far) = three_with(["node,relay", ORIGIN, "node"]);
    let (relay_id, far_id, near_id) =
        (relay.mesh.node_id(), far.mesh.node_id(), near.mesh.node_id());
    serve_kubelet(far, "node", &kubelet);
    serve_kubelet(relay, "node,relay", &other);
    let through = |node, port| Call::relayed(node, Want::Kubelet(port), HEADER_TIMEOUT);
    let of_far = port(&kubelet);
    assert_eq!(said(&near, relay_id, &through(far_id, of_far)).await, Ok(()));
    // Its own kubelet is served, on its own port.
    assert_eq!(said(&near, relay_id, &through(relay_id, port(&other))).await, Ok(()));
    // The port is the far one's, and the relay's kubelet is elsewhere.
    assert_eq!(said(&near, relay_id, &through(relay_id, of_far)).await, Err(Refusal::Port));
    // No hop, back to where it is from, and unknown.
    assert_eq!(said(&near, relay_id, &direct(far_id, of_far)).await, Err(Refusal::OtherNode));
    let back = said(&near, relay_id, &through(near_id, of_far)).await;
    assert_eq!(back, Err(Refusal::OtherNode));
    let stranger = NodeId::from_bytes([77; 32]);
    let unknown = said(&near, relay_id, &through(stranger, of_far)).await;
    assert_eq!(unknown, Err(Refusal::NoPath));
}

#[tokio::test]
async fn a_relay_carries_for_apiservers_nodes_only_and_needs_the_role() {
    for (relay_roles, near_roles, expected) in [
        ("node,relay", "node", Err(Refusal::NotOrigin)),
        ("node,relay", "operator", Err(Refusal::NotOrigin)),
        ("node", ORIGIN, Err(Refusal::OtherNode)),
        ("node,relay", ORIGIN, Ok(())),
    ] {
        let kubelet = greeter().await;
        let (relay, near, far) = three_with([relay_roles, near_roles, "node"]);
        let (relay_id, far_id) = (relay.mesh.node_id(), far.mesh.node_id());
        serve_kubelet(far, "node", &kubelet);
        serve_kubelet(relay, relay_roles, "127.0.0.1:9");
        let call = Call::relayed(far_id, Want::Kubelet(port(&kubelet)), HEADER_TIMEOUT);
        assert_eq!(said(&near, relay_id, &call).await, expected, "{relay_roles}: {near_roles}");
    }
}

#[tokio::test]
async fn what_a_peer_shows_of_others_counts_only_from_a_relay_and_when_it_is_valid() {
    let origin = credential(9, ORIGIN);
    let mut forged = credential(9, "node");
    forged.roles = ORIGIN.parse().expect("roles");
    for (roles, client, expected) in [
        ("node", origin.clone(), Err(Refusal::NotRelay)),
        ("relay", forged, Err(Refusal::NotRelay)),
        ("relay", credential(9, "node"), Err(Refusal::NotOrigin)),
        ("relay", origin, Ok(())),
    ] {
        let kubelet = greeter().await;
        let (near, far) = pair_with([roles, "node"]);
        let node = far.mesh.node_id();
        serve_kubelet(far, "node", &kubelet);
        let call = direct(node, port(&kubelet)).carried(client.clone());
        assert_eq!(said(&near, node, &call).await, expected, "{roles}: {client:?}");
    }
}

#[tokio::test]
async fn a_stream_ends_when_its_apiservers_node_is_revoked() {
    let kubelet = greeter().await;
    let (near, far) = pair_with([ORIGIN, "node"]);
    let (node, near_id) = (far.mesh.node_id(), near.mesh.node_id());
    let know = serve_kubelet(far, "node", &kubelet);
    let mut stream = near.mesh.open_stream(node).await.expect("reachable");
    let call = direct(node, port(&kubelet)).encode();
    stream.send.write_chunk(call.into()).await.expect("open");
    assert_eq!(read(&mut stream, 7).await[0], Answer::Connected.code());
    // The mesh does not know of it: only the serving node's own check ends the stream.
    know.send_replace(revocations(near_id));
    let mut chunk = [Bytes::new()];
    let end = timeout(HEADER_TIMEOUT, stream.recv.read_chunks(&mut chunk)).await;
    assert!(matches!(end, Ok(Err(_))), "{end:?}");
}
