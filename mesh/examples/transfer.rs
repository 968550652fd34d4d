//! Measures a transfer between two nodes on loopback: rate and CPU time.
//!
//! `cargo run --release -p meshport-mesh --example transfer -- [MIB] [STREAMS] [MTU]`
//!
//! Starts itself once more as the receiving process, sends MIB mebibytes over STREAMS streams and
//! prints the rate and the CPU seconds per GiB of both processes together (user and system, of the
//! whole process including its start).

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a measuring tool, not the product")]

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use meshport_config::{
    AuthorityKey, Credential, MeshSecret, NodeKey, RecordKey, Subject, UnixSeconds,
};
use meshport_mesh::{Identity, Incoming, Mesh, MeshConfig, UdpOuter};

const WALL: UnixSeconds = UnixSeconds(1_800_000_000);
const CHUNK: usize = 64 << 10;
/// Clock ticks per second in /proc, the same on every Linux.
const TICKS: f64 = 100.0;

fn start(number: u8, mtu: u16) -> (Mesh, Incoming) {
    let key = NodeKey::from_bytes([number; 32]);
    let subject = Subject {
        node: key.public(),
        record_key: RecordKey::from_bytes([7; 32]).public(),
        name: "bench".parse().unwrap(),
        site: "local".parse().unwrap(),
        roles: "node".parse().unwrap(),
        succession: None,
    };
    let authority = AuthorityKey::from_bytes([1; 32]);
    let until = UnixSeconds(WALL.0 + 3600);
    let issued = Credential::issue_by_authority(&authority, subject, WALL, until).unwrap();
    let credential = issued.countersign(&key).unwrap();
    let identity = Identity { key, credential, secret: MeshSecret::from_bytes([1; 32]) };
    let socket = UdpOuter::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let config = MeshConfig { mtu, ..MeshConfig::default() };
    Mesh::start(identity, config, Arc::new(socket), [number; 32], || WALL).unwrap()
}

/// CPU seconds that a process has used.
fn cpu_seconds(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks = |field: usize| fields[field].parse::<f64>().unwrap();
    (ticks(11) + ticks(12)) / TICKS
}

async fn receive(mtu: u16) {
    let (mesh, mut incoming) = start(2, mtu);
    println!("{}", mesh.local_addr());
    std::io::stdout().flush().unwrap();
    tokio::spawn(async move { while incoming.events.recv().await.is_some() {} });
    while let Some((_, mut stream)) = incoming.streams.recv().await {
        tokio::spawn(async move {
            let mut chunks: [Bytes; 64] = std::array::from_fn(|_| Bytes::new());
            while let Ok(Some(_)) = stream.recv.read_chunks(&mut chunks).await {}
            stream.send.finish().unwrap();
        });
    }
}

async fn send(mib: usize, streams: usize, mtu: u16) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["receive", &mtu.to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let (mesh, mut incoming) = start(1, mtu);
    tokio::spawn(async move { while incoming.events.recv().await.is_some() {} });
    let peer = NodeKey::from_bytes([2; 32]).public();
    mesh.set_peer(peer, &[line.trim().parse().unwrap()], None);

    #[expect(clippy::disallowed_methods, reason = "it measures time")]
    let start = Instant::now();
    drop(mesh.open_stream(peer).await.unwrap());
    let first = start.elapsed();
    // Lets MTU discovery finish.
    tokio::time::sleep(Duration::from_millis(300)).await;

    let before = cpu_seconds(std::process::id()) + cpu_seconds(child.id());
    #[expect(clippy::disallowed_methods, reason = "it measures time")]
    let start = Instant::now();
    let tasks: Vec<_> = (0..streams)
        .map(|_| {
            let mesh = mesh.clone();
            tokio::spawn(async move {
                let mut stream = mesh.open_stream(peer).await.unwrap();
                let data = Bytes::from(vec![7; CHUNK]);
                for _ in 0..(mib << 20) / CHUNK / streams {
                    stream.send.write_chunk(data.clone()).await.unwrap();
                }
                stream.send.finish().unwrap();
                let mut rest = [Bytes::new()];
                while let Ok(Some(_)) = stream.recv.read_chunks(&mut rest).await {}
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let took = start.elapsed().as_secs_f64();
    let cpu = cpu_seconds(std::process::id()) + cpu_seconds(child.id()) - before;
    child.kill().unwrap();
    child.wait().unwrap();
    let rate = mib as f64 * 1.048_576 / took;
    println!(
        "{mib} MiB, {streams} streams, mtu {mtu}: {rate:.0} MB/s, \
         {:.2} CPU-s/GiB, first stream {:.1} ms",
        cpu * 1024.0 / mib as f64,
        first.as_secs_f64() * 1000.0,
    );
    println!("{:?}", mesh.counters());
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |index: usize, default: usize| {
        args.get(index).map_or(default, |text| text.parse().unwrap())
    };
    if args.first().is_some_and(|arg| arg == "receive") {
        receive(u16::try_from(number(1, 1500)).unwrap()).await;
    } else {
        let mtu = u16::try_from(number(2, 1500)).unwrap();
        send(number(0, 1024), number(1, 1), mtu).await;
    }
}
