use std::sync::atomic::Ordering;
use std::time::Duration;

use meshport_core::ledger::QUIET;
use tokio::time::timeout;

use super::*;

const AT_ONCE: Cut = Cut::Within { window: Duration::ZERO, forgives: true };

fn line(number: u8) -> Line {
    Line::Direct(NodeId::from_bytes([number; 32]))
}

#[tokio::test]
async fn those_that_are_to_end_are_woken_and_nobody_else() {
    let sessions = Sessions::default();
    let service: ServiceName = "kube-apiserver".parse().expect("a valid name");
    let [one, other] = [1, 2].map(|number| sessions.open(&service, Side::Client, line(number)));
    let carried = Carried::default();
    let cut = async {
        tokio::task::yield_now().await;
        assert_eq!(sessions.cut(&service, line(1), AT_ONCE), 1);
    };
    let (end, ()) = tokio::join!(one.carry(&carried, true), cut);
    assert_eq!(end, End::Cut);
    assert!(timeout(Duration::from_millis(20), other.relay(&carried)).await.is_err());
    drop((one, other));
    assert!(sessions.inner.wakers.is_empty() && sessions.look(Ledger::count) == 0);
}

#[tokio::test(start_paused = true)]
async fn a_session_that_has_leave_moves_when_it_carries_nothing() {
    let sessions = Sessions::default();
    let service: ServiceName = "kube-apiserver".parse().expect("a valid name");
    let session = sessions.open(&service, Side::Client, line(1));
    let carried = Carried::default();
    let traffic = async {
        sessions.release(&service, Leave { line: line(1), count: 1, insist: false });
        for _ in 0..20 {
            carried.up.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(QUIET / 2).await;
        }
        clock::now()
    };
    let end = async { (session.carry(&carried, true).await, clock::now()) };
    let ((end, at), stopped) = tokio::join!(end, traffic);
    assert_eq!(end, End::Moved { quiet: true });
    assert!(at >= stopped + QUIET / 2, "not before it was quiet");
}

#[tokio::test]
async fn an_origin_that_gets_its_first_session_or_loses_its_last_is_reported() {
    let sessions = Sessions::default();
    let service: ServiceName = "kube-apiserver".parse().expect("a valid name");
    let session = sessions.open(&service, Side::Client, line(1));
    sessions.busy_changed().await;
    assert_eq!(sessions.busy(), BTreeSet::from([line(1)]));
    drop(session);
    sessions.busy_changed().await;
    assert!(sessions.busy().is_empty());
}
