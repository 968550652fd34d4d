//! The head of a request on the socket: `CONNECT host:port HTTP/1.1`, header lines, an empty line.
//!
//! One request per connection. Nothing may follow it before its answer, and header lines are
//! ignored. Reading is incremental, bounded by [`MAX_HEAD_BYTES`], and total: any bytes give a
//! target, "more needed", or a refusal.

use meshport_config::Endpoint;

use super::refusal::Refusal;
use super::reply::Refused;

/// The longest head in bytes. An apiserver's is below 600.
pub const MAX_HEAD_BYTES: usize = 8 * 1024;
/// The end of a head.
const END: &[u8] = b"\r\n\r\n";
/// The longest accepted method, in bytes.
const MAX_METHOD_BYTES: usize = 16;

/// Reads the head; `Ok(None)` means that more bytes are needed.
///
/// # Errors
/// [`Refused`] if no continuation of these bytes can be a valid request.
pub fn read(bytes: &[u8]) -> Result<Option<Endpoint>, Refused> {
    method(bytes)?;
    let within = &bytes[..bytes.len().min(MAX_HEAD_BYTES)];
    let Some(end) = within.windows(END.len()).position(|window| window == END) else {
        if bytes.len() >= MAX_HEAD_BYTES {
            let said = format!("the request has more than {MAX_HEAD_BYTES} bytes");
            return Err(Refused::new(Refusal::TooLong, said));
        }
        return Ok(None);
    };
    if bytes.len() > end + END.len() {
        return Err(malformed("unexpected data after the request"));
    }
    let text = std::str::from_utf8(&bytes[..end]).map_err(|_| malformed("it is not ASCII"))?;
    let mut lines = text.split("\r\n");
    let first = lines.next().unwrap_or_default();
    let mut words = first.split(' ');
    let (_connect, target, version) = (words.next(), words.next(), words.next());
    if !matches!(version, Some("HTTP/1.1" | "HTTP/1.0")) || words.next().is_some() {
        return Err(malformed("its first line is not CONNECT HOST:PORT HTTP/1.1"));
    }
    if !lines.all(is_header) {
        return Err(malformed("one of its lines is not NAME: VALUE"));
    }
    let target = target.unwrap_or_default();
    target.parse().map(Some).map_err(|_| malformed("its target is not HOST:PORT"))
}

/// Whether the first word can be CONNECT.
fn method(bytes: &[u8]) -> Result<(), Refused> {
    const CONNECT: &[u8] = b"CONNECT ";
    let end = bytes.iter().position(|byte| *byte == b' ');
    let word = &bytes[..end.unwrap_or(bytes.len()).min(MAX_METHOD_BYTES + 1)];
    if bytes.starts_with(CONNECT) || CONNECT.starts_with(bytes) {
        return Ok(());
    }
    if word.is_empty() || !word.iter().all(u8::is_ascii_alphabetic) {
        return Err(malformed("it does not begin with a method of HTTP"));
    }
    if end.is_none() && word.len() <= MAX_METHOD_BYTES {
        return Ok(());
    }
    Err(Refused::new(Refusal::Method, "only CONNECT is served here"))
}

fn is_header(line: &str) -> bool {
    let is_token = |c: u8| c.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&c);
    let is_value = |c: u8| c == b'\t' || (0x20..0x7f).contains(&c);
    line.split_once(':').is_some_and(|(name, value)| {
        !name.is_empty() && name.bytes().all(is_token) && value.bytes().all(is_value)
    })
}

fn malformed(why: &str) -> Refused {
    Refused::new(Refusal::Malformed, format!("not a valid CONNECT request: {why}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HEAD: &str = "CONNECT 10.0.0.7:10250 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";

    fn refusal(bytes: &[u8]) -> Refusal {
        read(bytes).expect_err("it is refused").why
    }

    #[test]
    fn a_request_is_read_in_pieces() {
        for cut in 0..HEAD.len() {
            assert_eq!(read(&HEAD.as_bytes()[..cut]), Ok(None), "cut at {cut}");
        }
        for (target, read_as) in [
            ("10.0.0.7:10250", "10.0.0.7:10250"),
            ("[2001:db8::7]:10250", "[2001:db8::7]:10250"),
            ("Worker-7.example.com:10250", "worker-7.example.com:10250"),
        ] {
            let head = format!("CONNECT {target} HTTP/1.1\r\nUser-Agent: \r\n\r\n");
            let found = read(head.as_bytes()).expect("good").expect("whole");
            assert_eq!(found.to_string(), read_as);
        }
    }

    #[test]
    fn other_methods_and_invalid_requests_are_distinguished() {
        assert_eq!(refusal(b"GET / HTTP/1.1\r\n"), Refusal::Method);
        assert_eq!(refusal(b"get "), Refusal::Method);
        assert_eq!(refusal(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"), Refusal::Method);
        assert_eq!(read(b"GE"), Ok(None));
        for head in [
            "\x16\x03\x01",
            " CONNECT",
            "CONNECT 10.0.0.7 HTTP/1.1\r\n\r\n",
            "CONNECT 10.0.0.7:0 HTTP/1.1\r\n\r\n",
            "CONNECT 10.0.0.7:99999 HTTP/1.1\r\n\r\n",
            "CONNECT [fe80::1%eth0]:10250 HTTP/1.1\r\n\r\n",
            "CONNECT a:1 HTTP/2\r\n\r\n",
            "CONNECT a:1 HTTP/1.1 x\r\n\r\n",
            "CONNECT  a:1 HTTP/1.1\r\n\r\n",
            "CONNECT a:1 HTTP/1.1\r\nno header\r\n\r\n",
            "CONNECT a:1 HTTP/1.1\r\nA\x01: b\r\n\r\n",
            "CONNECT a:1 HTTP/1.1\r\nA: b\nC: d\r\n\r\n",
            "CONNECT a:1 HTTP/1.1\r\n\r\n\x16\x03",
            "CONNECT http://a:1/ HTTP/1.1\r\n\r\n",
        ] {
            assert_eq!(refusal(head.as_bytes()), Refusal::Malformed, "{head:?}");
        }
    }

    #[test]
    fn a_head_is_bounded() {
        let fill = |length: usize| {
            let mut head = b"CONNECT a:1 HTTP/1.1\r\nX: ".to_vec();
            head.resize(length, b'x');
            head
        };
        assert_eq!(read(&fill(MAX_HEAD_BYTES - 1)), Ok(None));
        assert_eq!(refusal(&fill(MAX_HEAD_BYTES)), Refusal::TooLong);
        assert_eq!(refusal(&fill(1 << 20)), Refusal::TooLong);
        // Complete, but too long.
        let mut late = fill(MAX_HEAD_BYTES);
        late.extend_from_slice(END);
        assert_eq!(refusal(&late), Refusal::TooLong);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_value(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = read(&bytes);
            let _ = read(&[b"CONNECT ", &bytes[..]].concat());
            let _ = read(&[b"CONNECT ", &bytes[..], END].concat());
        }
    }
}
