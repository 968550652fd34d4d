//! Sessions that an earlier process of this node carries.

use super::*;

/// The session of a node's client that came through a relay.
fn session(node: NodeId) -> Entry {
    let sessions = Sessions::default();
    let relay = credential(8, "relay").node;
    let _open = sessions.serve(&service(), relay, node).expect("there is room");
    sessions.entries().pop().expect("it is open")
}

/// The node is no member, and only a relay has a tunnel with it: its credential was known to the
/// process that carries the session, and is not known here.
#[tokio::test]
async fn a_session_of_an_unknown_node_ends_when_it_may_have_lost_access() {
    let (far, _other) = pair();
    let node = credential(5, "node").node;
    let invite = Revoked::Invite(DelegationKey::from_bytes([50; 32]).public());
    for revoked in [Revoked::Node(node), invite] {
        let (know, revocations) = watch::channel(Revocations::default());
        let (change, offers) = watch::channel(offer("127.0.0.1:9", &["role:node"]));
        let egress = egress(far.mesh.clone(), "origin:kube-apiserver", offers, revocations);
        let entry = session(node);
        let mut end = std::pin::pin!(egress.ends(&entry));
        know.send_replace(revoking(Revoked::Node(credential(6, "node").node)));
        change.send_replace(offer("127.0.0.1:9", &["role:node"]));
        assert!(timeout(STAYS, &mut end).await.is_err(), "nothing that concerns it");
        know.send_replace(revoking(revoked));
        timeout(HEADER_TIMEOUT, end).await.expect("it may be revoked");
    }

    let (_know, revocations) = watch::channel(Revocations::default());
    let (change, offers) = watch::channel(offer("127.0.0.1:9", &["role:node"]));
    let egress = egress(far.mesh.clone(), "origin:kube-apiserver", offers, revocations);
    let entry = session(node);
    let mut end = std::pin::pin!(egress.ends(&entry));
    assert!(timeout(STAYS, &mut end).await.is_err());
    change.send_replace(offer("127.0.0.1:9", &["role:relay"]));
    timeout(HEADER_TIMEOUT, end).await.expect("it may be excluded");
}

#[tokio::test]
async fn a_session_of_a_node_that_becomes_known_ends_for_a_reason_only() {
    let (far, _other) = pair();
    let holder = joined(5, 50, UnixSeconds(1), UnixSeconds(1 << 31));
    let (know, revocations) = watch::channel(Revocations::default());
    let (_change, offers) = watch::channel(offer("127.0.0.1:9", &["role:node"]));
    let egress = egress(far.mesh.clone(), "origin:kube-apiserver", offers, revocations);
    let entry = session(holder.node);
    let mut end = std::pin::pin!(egress.ends(&entry));
    assert!(timeout(STAYS, &mut end).await.is_err());
    far.mesh.set_peer(holder.node, &[], Some(&Arc::new(holder)));
    let invite = |number: u8| Revoked::Invite(DelegationKey::from_bytes([number; 32]).public());
    know.send_replace(revoking(invite(51)));
    assert!(timeout(STAYS, &mut end).await.is_err(), "another invite");
    know.send_replace(revoking(invite(50)));
    timeout(HEADER_TIMEOUT, end).await.expect("its own");
}
