//! Requests for views: answered for operators, at the node they name and nowhere else.

use meshport_core::remote_view::Request;

use super::*;

/// Serves a node that admits the operator and then finds that it is stopping: its view is not under
/// test here.
const LET_IN: Answer = Answer::Leaving;

fn serve_views(far: Node, roles: &str) {
    serve_for(far, roles, Arc::default());
}

async fn said(near: &Node, hop: NodeId, request: &Request) -> Answer {
    answer(near, hop, request.encode()).await.expect("an answer that is known")
}

#[tokio::test]
async fn only_operators_read_views() {
    for (roles, expected) in [
        ("operator", LET_IN),
        ("node,operator", LET_IN),
        ("node", Answer::NotAllowed),
        ("node,relay,origin:kube-apiserver", Answer::NotAllowed),
    ] {
        let (near, far) = pair_with([roles, "node"]);
        let node = far.mesh.node_id();
        serve_views(far, "node");
        let own = Request::new(None, 0);
        assert_eq!(said(&near, node, &own).await, expected, "{roles}");
        let named = Request::new(Some(node), 0);
        assert_eq!(said(&near, node, &named).await, expected, "{roles}");
    }
}

#[tokio::test]
async fn any_member_carries_an_operators_request_and_nobody_elses() {
    for (roles, expected) in [("operator", LET_IN), ("node", Answer::NotAllowed)] {
        let (carrier, near, far) = three_with(["node", roles, "node"]);
        let (carrier_id, far_id) = (carrier.mesh.node_id(), far.mesh.node_id());
        serve_views(far, "node");
        serve_views(carrier, "node");
        let request = Request::new(Some(far_id), 0);
        assert_eq!(said(&near, carrier_id, &request).await, expected, "{roles}");
        let stranger = Request::new(Some(NodeId::from_bytes([77; 32])), 0);
        let unknown = said(&near, carrier_id, &stranger).await;
        let expected = if expected == LET_IN { Answer::NoPath } else { expected };
        assert_eq!(unknown, expected, "{roles}");
    }
}

#[tokio::test]
async fn a_member_shows_a_valid_credential_of_an_operator() {
    let operator = credential(9, "operator");
    let mut forged = credential(9, "node");
    forged.roles = "operator".parse().expect("roles");
    for (roles, client, expected) in [
        ("node", operator.clone(), LET_IN),
        ("node", credential(9, "node"), Answer::NotAllowed),
        ("node", forged, Answer::NotAllowed),
        ("operator", operator, Answer::NotAllowed),
    ] {
        let (near, far) = pair_with([roles, "node"]);
        let node = far.mesh.node_id();
        serve_views(far, "node");
        let request = Request::new(None, 0).carried(client.clone());
        assert_eq!(said(&near, node, &request).await, expected, "{roles}: {client:?}");
    }
}
