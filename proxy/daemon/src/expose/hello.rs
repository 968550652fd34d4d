//! Reads the server name from a client's TLS ClientHello. TLS itself passes through.

use rustls::server::Acceptor;

/// The first byte of a TLS handshake record and of the version behind it (RFC 8446, section 5.1).
const TLS: [u8; 2] = [22, 3];
/// The alert for an unknown server name: fatal, `unrecognized_name` (RFC 6066, section 3), in a
/// separate record.
pub(super) const UNRECOGNIZED_NAME: [u8; 7] = [21, 3, 3, 0, 2, 2, 112];

/// The meaning of the first bytes of a connection.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Hello {
    /// An incomplete ClientHello.
    Partial,
    /// A complete one, with its server name.
    Whole(Option<String>),
    /// Not TLS.
    Plain,
    /// Invalid TLS, and the alert for it.
    Unreadable(Vec<u8>),
}

/// Reads one ClientHello incrementally.
#[derive(Default)]
pub(crate) struct HelloReader {
    acceptor: Acceptor,
    /// The first bytes received, at most as many as [`TLS`] has.
    begun: Vec<u8>,
}

impl HelloReader {
    /// Handles the next bytes. Any result but [`Hello::Partial`] is final.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Hello {
        let missing = TLS.len() - self.begun.len();
        self.begun.extend(bytes.iter().take(missing));
        if !TLS.starts_with(&self.begun) {
            return Hello::Plain;
        }
        let mut rest = bytes;
        loop {
            // It takes a few kilobytes at a time.
            let taken = self.acceptor.read_tls(&mut rest);
            match self.acceptor.accept() {
                Ok(Some(accepted)) => {
                    return Hello::Whole(accepted.client_hello().server_name().map(str::to_owned));
                }
                Ok(None) => {}
                Err((_, mut alert)) => {
                    let mut bytes = Vec::new();
                    // Writes to memory do not fail.
                    let _ = alert.write_all(&mut bytes);
                    return Hello::Unreadable(bytes);
                }
            }
            match taken {
                Ok(_) if rest.is_empty() => return Hello::Partial,
                Ok(1..) => {}
                // Its buffer is full, but the ClientHello is incomplete.
                Ok(0) | Err(_) => return Hello::Unreadable(Vec::new()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustls::{ClientConnection, RootCertStore};

    use super::*;

    /// The first bytes of a client.
    fn hello(name: &str) -> Vec<u8> {
        let config = crate::http::tls_client()
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        let name = name.to_owned().try_into().expect("a name");
        let mut client = ClientConnection::new(Arc::new(config), name).expect("a client");
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).expect("it is memory");
        bytes
    }

    fn read(pieces: &[&[u8]]) -> Hello {
        let mut reader = HelloReader::default();
        let mut last = Hello::Partial;
        for piece in pieces {
            assert_eq!(last, Hello::Partial);
            last = reader.feed(piece);
        }
        last
    }

    #[test]
    fn the_name_is_read_however_the_bytes_come() {
        let bytes = hello("API.prod.example.com");
        let expected = Hello::Whole(Some("api.prod.example.com".to_owned()));
        assert_eq!(read(&[&bytes]), expected);
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(read(&single), expected);
        for end in 0..bytes.len() {
            assert_eq!(read(&[&bytes[..end]]), Hello::Partial, "{end} of {}", bytes.len());
        }
        // An IP address is not sent as a name.
        assert_eq!(read(&[&hello("192.0.2.1")]), Hello::Whole(None));
        let with_more = [&bytes[..], &[23, 3, 3, 0, 1, 9]].concat();
        assert_eq!(read(&[&with_more]), expected);
    }

    #[test]
    fn bytes_that_are_not_a_hello_are_recognised_at_once() {
        assert_eq!(read(&[b"GET / HTTP/1.1\r\n"]), Hello::Plain);
        assert_eq!(read(&[&[22], &[4]]), Hello::Plain);
        assert_eq!(read(&[b""]), Hello::Partial);
        let Hello::Unreadable(_) = read(&[&[22, 3, 1, 0, 4, 2, 0, 0, 0]]) else {
            panic!("no client sends a server's hello")
        };
        let endless = [&[22, 3, 1, 0x40, 0, 1, 0, 0xff, 0xff][..], &vec![0; 70_000]].concat();
        assert!(matches!(read(&[&endless]), Hello::Unreadable(_)));
    }
}
