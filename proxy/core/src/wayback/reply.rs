//! Answers of the socket to a request.

use super::call::Want;
use super::refusal::Refusal;

/// A refusal as a sentence, which `kubectl logs` prints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The reason under which it is counted.
    pub why: Refusal,
    /// The sentence, of printable characters.
    pub said: String,
}

impl Refused {
    /// The answer of a node, or of a path to it. `who` is the node, `want` the target that it was
    /// asked to dial.
    pub fn by_node(why: Refusal, who: &str, want: &Want) -> Self {
        let what = match want {
            Want::Kubelet(port) => format!("its kubelet on port {port}"),
            Want::Pod(address) => format!("the pod at {address}"),
            Want::Service(address) => format!("the service at {address}"),
        };
        let rule = match why {
            Refusal::NoPath => return Self::new(why, format!("no path to {who}")),
            Refusal::Silent => return Self::new(why, format!("{who} does not answer")),
            Refusal::Connection => "the connection is refused there",
            Refusal::Timeout => "it does not answer there",
            Refusal::Failed => "it cannot be dialled there",
            Refusal::Overloaded => "that node has no capacity for more streams",
            Refusal::Leaving => "that node is stopping",
            Refusal::Older => {
                "that node runs an earlier version of meshport, which has no way \
                               back"
            }
            Refusal::NotOrigin => "this node lacks the role origin:kube-apiserver",
            Refusal::NotRelay => "the relay lacks the role relay",
            Refusal::OtherNode => "it is another node",
            Refusal::NoKubelet => "its credential does not allow the way back",
            Refusal::Off => "kubelet.serve is false there",
            Refusal::Port => "that is not the port of its kubelet (kubelet.port there)",
            Refusal::Pod => "that is not in its pod networks (kubelet.pod-cidrs there)",
            Refusal::OwnAddress => "that is an address of the machine itself",
            Refusal::Service => "that is not in a service network (egress.service-cidrs there)",
            Refusal::NotEgress => "it lacks the role egress",
            _ => "it gave no reason",
        };
        Self::new(why, format!("{who} does not reach {what}: {rule}"))
    }
}

/// The longest sentence of a status line, in bytes.
const MAX_SAID_BYTES: usize = 400;

impl Refused {
    /// A refusal with this sentence.
    pub fn new(why: Refusal, said: impl Into<String>) -> Self {
        Self { why, said: said.into() }
    }

    /// The whole answer. Nothing in the sentence can end the line or the answer early.
    pub fn answer(&self) -> Vec<u8> {
        let plain = |c: char| if c.is_ascii_graphic() || c == ' ' { c } else { '?' };
        let said: String = self.said.chars().take(MAX_SAID_BYTES).map(plain).collect();
        let status = self.why.status();
        let allow = if self.why == Refusal::Method { "Allow: CONNECT\r\n" } else { "" };
        format!("HTTP/1.1 {status} {said}\r\n{allow}Content-Length: 0\r\nConnection: close\r\n\r\n")
            .into_bytes()
    }
}

/// The answer when the target is connected, and all of it.
pub const CONNECTED: &[u8] = b"HTTP/1.1 200 OK\r\n\r\n";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_stays_in_its_line() {
        let refused = Refused::new(Refusal::Down, "a\r\nX: b\r\n\r\nÄ has been down for 40 s");
        let answer = String::from_utf8(refused.answer()).expect("ASCII");
        assert!(
            answer.starts_with("HTTP/1.1 503 a??X: b????? has been down for 40 s\r\n"),
            "{answer}"
        );
        assert_eq!(answer.matches("\r\n\r\n").count(), 1);
        assert!(answer.ends_with("\r\n\r\n"));
        let long = Refused::new(Refusal::Down, "x".repeat(5_000)).answer();
        assert!(long.len() < 600);
    }
}
