//! A stand-in kubelet, and the apiserver's side of the way-back socket.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// The port of every kubelet.
pub const PORT: u16 = 10_250;
/// How long a request may take: its answer comes within 5 s, on a busy machine a little later.
const LIMIT: Duration = Duration::from_secs(10);
/// Bytes that `pour` has sent in this process, which runs only one test.
static POURED: AtomicU64 = AtomicU64::new(0);
/// Connections that the kubelets of this process have open.
static OPEN: AtomicU64 = AtomicU64::new(0);

/// Starts a stand-in kubelet. The first line of a connection is a command: `whoami` returns its
/// name, `echo` returns everything after it, `pour` sends until the connection closes. It runs as
/// long as the process.
pub fn start(name: &str) -> IpAddr {
    let (listener, address) = listen();
    accept(listener, name);
    address
}

/// Starts the same server at this address, as a pod, a service or a webhook.
pub fn serve_at(address: SocketAddr, name: &str) -> SocketAddr {
    let listener = TcpListener::bind(address).expect("the address is free");
    let address = listener.local_addr().expect("bound");
    accept(listener, name);
    address
}

fn accept(listener: TcpListener, name: &str) {
    let name = name.to_owned();
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let name = name.clone();
            OPEN.fetch_add(1, Ordering::Relaxed);
            thread::spawn(move || {
                // A kubelet ignores clients that disconnect.
                let _ = serve(&client, &name);
                drop(client);
                OPEN.fetch_sub(1, Ordering::Relaxed);
            });
        }
    });
}

/// Bytes that kubelets have sent on streams with `pour`.
pub fn poured() -> u64 {
    POURED.load(Ordering::Relaxed)
}

/// Connections to kubelets that neither side has ended.
pub fn open() -> u64 {
    OPEN.load(Ordering::Relaxed)
}

/// Binds a separate address, so that each can use the port.
fn listen() -> (TcpListener, IpAddr) {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let process = std::process::id().to_be_bytes();
    loop {
        let host = NEXT.fetch_add(1, Ordering::Relaxed);
        let address = IpAddr::from([127, 128 | (process[2] & 0x3f), process[3], host]);
        if let Ok(listener) = TcpListener::bind((address, PORT)) {
            return (listener, address);
        }
    }
}

fn serve(client: &TcpStream, name: &str) -> io::Result<()> {
    let mut reader = BufReader::new(client);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let mut writer = client;
    match line.trim_end() {
        "whoami" => writeln!(writer, "{name}"),
        "echo" => {
            io::copy(&mut reader, &mut writer)?;
            client.shutdown(Shutdown::Write)
        }
        "pour" => loop {
            let bytes = [7; 16 * 1024];
            writer.write_all(&bytes)?;
            POURED.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        },
        _ => Ok(()),
    }
}

/// A connection through the socket, as an apiserver makes it.
///
/// # Errors
/// The status line if it is refused.
pub fn connect(socket: &Path, target: &str) -> Result<UnixStream, String> {
    let head = format!("CONNECT {target} HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: test\r\n\r\n");
    let (stream, status) = ask(socket, head.as_bytes()).map_err(|error| error.to_string())?;
    if status == "HTTP/1.1 200 OK" { Ok(stream) } else { Err(status) }
}

/// Sends these bytes; returns the status line, and the connection after the empty line.
///
/// # Errors
/// If the socket does not answer within 10 s.
pub fn ask(socket: &Path, bytes: &[u8]) -> io::Result<(UnixStream, String)> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(LIMIT))?;
    // A request that is too long is refused while it is being written.
    let _ = stream.write_all(bytes);
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head);
    let status = head.lines().next().unwrap_or_default().to_owned();
    Ok((stream, status))
}

/// The name of the kubelet that answers at a target.
///
/// # Errors
/// As [`connect`], or a later error.
pub fn whoami(socket: &Path, target: &str) -> Result<String, String> {
    let mut stream = connect(socket, target)?;
    stream.write_all(b"whoami\n").map_err(|error| error.to_string())?;
    let mut name = String::new();
    stream.read_to_string(&mut name).map_err(|error| error.to_string())?;
    Ok(name.trim_end().to_owned())
}

/// The settings that name a node's kubelet.
pub fn settings(kubelet: IpAddr) -> String {
    format!("\n[kubelet]\naddresses = [\"{kubelet}\"]\n")
}

/// The target with a node's name.
pub fn of(name: &str) -> String {
    format!("{name}:{PORT}")
}
