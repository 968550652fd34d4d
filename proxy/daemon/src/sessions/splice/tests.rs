//! Every test runs over both kinds of connections: kernel TCP and memory.

use std::future::pending;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinHandle;

use super::*;
use crate::tcp::{Host, memory};

fn hosts() -> [Host; 2] {
    [Host::Kernel, Host::Memory(memory::Host::default())]
}

async fn pair(host: &Host) -> (Tcp, Tcp) {
    let any = "127.0.0.1:0".parse().expect("an address");
    let listener = host.listen(any).expect("loopback");
    let address = listener.local_addr().expect("bound").to_string();
    let (near, far) = tokio::join!(host.connect(&address), listener.accept());
    (near.expect("connects"), far.expect("accepts"))
}

#[tokio::test]
async fn carries_both_ways_and_half_closes() {
    for host in hosts() {
        let (mut client, near) = pair(&host).await;
        let (far, mut server) = pair(&host).await;
        let splice = tokio::spawn(async move {
            let carried = Carried::default();
            with_tcp(near, far, Early::default(), &carried, pending()).await.map(|()| carried)
        });
        client.write_all(b"question").await.expect("writes");
        client.shutdown().await.expect("half-closes");
        let mut question = Vec::new();
        server.read_to_end(&mut question).await.expect("reads to the end");
        assert_eq!(question, b"question");
        let answer = vec![7_u8; 300_000];
        server.write_all(&answer).await.expect("still writes after the client's end");
        drop(server);
        let mut received = Vec::new();
        client.read_to_end(&mut received).await.expect("reads to the end");
        assert_eq!(received, answer);
        let carried = splice.await.expect("no panic").expect("no reset");
        assert_eq!(carried.total(), 300_008);
        assert_eq!(carried.up.into_inner(), 8);
    }
}

/// A task that waits for a socket that was just drained must neither wake spuriously nor miss new
/// data.
#[tokio::test]
async fn an_emptied_connection_is_not_read_again_before_there_is_more() {
    for host in hosts() {
        let (mut client, near) = pair(&host).await;
        for said in [&b"one"[..], b"another"] {
            client.write_all(said).await.expect("writes");
            assert_eq!(read(&near).await.expect("open").as_deref(), Some(said));
            assert!(at_once(near.readable()).await.is_none(), "nothing is there");
        }
        client.write_all(b"last").await.expect("writes");
        client.shutdown().await.expect("half-closes");
        assert_eq!(read(&near).await.expect("open").as_deref(), Some(&b"last"[..]));
        assert_eq!(read(&near).await.expect("no reset"), None);
        assert_eq!(read(&near).await.expect("no reset"), None, "the end stays");
    }
}

/// A client that has seen the end of its session, which moves, the server, and the session.
async fn moved(host: &Host) -> (Tcp, Tcp, JoinHandle<io::Result<()>>) {
    let (mut client, near) = pair(host).await;
    let (far, server) = pair(host).await;
    let splice = tokio::spawn(async move {
        let end = async { Ending::Farewell };
        with_tcp(near, far, Early::default(), &Carried::default(), end).await
    });
    assert_eq!(client.read(&mut [0; 1]).await.expect("an end, not a reset"), 0);
    (client, server, splice)
}

/// Moved while nothing is in flight: both sides see an end and no error. Where the client still
/// sends something, both learn that it was not all.
#[tokio::test]
async fn a_farewell_is_an_end_for_both_sides_unless_the_client_still_speaks() {
    for (host, speaks) in hosts().into_iter().flat_map(|it| [(it.clone(), false), (it, true)]) {
        let (mut client, mut server, splice) = moved(&host).await;
        if speaks {
            client.write_all(b"question").await.expect("writes");
            assert!(splice.await.expect("no panic").is_err());
            server.read(&mut [0; 1]).await.expect_err("a reset, not an end");
        } else {
            drop(client);
            splice.await.expect("no panic").expect("a clean end");
            assert_eq!(server.read(&mut [0; 1]).await.expect("an end, not a reset"), 0);
        }
    }
}

