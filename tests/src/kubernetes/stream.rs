//! Long answers of a real apiserver, like logs and copies: a node of the cluster whose port is a
//! small HTTP server of this test, requested through the apiserver's own proxy.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

use sha2::{Digest, Sha256};

use super::{ADMIN_TOKEN, Cluster};

/// The node's name and the server's port.
const NAME: &str = "streams";
const PORT: u16 = 8000;
/// The unit of writing.
const BLOCK_BYTES: usize = 64 * 1024;

/// The node.
#[derive(Debug)]
pub struct Streams;

impl Streams {
    /// Starts the server on etcd's host and creates its node object.
    pub fn start(cluster: &Cluster) -> Self {
        let host = cluster.host(cluster.etcd_host());
        let (namespace, address) = (host.namespace_file(), SocketAddr::from((host.address, PORT)));
        let listener = thread::spawn(move || {
            let namespace = File::open(namespace).expect("the host is there");
            rustix::thread::move_into_link_name_space(
                std::os::fd::AsFd::as_fd(&namespace),
                Some(rustix::thread::LinkNameSpaceType::Network),
            )
            .expect("root may enter a host");
            TcpListener::bind(address).expect("the port is free")
        });
        let listener = listener.join().expect("the host can be entered");
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // The client's test handles a client that disconnects.
                thread::spawn(move || answer(stream).ok());
            }
        });
        let address = cluster.host(cluster.etcd_host()).address;
        cluster.kubectl_direct(1).apply(&format!(
            "apiVersion: v1\nkind: Node\nmetadata: {{name: {NAME}}}\n\
             status: {{addresses: [{{type: InternalIP, address: {address}}}]}}\n"
        ));
        Self
    }

    /// Makes curl on a host fetch `bytes` through `server`; returns the checksum.
    pub fn fetch(&self, cluster: &Cluster, at: usize, server: &str, bytes: u64) -> String {
        let url = format!("{server}/api/v1/nodes/http:{NAME}:{PORT}/proxy/{bytes}");
        let script = format!(
            "set -o pipefail; curl -sSfk --noproxy '*' -H 'Authorization: Bearer {ADMIN_TOKEN}' \
             '{url}' | sha256sum"
        );
        let output = cluster.host(at).command("bash").args(["-c", &script]).output();
        let output = output.expect("bash can be run");
        let problem = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "the download fails: {problem}");
        String::from_utf8_lossy(&output.stdout).split(' ').next().unwrap_or_default().to_owned()
    }

    /// The checksum of that many bytes as the server sends them.
    pub fn sum(bytes: u64) -> String {
        let mut sum = Sha256::new();
        blocks(bytes, |block| {
            sum.update(block);
            Ok(())
        })
        .expect("hashing does not fail");
        let sum = sum.finalize();
        sum.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// The bytes, block by block: each begins with its number, so that a lost, duplicated or moved one
/// changes the sum.
fn blocks(bytes: u64, mut each: impl FnMut(&[u8]) -> std::io::Result<()>) -> std::io::Result<()> {
    let mut block: Vec<u8> = (0..BLOCK_BYTES).map(|at| (at.wrapping_mul(31) >> 3) as u8).collect();
    let mut left = bytes;
    for number in 0_u64.. {
        if left == 0 {
            break;
        }
        block[..8].copy_from_slice(&number.to_be_bytes());
        let length = left.min(BLOCK_BYTES as u64);
        each(&block[..usize::try_from(length).expect("at most a block")])?;
        left -= length;
    }
    Ok(())
}

/// Answers a request whose path is the number of bytes.
fn answer(stream: TcpStream) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let request = lines.next().unwrap_or_else(|| Ok(String::new()))?;
    for line in lines {
        if line?.is_empty() {
            break;
        }
    }
    let path = request.split(' ').nth(1).unwrap_or_default();
    let bytes = path.trim_start_matches('/').parse().unwrap_or(0);
    let mut stream = stream;
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n\
         Content-Length: {bytes}\r\nConnection: close\r\n\r\n"
    )?;
    blocks(bytes, |block| stream.write_all(block))
}
