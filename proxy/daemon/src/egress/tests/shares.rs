//! A node that opens as many sessions as it can leaves slots for the others.

use super::*;

/// Opens sessions until one is refused: those that are open, and the last one's answer.
async fn open_all(
    near: &Node,
    far: NodeId,
    header: impl Fn() -> Vec<u8>,
) -> (Vec<Stream>, Option<Answer>) {
    let mut open = Vec::new();
    loop {
        let mut stream = near.mesh.open_stream(far).await.expect("reachable");
        stream.send.write_chunk(header().into()).await.expect("open");
        let first = read(&mut stream, 1).await;
        let said = Answer::from_code(first[0]);
        if said != Some(Answer::Connected) || open.len() as u64 > LIMIT {
            return (open, said);
        }
        // The instance's greeting may arrive together with the answer.
        read(&mut stream, b"0hello ".len() - first.len()).await;
        open.push(stream);
    }
}

fn direct() -> Vec<u8> {
    Header::direct(service(), HEADER_TIMEOUT).encode()
}

async fn served(sessions: &Sessions, count: u64) {
    let until = async {
        while sessions.count_all(Side::Served) != count {
            tokio::task::yield_now().await;
        }
    };
    timeout(HEADER_TIMEOUT, until).await.expect("their entries are closed");
}

#[tokio::test]
async fn a_node_with_its_share_of_sessions_gets_no_more_and_others_are_served() {
    let (origin, greedy, other) = three();
    let node = origin.mesh.node_id();
    let sessions = serve(origin, "node,origin:kube-apiserver", &greeter().await);
    assert_eq!(sessions.crowding(clock::now()), None);
    let (mut open, said) = open_all(&greedy, node, direct).await;
    assert_eq!((open.len() as u64, said), (LIMIT / 2, Some(Answer::Overloaded)));
    let crowding = sessions.crowding(clock::now()).expect("the status says it");
    let most = vec![(Holder::Node(greedy.mesh.node_id()), LIMIT / 2)];
    assert_eq!(crowding, Crowding { turned_away: 1, most });
    assert_eq!(count(&sessions, Answer::Overloaded), 1);

    let (theirs, said) = open_all(&other, node, direct).await;
    assert_eq!((theirs.len() as u64, said), (LIMIT / 4, Some(Answer::Overloaded)));
    // Open sessions continue.
    open[0].send.write_chunk(Bytes::from_static(b"still here")).await.expect("open");
    assert_eq!(read(&mut open[0], 10).await, b"still here");

    drop(open);
    served(&sessions, LIMIT / 4).await;
    assert_eq!(answer(&greedy, node, direct()).await, Some(Answer::Connected));
    drop(theirs);
    served(&sessions, 0).await;
}

#[tokio::test]
async fn behind_a_relay_each_node_has_a_share_and_what_it_opens_itself_is_another() {
    let (origin, relay, loud) = three_with(["node,origin:kube-apiserver", "relay", "node"]);
    let node = origin.mesh.node_id();
    let sessions = serve(origin, "node,origin:kube-apiserver", &greeter().await);
    let carried = |number| {
        let client = credential(number, "node");
        move || Header::carried(service(), client.clone(), HEADER_TIMEOUT).encode()
    };
    // A third of all, not the half that a relay may carry.
    let (open, said) = open_all(&relay, node, carried(3)).await;
    assert_eq!((open.len() as u64, said), (LIMIT / 3, Some(Answer::Overloaded)));
    assert_eq!(answer(&relay, node, carried(4)()).await, Some(Answer::Connected));
    // The relay may claim anything about that node.
    assert_eq!(answer(&loud, node, direct()).await, Some(Answer::Connected));
    served(&sessions, LIMIT / 3).await;

    let mut named = Vec::new();
    for number in 10..20 {
        named.extend(open_all(&relay, node, carried(number)).await.0);
    }
    assert_eq!((open.len() + named.len()) as u64, LIMIT / 2, "in whatever names");
    assert_eq!(answer(&loud, node, direct()).await, Some(Answer::Connected));
}

#[tokio::test]
async fn no_more_is_served_than_there_are_descriptors_for() {
    let name = service();
    let sessions = Sessions::within(7);
    let client = || sessions.open(&name, Side::Client, Line::Direct(NodeId::from_bytes([1; 32])));
    let serve = |number| {
        let node = NodeId::from_bytes([number; 32]);
        sessions.serve(&name, node, node)
    };
    // The clients of this machine take two each.
    let own = [client(), client()];
    let open: Vec<Guard> = (2..5).map(|number| serve(number).expect("there is room")).collect();
    assert_eq!(serve(5).err(), Some(Crowded::Full));
    assert!(sessions.lacks_descriptors());
    drop(own);
    assert!(serve(5).is_ok(), "they have gone");
    drop(open);
    assert_eq!(sessions.count(), 0);
}