/// With its record of the end, as most clients here send it.
#[tokio::test]
async fn a_client_of_tls_that_closes_has_said_farewell() {
    for (host, after) in hosts().into_iter().flat_map(|it| [(it.clone(), false), (it, true)]) {
        let (mut client, mut server, splice) = moved(&host).await;
        let record = [&[23, 3, 3, 0, 19][..], &[7; 19]].concat();
        client.write_all(&record).await.expect("writes");
        if after {
            client.write_all(&record).await.expect("writes");
        }
        client.shutdown().await.expect("closes");
        assert_eq!(splice.await.expect("no panic").is_ok(), !after);
        let end = server.read(&mut [0; 1]).await;
        assert_eq!(end.is_ok(), !after, "{end:?}");
    }
    for (bytes, is_notice) in [
        (&[21, 3, 3, 0, 2, 1, 0][..], true),
        (&[21, 3, 3, 0, 2, 1][..], false),
        (&[22, 3, 3, 0, 2, 1, 0][..], false),
        (&[23, 3, 3, 0][..], false),
        (&b"question"[..], false),
    ] {
        assert_eq!(may_be_close_notify(bytes), is_notice, "{bytes:?}");
    }
    let long = [&[23, 3, 3, 0, 60][..], &[7; 60]].concat();
    assert!(!may_be_close_notify(&long), "as long as a request");
}

/// The same through the mesh, as nearly all sessions go.
#[tokio::test]
async fn a_farewell_through_the_mesh_ends_the_stream_once_the_client_has_closed() {
    let (one, mut other) = crate::testing::pair();
    for (speaks, holds) in [(false, false), (true, false), (false, true)] {
        let mut far = one.mesh.open_stream(other.mesh.node_id()).await.expect("opens");
        far.send.write_chunk(Bytes::from_static(b"answer")).await.expect("the window has room");
        let (_, taken) = other.incoming.streams.recv().await.expect("arrives");
        let (mut client, near) = pair(&Host::Kernel).await;
        let (carried, (end, is_over)) =
            (Arc::new(Carried::default()), tokio::sync::oneshot::channel());
        let splice = tokio::spawn({
            let carried = Arc::clone(&carried);
            async move {
                let end = async { is_over.await.expect("sent below") };
                with_stream(near, taken, Early::default(), &carried, end).await
            }
        });
        let mut answer = [0; 6];
        client.read_exact(&mut answer).await.expect("the answer");
        if holds {
            client.write_all(b"question").await.expect("writes");
            client.shutdown().await.expect("half-closes");
            let asked = async {
                while !carried.traffic().holds {
                    tokio::task::yield_now().await;
                }
            };
            timeout(Duration::from_secs(20), asked).await.expect("the end is passed on");
        }
        end.send(Ending::Farewell).expect("it is awaited");
        if speaks {
            client.read_to_end(&mut Vec::new()).await.expect("an end, not a reset");
            client.write_all(b"question").await.expect("writes");
        }
        if !speaks && !holds {
            client.read_to_end(&mut Vec::new()).await.expect("an end, not a reset");
            drop(client);
        }
        let is_clean = !speaks && !holds;
        assert_eq!(splice.await.expect("no panic").is_ok(), is_clean, "{speaks} {holds}");
        let mut chunks = [Bytes::new()];
        if !holds {
            let end = far.recv.read_chunks(&mut chunks).await;
            assert_eq!(end.is_ok(), is_clean, "{end:?}");
        }
    }
}

