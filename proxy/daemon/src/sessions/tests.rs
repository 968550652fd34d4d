use super::*;

const AT_ONCE: Cut = Cut::Within { window: Duration::ZERO, forgives: true };

fn line(number: u8) -> Line {
    Line::Direct(NodeId::from_bytes([number; 32]))
}

#[tokio::test]
async fn a_cut_reaches_the_open_sessions_of_one_origin_only() {
    let sessions = Sessions::default();
    let service: ServiceName = "kube-apiserver".parse().expect("a valid name");
    let (dead, alive) = (line(1), line(2));
    let mut one = sessions.open(&service, Side::Client, dead);
    let mut other = sessions.open(&service, Side::Client, alive);
    assert_eq!(sessions.cut(&service, dead, AT_ONCE), 1);
    let mut late = sessions.open(&service, Side::Client, dead);
    one.cut(0.5).await;
    for spared in [&mut other, &mut late] {
        let waited = timeout(Duration::from_millis(20), spared.cut(0.5)).await;
        assert!(waited.is_err(), "not concerned by that cut");
    }
    assert_eq!(sessions.cut(&service, line(3), AT_ONCE), 0);
}

#[tokio::test]
async fn an_answer_spares_a_session_unless_it_shows_nothing() {
    let sessions = Sessions::default();
    let service: ServiceName = "kube-apiserver".parse().expect("a valid name");
    for (forgives, later) in [(true, false), (false, false), (true, true), (false, true)] {
        let mut session = sessions.open(&service, Side::Client, line(1));
        let cut = Cut::Within { window: Duration::ZERO, forgives };
        if later {
            session.forgive();
            sessions.cut(&service, line(1), cut);
        } else {
            sessions.cut(&service, line(1), cut);
            session.forgive();
        }
        let ends = timeout(Duration::from_millis(20), session.cut(0.5)).await.is_ok();
        assert_eq!(ends, later || !forgives, "forgives: {forgives}, later: {later}");
    }
}

#[tokio::test]
async fn counts_follow_guards_and_tell_of_busy_origins() {
    let sessions = Sessions::default();
    let service: ServiceName = "kube-apiserver".parse().expect("a valid name");
    let node = line(1);
    let one = sessions.open(&service, Side::Client, node);
    sessions.busy_changed().await;
    let two = sessions.open(&service, Side::Client, node);
    let served = sessions.open(&service, Side::Served, node);
    assert_eq!(sessions.count_line(&service, Side::Client, node), 2);
    assert_eq!(sessions.count_side(&service, Side::Served), 1);
    assert_eq!(sessions.busy(), BTreeSet::from([node]));
    drop((one, two));
    sessions.busy_changed().await;
    assert!(sessions.busy().is_empty());
    drop(served);
    assert_eq!(sessions.count_all(Side::Served), 0);
    let open = sessions.lock();
    assert!(open.by_side.is_empty() && open.by_peer.is_empty(), "names of peers stay");
    assert!(open.by_line.is_empty());
}

#[tokio::test]
async fn sessions_of_a_node_with_a_new_key_are_its_successors() {
    let sessions = Sessions::default();
    let service: ServiceName = "kube-apiserver".parse().expect("a valid name");
    let node = |number| NodeId::from_bytes([number; 32]);
    let relayed = |relay| Line::Relayed { origin: node(9), relay: node(relay) };
    let mut one = sessions.open(&service, Side::Client, line(1));
    let carried = sessions.open(&service, Side::Client, relayed(1));
    let served = sessions.open(&service, Side::Served, line(1));
    sessions.rename(node(1), node(2));
    sessions.rename(node(2), node(3));
    let mut two = sessions.open(&service, Side::Client, line(3));
    assert_eq!(sessions.count_line(&service, Side::Client, line(3)), 2);
    assert_eq!(sessions.count_line(&service, Side::Client, line(1)), 1, "if one asks for it");
    assert_eq!(sessions.count_peer(Side::Served, line(3)), 1);
    assert_eq!(sessions.busy(), BTreeSet::from([line(3), relayed(3)]));
    let lines = sessions.lines(&service, Side::Client);
    assert_eq!(lines, [(line(3), 2), (relayed(3), 1)]);
    // What happens to the successor's line happens to all of them.
    assert_eq!(sessions.cut(&service, line(3), AT_ONCE), 2);
    one.cut(0.5).await;
    two.cut(0.5).await;
    drop((one, two, carried, served));
    assert!(sessions.busy().is_empty() && sessions.lock().by_line.is_empty());
    sessions.rename(node(5), node(6));
    assert_eq!(sessions.lock().renamed.len(), 1, "names that nobody needs are forgotten");
}

#[tokio::test]
async fn as_many_as_have_leave_move_and_only_when_they_are_quiet() {
    let sessions = Sessions::default();
    let service: ServiceName = "kube-apiserver".parse().expect("a valid name");
    let (mut one, mut two) = (
        sessions.open(&service, Side::Client, line(1)),
        sessions.open(&service, Side::Client, line(1)),
    );
    let (quiet, busy) = (Carried::default(), Carried::default());
    sessions.release(&service, line(1), 1, false);
    let ended = async {
        tokio::select! {
            end = one.end(0.5, &quiet) => (1, end),
            end = two.end(0.5, &quiet) => (2, end),
        }
    };
    let (which, end) = timeout(MAX_UNREST, ended).await.expect("one of them");
    assert_eq!(end, End::Moved { quiet: true });
    let other = if which == 1 { &mut two } else { &mut one };
    assert!(timeout(QUIET * 3, other.end(0.5, &quiet)).await.is_err(), "one had leave");
    sessions.release(&service, line(1), 1, false);
    let traffic = async {
        loop {
            busy.up.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(QUIET / 10).await;
        }
    };
    tokio::select! {
        () = traffic => {}
        waited = timeout(QUIET * 3, other.end(0.5, &busy)) => {
            assert!(waited.is_err(), "moved in the middle of something");
        }
    }
}

#[tokio::test]
async fn leave_that_is_taken_back_ends_nobody() {
    let sessions = Sessions::default();
    let service: ServiceName = "kube-apiserver".parse().expect("a valid name");
    let mut one = sessions.open(&service, Side::Client, line(1));
    // One permit is taken at once, the other lies there for whoever comes.
    let two = sessions.open(&service, Side::Client, line(1));
    sessions.release(&service, line(1), 2, true);
    let quiet = Carried::default();
    let recall = async {
        tokio::time::sleep(QUIET / 4).await;
        sessions.release(&service, line(1), 0, false);
    };
    let end = timeout(QUIET * 4, one.end(0.5, &quiet));
    let (end, ()) = tokio::join!(end, recall);
    assert!(end.is_err(), "it was to stay: {end:?}");
    drop(two);
}
