//! curl as the Kubernetes client of the tests: a real HTTP/2 and TLS stack that is not ours.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Text that curl appends after the body, starting with a separator.
const WRITE_OUT: &str = "\n<<curl>>\n%{http_code} %{http_version} %{time_total}\n%{certs}";
const SEPARATOR: &str = "\n<<curl>>\n";

/// An answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// `2` for HTTP/2.
    pub version: String,
    /// Time from start to the last byte.
    pub took: Duration,
    /// The body.
    pub body: String,
    /// The server's certificate chain as curl prints it: subjects and PEM.
    pub certificates: String,
}

impl Answer {
    /// The subject of the server's own certificate.
    pub fn subject(&self) -> &str {
        let mut lines = self.certificates.lines();
        lines.find_map(|line| line.strip_prefix("Subject:")).unwrap_or_default().trim()
    }
}

/// How to reach an apiserver.
#[derive(Clone, Debug)]
pub struct Curl {
    authority: PathBuf,
    limit: Duration,
    source: Option<IpAddr>,
    name: Option<String>,
}

impl Curl {
    /// Trusts only `authority` (a PEM file), and times out after `limit`.
    pub fn new(authority: &Path, limit: Duration) -> Self {
        Self { authority: authority.to_path_buf(), limit, source: None, name: None }
    }

    /// Times out after `limit` instead.
    #[must_use]
    pub fn patient(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Connects from this address.
    #[must_use]
    pub fn from(mut self, source: IpAddr) -> Self {
        self.source = Some(source);
        self
    }

    /// Sends a server name other than `localhost`. No certificate carries it, so none is checked.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }

    /// A GET on a fresh connection.
    ///
    /// # Errors
    /// curl's message if no answer arrives: refused, timed out, untrusted certificate.
    pub fn get(&self, local: SocketAddr, path: &str) -> Result<Answer, String> {
        let mut command = self.command();
        command.arg("--write-out").arg(WRITE_OUT).args(self.target(local, path));
        let output = command.output().map_err(|error| format!("cannot run curl: {error}"))?;
        if !output.status.success() {
            let problem = String::from_utf8_lossy(&output.stderr);
            return Err(format!("{}: {}", output.status, problem.trim()));
        }
        let text = String::from_utf8_lossy(&output.stdout);
        parse(&text).ok_or_else(|| format!("curl printed something unexpected: {text}"))
    }

    /// A GET that must be answered with status 200.
    ///
    /// # Errors
    /// As [`Curl::get`], or the status.
    pub fn ask(&self, local: SocketAddr, path: &str) -> io::Result<()> {
        match self.get(local, path).map_err(io::Error::other)?.status {
            200 => Ok(()),
            other => Err(io::Error::other(format!("status {other}"))),
        }
    }

    /// `count` GETs at once, each on its own connection; the HTTP status of each answer.
    ///
    /// # Errors
    /// curl's message if any of them got no answer.
    pub fn get_at_once(
        &self,
        local: SocketAddr,
        path: &str,
        count: usize,
    ) -> Result<Vec<u16>, String> {
        let mut command = self.command();
        command.args(["--http1.1", "--parallel", "--parallel-immediate", "--parallel-max"]);
        command.arg(count.to_string()).args(["--output", "/dev/null"]);
        command.args(["--write-out", "%{http_code}\n"]);
        command.args(self.target(local, &format!("{path}?request=[1-{count}]")));
        let output = command.output().map_err(|error| format!("cannot run curl: {error}"))?;
        if !output.status.success() {
            let problem = String::from_utf8_lossy(&output.stderr);
            return Err(format!("{}: {}", output.status, problem.trim()));
        }
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(text.lines().filter_map(|line| line.parse().ok()).collect())
    }

    fn command(&self) -> Command {
        let mut command = Command::new("curl");
        command.args(["--silent", "--show-error", "--http2", "--noproxy", "*", "--cacert"]);
        command.arg(&self.authority);
        command.arg("--max-time").arg(self.limit.as_secs_f64().to_string());
        if let Some(source) = self.source {
            command.arg("--interface").arg(source.to_string());
        }
        if self.name.is_some() {
            command.arg("--insecure");
        }
        command.stdin(Stdio::null());
        command
    }

    /// The address under the name `localhost`, which every apiserver's certificate carries, unless
    /// another name is set.
    fn target(&self, local: SocketAddr, path: &str) -> [String; 3] {
        let name = self.name.as_deref().unwrap_or("localhost");
        let port = local.port();
        let connect = format!("{name}:{port}:{}:{port}", local.ip());
        ["--connect-to".to_owned(), connect, format!("https://{name}:{port}{path}")]
    }
}

fn parse(text: &str) -> Option<Answer> {
    let (body, appended) = text.rsplit_once(SEPARATOR)?;
    let (figures, certificates) = appended.split_once('\n')?;
    let mut figures = figures.split(' ');
    Some(Answer {
        status: figures.next()?.parse().ok()?,
        version: figures.next()?.to_owned(),
        took: Duration::from_secs_f64(figures.next()?.parse().ok()?),
        body: body.to_owned(),
        certificates: certificates.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read() {
        let text = "{\"a\":1}\n\n<<curl>>\n200 2 0.0125\nSubject:CN = cp-a\nIssuer:CN = ca\n";
        let answer = parse(text).expect("this is what curl prints");
        assert_eq!((answer.status, answer.version.as_str()), (200, "2"));
        assert_eq!((answer.body.as_str(), answer.subject()), ("{\"a\":1}\n", "CN = cp-a"));
        assert!(parse("no marker").is_none());
    }
}