/// However long a side takes nothing: what is held for it would be lost, and the rest of the
/// transfer would look complete.
#[tokio::test]
async fn a_farewell_while_bytes_are_held_or_one_side_has_ended_is_a_reset() {
    for (host, ended) in hosts().into_iter().flat_map(|it| [(it.clone(), false), (it, true)]) {
        let (mut client, near) = pair(&host).await;
        let (far, mut server) = pair(&host).await;
        let carried = Arc::new(Carried::default());
        let (end, is_over) = tokio::sync::oneshot::channel::<Ending>();
        let splice = tokio::spawn({
            let carried = Arc::clone(&carried);
            async move {
                let end = async { is_over.await.expect("sent below") };
                with_tcp(near, far, Early::default(), &carried, end).await
            }
        });
        if ended {
            client.write_all(b"question").await.expect("writes");
            client.shutdown().await.expect("half-closes");
            let mut question = Vec::new();
            server.read_to_end(&mut question).await.expect("reads to the end");
        } else {
            // Until nobody takes more of it: the client reads nothing.
            let piece = [7; READ_BYTES];
            let wait = Duration::from_secs(1);
            while timeout(wait, server.write_all(&piece)).await.is_ok() {}
        }
        assert!(carried.traffic().holds);
        end.send(Ending::Farewell).expect("it is awaited");
        assert!(splice.await.expect("no panic").is_err());
        client.read_to_end(&mut Vec::new()).await.expect_err("a reset, not an end");
    }
}

#[tokio::test]
async fn a_reset_on_one_side_is_a_reset_on_the_other() {
    for host in hosts() {
        let (client, near) = pair(&host).await;
        let (far, mut server) = pair(&host).await;
        let splice = tokio::spawn(async move {
            with_tcp(near, far, Early::default(), &Carried::default(), pending()).await
        });
        client.reset_on_drop();
        drop(client);
        let error = server.read(&mut [0; 1]).await.expect_err("a reset, not an end");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        assert!(splice.await.expect("no panic").is_err());
    }
}

#[tokio::test]
async fn a_cut_resets_both_sides() {
    for host in hosts() {
        let (mut client, near) = pair(&host).await;
        let (far, mut server) = pair(&host).await;
        let (cut, is_cut) = tokio::sync::oneshot::channel::<Ending>();
        let splice = tokio::spawn(async move {
            let cut = async { is_cut.await.expect("sent below") };
            with_tcp(near, far, Early::default(), &Carried::default(), cut).await
        });
        client.write_all(b"x").await.expect("writes");
        server.read_exact(&mut [0; 1]).await.expect("carried before the cut");
        cut.send(Ending::Reset).expect("still carried");
        for side in [&mut client, &mut server] {
            let error = side.read(&mut [0; 1]).await.expect_err("a reset, not an end");
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        }
        assert!(splice.await.expect("no panic").is_err());
    }
}

#[tokio::test]
async fn the_end_of_its_task_resets_both_sides() {
    for host in hosts() {
        let (mut client, near) = pair(&host).await;
        let (far, mut server) = pair(&host).await;
        let splice = tokio::spawn(async move {
            with_tcp(near, far, Early::default(), &Carried::default(), pending()).await
        });
        client.write_all(b"x").await.expect("writes");
        server.read_exact(&mut [0; 1]).await.expect("carried before the end");
        splice.abort();
        for side in [&mut client, &mut server] {
            let error = side.read(&mut [0; 1]).await.expect_err("a reset, not an end");
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        }
    }
}

#[tokio::test]
async fn a_stopped_reader_stops_the_writer() {
    for host in hosts() {
        let (client, near) = pair(&host).await;
        let (far, _server) = pair(&host).await;
        tokio::spawn(async move {
            with_tcp(near, far, Early::default(), &Carried::default(), pending()).await
        });
        let block = vec![0_u8; 1 << 20];
        let mut accepted = 0;
        let stalled = timeout(Duration::from_millis(500), async {
            loop {
                client.writable().await.expect("open");
                accepted += client.try_write_vectored(&[IoSlice::new(&block)]).unwrap_or(0);
            }
        });
        assert!(stalled.await.is_err());
        // The buffers of four sockets, and no more.
        assert!(accepted > 0 && accepted < 64 << 20, "accepted {accepted} bytes");
    }
}

