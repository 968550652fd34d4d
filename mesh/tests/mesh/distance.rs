//! Bulk over distance, on a network in memory, in stopped time: results do not depend on the
//! machine.

use std::time::Duration;

use crate::common::*;
use bytes::Bytes;
use meshport_mesh::testing::{Bottleneck, Switch};
use meshport_mesh::{Incoming, Mesh, Stream};

const GIGABIT: u32 = 125_000_000;
const PIECE: usize = 64 << 10;

/// A path between two nodes.
#[derive(Debug, Clone, Copy)]
struct Path {
    rtt: Duration,
    rate: u32,
    queue: Duration,
    loss: f64,
}

impl Path {
    fn gigabit(rtt_ms: u64) -> Self {
        let queue = Duration::from_millis(20);
        Self { rtt: Duration::from_millis(rtt_ms), rate: GIGABIT, queue, loss: 0.0 }
    }

    fn switch(self) -> Switch {
        let Self { rtt, rate, queue, loss } = self;
        let switch = Switch::new(7);
        switch.set_delay(rtt / 2);
        switch.set_loss(loss);
        switch.set_bottleneck(Some(Bottleneck { rate, queue }));
        switch
    }
}

/// Answers every stream with this many bytes.
fn serve(mut incoming: Incoming, bytes: usize) {
    tokio::spawn(async move { while incoming.events.recv().await.is_some() {} });
    tokio::spawn(async move {
        let piece = Bytes::from(vec![7; PIECE]);
        while let Some((_, Stream { mut send, mut recv })) = incoming.streams.recv().await {
            let piece = piece.clone();
            tokio::spawn(async move {
                read_some(&mut recv).await.unwrap();
                for _ in 0..bytes / PIECE {
                    send.write_chunk(piece.clone()).await.unwrap();
                }
                send.finish().unwrap();
                send.stopped().await
            });
        }
    });
}

/// How long each of `count` answers of `bytes` takes, one after another.
async fn fetch(path: Path, bytes: usize, count: usize) -> Vec<Duration> {
    fetch_on(&path.switch(), bytes, count).await
}

async fn fetch_on(switch: &Switch, bytes: usize, count: usize) -> Vec<Duration> {
    let (near, far) = pair(switch);
    serve(far.incoming, bytes);
    let mut took = Vec::new();
    for _ in 0..count {
        took.push(fetch_once(&near.mesh, bytes).await);
    }
    took
}

async fn fetch_once(mesh: &Mesh, bytes: usize) -> Duration {
    let begun = now();
    let Stream { mut send, mut recv } = mesh.open_stream(id(2)).await.unwrap();
    write(&mut send, b"list").await;
    send.finish().unwrap();
    let mut chunks: [Bytes; 32] = std::array::from_fn(|_| Bytes::new());
    let mut got = 0;
    while let Some(count) = recv.read_chunks(&mut chunks).await.unwrap() {
        got += chunks[..count].iter().map(Bytes::len).sum::<usize>();
    }
    assert_eq!(got, bytes / PIECE * PIECE);
    now() - begun
}

#[expect(clippy::disallowed_methods, reason = "tokio's clock, which stands still here")]
fn now() -> tokio::time::Instant {
    tokio::time::Instant::now()
}

/// Megabytes per second of answers that took this long.
fn rates(took: &[Duration], bytes: usize) -> Vec<f64> {
    #[expect(clippy::cast_precision_loss, reason = "some megabytes")]
    let bytes = bytes as f64;
    took.iter().map(|took| bytes / took.as_secs_f64() / 1e6).collect()
}

#[tokio::test(start_paused = true)]
async fn a_list_over_100_ms_waits_for_few_round_trips() {
    let bytes = 40 << 20;
    let took = fetch(Path::gigabit(100), bytes, 2).await;
    let rates = rates(&took, bytes);
    // The first starts with 32 packets in flight, the second pays one round trip.
    assert!(rates[0] > 20.0 && rates[1] > 50.0, "{took:?}: {rates:?} MB/s");
}

/// Megabytes per second of the second half of a long answer: without the start of its connection.
async fn steady_rate(path: Path, bytes: usize) -> f64 {
    let (near, far) = pair(&path.switch());
    serve(far.incoming, bytes);
    let Stream { mut send, mut recv } = near.mesh.open_stream(id(2)).await.unwrap();
    write(&mut send, b"list").await;
    send.finish().unwrap();
    let (mut got, mut half) = (0, None);
    while let Some(chunk) = read_some(&mut recv).await.unwrap() {
        got += chunk.len();
        if got >= bytes / 2 && half.is_none() {
            half = Some((now(), got));
        }
    }
    let (since, had) = half.unwrap();
    rates(&[now() - since], got - had)[0]
}

