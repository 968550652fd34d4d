use std::net::TcpListener as Plain;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

/// Binds as another unprivileged user can: with each option that lets sockets share an address.
fn take(address: SocketAddr, reuse_address: bool, reuse_port: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(reuse_address)?;
    socket.set_reuse_port(reuse_port)?;
    socket.bind(&address.into())?;
    socket.listen(1)?;
    Ok(socket)
}

/// An address for IPv4 and one for IPv6, where this machine has both.
fn loopbacks() -> Vec<SocketAddr> {
    let all = ["127.0.0.1:0", "[::1]:0"].map(|text| text.parse().expect("an address"));
    all.into_iter().filter(|address: &SocketAddr| Plain::bind(address).is_ok()).collect()
}

fn everywhere(address: SocketAddr) -> Vec<SocketAddr> {
    let wild = match address {
        SocketAddr::V4(_) => vec!["0.0.0.0", "::"],
        SocketAddr::V6(_) => vec!["::"],
    };
    let wild = wild.into_iter().map(|ip| ip.parse().expect("an address"));
    wild.map(|ip| SocketAddr::new(ip, address.port())).chain([address]).collect()
}

/// Runs `work` as an unprivileged user, if this one may become it.
fn as_another_user<T: Send>(work: impl FnOnce(bool) -> T + Send) -> T {
    let another = rustix::process::Uid::from_raw(65_533);
    std::thread::scope(|scope| {
        // The user of a thread, not of the process.
        let worker = scope.spawn(|| work(rustix::thread::set_thread_uid(another).is_ok()));
        worker.join().expect("no panic")
    })
}

#[track_caller]
fn nobody_can_take(address: SocketAddr) {
    let errors = as_another_user(|is_another| {
        let ways = [(false, false), (true, false), (false, true), (true, true)];
        // Sockets of one user may share the port.
        let ways = ways.into_iter().filter(move |(_, reuse_port)| is_another || !reuse_port);
        let tries = |(reuse_address, reuse_port)| {
            let all = everywhere(address).into_iter();
            all.map(move |at| take(at, reuse_address, reuse_port).map(drop))
        };
        ways.flat_map(tries).collect::<Vec<_>>()
    });
    for error in errors {
        let error = error.expect_err("the address is taken by another process");
        let plain = error.raw_os_error() == Some(libc::EAFNOSUPPORT);
        assert!(plain || error.kind() == io::ErrorKind::AddrInUse, "{address}: {error}");
    }
}

/// As an attacker that waits for the moment in which the address changes hands.
#[tokio::test]
async fn nobody_gets_an_address_in_the_moment_in_which_it_opens() {
    let mut listener =
        Host::Kernel.listen("127.0.0.1:0".parse().expect("good")).expect("a free port");
    let address = listener.local_addr().expect("bound");
    let kept = connected(&listener, address).await;
    let over = AtomicBool::new(false);
    let taken = std::thread::scope(|scope| {
        let spins = scope.spawn(|| {
            let tries = std::iter::repeat_with(|| take(address, true, false));
            let mut tries = tries.take_while(|_| !over.load(Ordering::Relaxed));
            tries.find_map(Result::ok).is_some()
        });
        for _ in 0..2_000 {
            let closed = listener.close().expect("it lets go");
            listener = closed.open().expect("it is ours");
        }
        over.store(true, Ordering::Relaxed);
        spins.join().expect("no panic")
    });
    assert!(!taken, "another socket got the address");
    drop(kept);
}

async fn connected(listener: &Listener, address: SocketAddr) -> (TcpStream, Tcp) {
    let client = TcpStream::connect(address).await.expect("it is open");
    (client, listener.accept().await.expect("it accepts"))
}

#[tokio::test]
async fn a_closed_address_refuses_clients_and_nobody_else_gets_it() {
    for address in loopbacks() {
        let mut listener = Host::Kernel.listen(address).expect("a free port");
        let address = listener.local_addr().expect("bound");
        // An open session, and one that this side ended: both keep the port in use.
        let (mut client, mut kept) = connected(&listener, address).await;
        let (ended, ending) = connected(&listener, address).await;
        drop(ending);
        drop(ended);
        for _ in 0..2 {
            let closed = listener.close().expect("it lets go");
            let refused = TcpStream::connect(address).await.expect_err("closed");
            assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
            nobody_can_take(address);
            listener = closed.open().expect("it is ours");
            connected(&listener, address).await;
            nobody_can_take(address);
        }
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        kept.write_all(b"x").await.expect("it is still open");
        assert_eq!(client.read_u8().await.expect("it is still open"), b'x');
        // Connections accepted after it was closed do not prevent the next start either.
        let (late, served) = connected(&listener, address).await;
        drop(served);
        drop((late, listener, client, kept));
        drop(Host::Kernel.listen(address).expect("free again"));
    }
}

#[tokio::test]
async fn an_address_that_was_lost_all_the_same_comes_back() {
    let listener = Host::Kernel.listen("127.0.0.1:0".parse().expect("good")).expect("free");
    let address = listener.local_addr().expect("bound");
    let closed = listener.close().expect("it lets go");
    let Closed(Reserved::Kernel { socket, .. }) = &closed else { panic!("{closed:?}") };
    socket.set_reuse_address(true).expect("as in the moment of opening");
    let thief = take(address, true, false).expect("it shares");
    let error = closed.open().expect_err("somebody else listens there");
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    drop(thief);
    let listener = closed.open().expect("it is ours again");
    connected(&listener, address).await;
}

#[tokio::test]
async fn a_unix_socket_in_memory_is_found_by_its_path_until_its_listener_is_gone() {
    let host = Host::Memory(memory::Host::default());
    let path = Path::new("/run/meshport/egress.sock");
    let at = SocketPath { path, mode: 0o600, setting: "egress.socket" };
    let listener = host.listen_unix(at).await.expect("nobody has it");
    host.listen_unix(at).await.expect_err("it is taken");
    let client = host.connect_unix(path).await.expect("it is open");
    let served = listener.accept().await.expect("it accepts");
    assert_eq!(served.peer_user(), Some(0));
    assert!(!served.is_gone());
    drop(client);
    assert!(served.is_gone());
    drop(listener);
    let error = host.connect_unix(path).await.expect_err("nobody listens");
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
}

#[test]
fn a_machine_has_the_addresses_that_can_be_bound() {
    let here = "127.0.0.1".parse().expect("an address");
    // A documentation address (RFC 5737), which no machine has.
    let elsewhere = "192.0.2.1".parse().expect("an address");
    for host in [Host::Kernel, Host::Memory(memory::Host::default())] {
        assert!(host.has(here) && !host.has(elsewhere), "{host:?}");
    }
}