#[tokio::test]
async fn an_address_without_a_listener_refuses_and_a_closed_one_resets_waiting_clients() {
    for host in hosts() {
        let listener = host.listen("127.0.0.1:0".parse().expect("an address")).expect("loopback");
        let address = listener.local_addr().expect("bound").to_string();
        let mut waiting = host.connect(&address).await.expect("the backlog has room");
        drop(listener);
        let error = waiting.read(&mut [0; 1]).await.expect_err("a reset, not an end");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        let error = host.connect(&address).await.expect_err("nobody listens");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }
}

#[tokio::test]
async fn a_reset_behind_data_is_never_taken_for_the_end() {
    let (one, mut other) = crate::testing::pair();
    for round in 0..20 {
        let mut stream = one.mesh.open_stream(other.mesh.node_id()).await.expect("opens");
        let (mut client, near) = pair(&Host::Kernel).await;
        let sender = tokio::spawn(async move {
            // Piece by piece, so that the other side is collecting when the reset comes.
            for _ in 0..8 + 4 * round {
                let piece = Bytes::from_static(&[7; 1024]);
                stream.send.write_chunk(piece).await.expect("the window has room");
                tokio::task::yield_now().await;
            }
            stream.send.reset(ABORTED);
        });
        let (_, taken) = other.incoming.streams.recv().await.expect("arrives");
        let carried = Carried::default();
        let splice = with_stream(near, taken, Early::default(), &carried, pending());
        let mut received = Vec::new();
        let (result, read) = tokio::join!(splice, client.read_to_end(&mut received));
        assert!(result.is_err(), "round {round}");
        let error = read.expect_err("a reset, not an end");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "round {round}");
        sender.await.expect("no panic");
    }
}

/// With less, a reader with slightly more processor time gets a much greater share: see
/// `LOCAL_UNREAD`.
#[tokio::test]
async fn a_local_connection_holds_three_reads() {
    let (Tcp::Kernel(near), Tcp::Kernel(far)) = pair(&Host::Kernel).await else {
        panic!("the kernel's")
    };
    for end in [near, far] {
        let size = socket2::SockRef::from(&end).recv_buffer_size().expect("an open socket");
        assert!(size >= 3 * READ_BYTES, "{size} bytes");
    }
}

/// The side that sent last is waiting.
#[tokio::test]
async fn a_session_waits_from_each_question_to_its_answer() {
    for host in hosts() {
        let (mut client, near) = pair(&host).await;
        let (far, mut server) = pair(&host).await;
        let carried = Arc::new(Carried::default());
        let inside = carried.clone();
        let splice =
            tokio::spawn(
                async move { with_tcp(near, far, Early::default(), &inside, pending()).await },
            );
        assert!(!carried.traffic().waits, "nobody has said anything");
        for _ in 0..3 {
            client.write_all(b"question").await.expect("writes");
            server.read_exact(&mut [0; 8]).await.expect("arrives");
            assert!(carried.traffic().waits);
            server.write_all(b"answer").await.expect("writes");
            client.read_exact(&mut [0; 6]).await.expect("arrives");
            assert!(!carried.traffic().waits);
        }
        drop((client, server));
        // This test does not check how it ends.
        let _ = splice.await.expect("no panic");
    }
    let totals = Arc::new(Totals::default());
    let after = |sent| {
        Carried::of_client(
            sent,
            Counted { totals: totals.clone(), origin: Arc::default(), tally: None },
        )
    };
    assert!(after(1).traffic().waits && !after(0).traffic().waits);
    after(7).add_down(5);
    let [up, down] =
        [SessionCount::UpBytes, SessionCount::DownBytes].map(|it| totals.counts.get(it));
    assert_eq!((up, down), (8, 5));
}