/// 108 MB/s here, of the 125 of the line: headers are the rest. The bar leaves a sixth.
#[tokio::test(start_paused = true)]
async fn one_stream_fills_a_gigabit_over_100_ms() {
    let rate = steady_rate(Path::gigabit(100), 160 << 20).await;
    assert!(rate > 90.0, "{rate} MB/s");
}

/// The first answer starts with 32 packets in flight. These paths have loss and no queue: CUBIC as
/// quinn has it carries 1 to 5 MB/s on them.
#[tokio::test(start_paused = true)]
async fn a_path_that_loses_a_thousandth_is_filled_too() {
    let bytes = 20 << 20;
    for (rtt_ms, least) in [(10, [53.0, 60.0]), (100, [12.4, 26.0])] {
        let took = fetch(Path { loss: 0.001, ..Path::gigabit(rtt_ms) }, bytes, 2).await;
        let rates = rates(&took, bytes);
        let is_filled = rates.iter().zip(least).all(|(rate, least)| *rate > least);
        assert!(is_filled, "{rtt_ms} ms: {rates:?} MB/s");
    }
}

#[tokio::test(start_paused = true)]
async fn a_path_that_loses_a_hundredth_is_filled_too() {
    let bytes = 20 << 20;
    let took = fetch(Path { loss: 0.01, ..Path::gigabit(40) }, bytes, 2).await;
    let rates = rates(&took, bytes);
    assert!(rates[0] > 18.0 && rates[1] > 40.0, "{took:?}: {rates:?} MB/s");
}

#[tokio::test(start_paused = true)]
async fn a_narrow_path_is_filled_and_not_flooded() {
    // 40 Mbit/s, 40 ms, with a queue of a quarter of the path's capacity.
    let path = Path { rate: 5_000_000, queue: Duration::from_millis(10), ..Path::gigabit(40) };
    let bytes = 8 << 20;
    let switch = path.switch();
    let took = fetch_on(&switch, bytes, 2).await;
    let rates = rates(&took, bytes);
    assert!(rates[1] > 3.0, "{took:?}: {rates:?} MB/s");
    let (sent, dropped) = switch.sent_to(at(1));
    assert!(dropped * 20 < sent, "{dropped} of {sent} datagrams were too many");
}

#[tokio::test(start_paused = true)]
async fn readers_that_stopped_do_not_keep_the_others_of_a_connection_waiting() {
    let path = Path::gigabit(12);
    let switch = path.switch();
    let (near, far) = pair(&switch);
    serve(far.incoming, 4 << 20);
    let mut stopped = Vec::new();
    for _ in 0..6 {
        let Stream { mut send, mut recv } = near.mesh.open_stream(id(2)).await.unwrap();
        write(&mut send, b"list").await;
        // Enough to count as bulk; then it is no longer read.
        let mut got = 0;
        while got < 32 << 10 {
            got += read_some(&mut recv).await.unwrap().unwrap().len();
        }
        stopped.push((send, recv));
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    within(Duration::from_secs(2), fetch_once(&near.mesh, 4 << 20)).await;
    // And they continue when the receiver reads.
    for (_, mut recv) in stopped {
        let rest = within(Duration::from_secs(2), read_to_end(&mut recv)).await.unwrap();
        assert!(rest.len() > 3 << 20);
    }
}

#[tokio::test(start_paused = true)]
#[ignore = "prints the figures of ADR 025, takes a minute"]
async fn figures() {
    for rtt_ms in [10, 40, 100] {
        for (loss, bytes) in [(0.0, 20), (0.001, 20), (0.01, 20), (0.05, 2)] {
            let path = Path { loss, ..Path::gigabit(rtt_ms) };
            let took = fetch(path, bytes << 20, 2).await;
            println!("{rtt_ms} ms, loss {loss}, {bytes} MiB: {took:?}");
        }
    }
    for (queue_ms, rtt_ms) in [(1, 100), (10, 40)] {
        let queue = Duration::from_millis(queue_ms);
        let path = Path { rate: GIGABIT / 5, queue, ..Path::gigabit(rtt_ms) };
        let took = fetch(path, 10 << 20, 2).await;
        println!("200 Mbit/s, queue {queue_ms} ms, {rtt_ms} ms, 10 MiB: {took:?}");
    }
}
