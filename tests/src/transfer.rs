//! A plain TCP service that moves large amounts of known bytes in either direction, with a
//! checksum.
//!
//! A request is one byte (`u` for upload, `d` for download) and the length as eight bytes, big
//! endian. After the bytes of an upload, and after those of a download, the server sends their
//! SHA-256, and the client compares it with its own. The bytes are a fixed pseudo-random block that
//! begins with the block's number, so that a lost, duplicated or moved block changes the sum.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::wait;

/// The unit of writing and of numbering.
const BLOCK_BYTES: usize = 64 * 1024;
/// A transfer without progress for this long has failed.
const STALL_LIMIT: Duration = Duration::from_secs(30);

/// The direction of the bytes, seen from the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Client to service.
    Up,
    /// Service to client.
    Down,
}

/// A finished transfer.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    /// Its direction.
    pub way: Direction,
    /// Payload bytes.
    pub bytes: u64,
    /// Time from connect to the verified checksum.
    pub took: Duration,
}

impl Transfer {
    /// Payload bytes per second.
    pub fn rate(&self) -> f64 {
        self.bytes as f64 / self.took.as_secs_f64()
    }
}

/// Starts the service on a free loopback port; it serves until the process ends.
pub fn serve() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let address = listener.local_addr().expect("a bound socket has an address");
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // The client's test handles a client that disconnects.
            thread::spawn(move || answer(stream).ok());
        }
    });
    address
}

fn answer(mut stream: TcpStream) -> io::Result<()> {
    let mut request = [0; 9];
    stream.read_exact(&mut request)?;
    let bytes = u64::from_be_bytes(request[1..].try_into().expect("eight bytes"));
    let sum = match request[0] {
        b'u' => receive(&mut stream, bytes)?,
        _ => send(&mut stream, bytes)?,
    };
    stream.write_all(&sum)?;
    stream.shutdown(Shutdown::Write)
}

/// Moves `bytes` through `address` and compares the checksums.
///
/// # Errors
/// The connection broke, stalled, or the checksums differ.
pub fn transfer(address: SocketAddr, way: Direction, bytes: u64) -> io::Result<Transfer> {
    let begun = wait::now();
    let mut open = Open::ask(address, way, bytes)?;
    let own = match way {
        Direction::Up => send(&mut open.stream, bytes)?,
        Direction::Down => receive(&mut open.stream, bytes)?,
    };
    open.compare(own)?;
    Ok(Transfer { way, bytes, took: begun.elapsed() })
}

/// A connection on which bytes were requested but not yet read.
#[derive(Debug)]
pub struct Open {
    stream: TcpStream,
    bytes: u64,
}

impl Open {
    /// Connects and requests a download of `bytes`.
    pub fn download(address: SocketAddr, bytes: u64) -> io::Result<Self> {
        Self::ask(address, Direction::Down, bytes)
    }

    /// Reads the requested bytes and compares the checksums.
    ///
    /// # Errors
    /// The connection broke, stalled, or the checksums differ.
    pub fn read(mut self) -> io::Result<()> {
        let own = receive(&mut self.stream, self.bytes)?;
        self.compare(own)
    }

    fn ask(address: SocketAddr, way: Direction, bytes: u64) -> io::Result<Self> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(STALL_LIMIT))?;
        stream.set_write_timeout(Some(STALL_LIMIT))?;
        stream.write_all(&request(way, bytes))?;
        Ok(Self { stream, bytes })
    }

    fn compare(&mut self, own: [u8; 32]) -> io::Result<()> {
        let mut theirs = [0; 32];
        self.stream.read_exact(&mut theirs)?;
        if own == theirs { Ok(()) } else { Err(io::Error::other("the checksums differ")) }
    }
}

fn request(way: Direction, bytes: u64) -> Vec<u8> {
    let kind = if way == Direction::Up { b'u' } else { b'd' };
    [kind].into_iter().chain(bytes.to_be_bytes()).collect()
}

fn send(stream: &mut TcpStream, bytes: u64) -> io::Result<[u8; 32]> {
    let mut block = noise();
    let mut sum = Sha256::new();
    let mut left = bytes;
    for number in 0_u64.. {
        if left == 0 {
            break;
        }
        block[..8].copy_from_slice(&number.to_be_bytes());
        let part = &block[..usize::try_from(left).unwrap_or(usize::MAX).min(BLOCK_BYTES)];
        sum.update(part);
        stream.write_all(part)?;
        left -= part.len() as u64;
    }
    Ok(sum.finalize().into())
}

fn receive(stream: &mut TcpStream, bytes: u64) -> io::Result<[u8; 32]> {
    let mut buffer = vec![0; BLOCK_BYTES];
    let mut sum = Sha256::new();
    let mut left = bytes;
    while left > 0 {
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(BLOCK_BYTES);
        let length = stream.read(&mut buffer[..most])?;
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        sum.update(&buffer[..length]);
        left -= length as u64;
    }
    Ok(sum.finalize().into())
}

/// A block of bytes that does not compress, the same each time (xorshift64, Marsaglia 2003).
fn noise() -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut block = Vec::with_capacity(BLOCK_BYTES);
    while block.len() < BLOCK_BYTES {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        block.extend_from_slice(&state.to_be_bytes());
    }
    block
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_go_both_ways_and_sums_agree() {
        let service = serve();
        Open::download(service, 70_000).and_then(Open::read).expect("loopback carries it");
        for (way, bytes) in
            [(Direction::Up, 1_000_003), (Direction::Down, 200_001), (Direction::Down, 0)]
        {
            let done = transfer(service, way, bytes).expect("loopback carries it");
            assert_eq!((done.way, done.bytes), (way, bytes));
        }
    }

    #[test]
    fn a_changed_byte_is_noticed() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = listener.local_addr().expect("a bound socket has an address");
        let liar = thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("the client comes");
            let mut taken = [0; 9 + 100];
            stream.read_exact(&mut taken).expect("the client sends");
            stream.write_all(&[0; 32]).expect("the client listens");
        });
        let told = transfer(address, Direction::Up, 100).expect_err("the sum is wrong");
        assert!(told.to_string().contains("checksums differ"));
        liar.join().expect("the liar ends");
    }
}
