//! The protocol between clients and server of the benchmark, and the server.
//!
//! A connection's first byte selects its purpose:
//!
//! * `u`: the client sends until it ends its side; the server answers with the count, eight bytes,
//!   big endian;
//! * `d`: the server sends until the client goes away;
//! * `e`: everything is echoed as it arrives.
//!
//! Before it there may be the header of a TLS handshake record, as clients of an apiserver begin
//! with one: a balancer may look at it, the server skips it.
//!
//! Plain bytes without any other framing, so that only the path between is measured.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

/// The unit of writing and reading of bulk streams, large enough to make the ends cheap.
pub(crate) const BLOCK_BYTES: usize = 256 * 1024;
/// The stack of a server thread: there are ten thousand when sessions idle.
const STACK_BYTES: usize = 128 * 1024;

/// The first bytes of a TLS client: a handshake record of version 3.1 with two bytes (RFC 8446,
/// section 5.1).
pub(crate) const TLS_RECORD: [u8; 5] = [22, 3, 1, 0, 2];

/// The purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Upload,
    Download,
    Echo,
}

impl Purpose {
    pub(crate) fn byte(self) -> u8 {
        match self {
            Self::Upload => b'u',
            Self::Download => b'd',
            Self::Echo => b'e',
        }
    }

    fn of(byte: u8) -> Option<Self> {
        [Self::Upload, Self::Download, Self::Echo].into_iter().find(|it| it.byte() == byte)
    }
}

/// Serves until the process is ended.
pub(crate) fn serve(address: SocketAddr) -> io::Result<()> {
    let listener = TcpListener::bind(address)?;
    for stream in listener.incoming().flatten() {
        let thread = thread::Builder::new().stack_size(STACK_BYTES);
        // The client itself counts the case that it goes away or gets no thread.
        let _ = thread.spawn(move || answer(stream));
    }
    Ok(())
}

fn answer(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut first = [0];
    stream.read_exact(&mut first)?;
    if first[0] == TLS_RECORD[0] {
        stream.read_exact(&mut [0; TLS_RECORD.len() - 1])?;
        stream.read_exact(&mut first)?;
    }
    match Purpose::of(first[0]) {
        Some(Purpose::Upload) => {
            let mut block = vec![0; BLOCK_BYTES];
            let mut count = 0_u64;
            loop {
                match stream.read(&mut block)? {
                    0 => break,
                    read => count += read as u64,
                }
            }
            stream.write_all(&count.to_be_bytes())
        }
        Some(Purpose::Download) => {
            let block = vec![0x5a; BLOCK_BYTES];
            loop {
                stream.write_all(&block)?;
            }
        }
        Some(Purpose::Echo) => {
            // On the stack, because most of these connections only wait.
            let mut block = [0; 2048];
            loop {
                match stream.read(&mut block)? {
                    0 => return Ok(()),
                    read => stream.write_all(&block[..read])?,
                }
            }
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_purpose_has_its_own_byte() {
        for purpose in [Purpose::Upload, Purpose::Download, Purpose::Echo] {
            assert_eq!(Purpose::of(purpose.byte()), Some(purpose));
        }
        for byte in [b'x', TLS_RECORD[0]] {
            assert_eq!(Purpose::of(byte), None);
        }
    }
}
