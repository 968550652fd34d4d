//! `meshport stand-in`: a stand-in apiserver as a separate process, for tests.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use meshport_config::Period;

use super::runtime;
use meshport_daemon::Error;
use meshport_demo::apiserver::{ServeOptions, TlsSource, serve_forever};

/// `meshport stand-in`
#[derive(Debug, Args)]
pub(crate) struct StandInArgs {
    /// Name of the origin, in its certificate and its answers
    #[arg(long)]
    name: String,
    /// Where to listen; port 0 picks a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Folder to create certificates in
    #[arg(long, value_name = "DIR", required_unless_present = "certificate")]
    pki: Option<PathBuf>,
    /// Existing certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "key", conflicts_with = "pki")]
    certificate: Option<PathBuf>,
    /// The certificate's private key (PEM)
    #[arg(long, value_name = "FILE", requires = "certificate")]
    key: Option<PathBuf>,
    /// File to write the port to, once connections are accepted
    #[arg(long, value_name = "FILE")]
    port_file: Option<PathBuf>,
    /// Interval between events of a watch
    #[arg(long, value_name = "TIME", default_value = "1s")]
    watch_interval: Period,
}

pub(crate) fn run(args: &StandInArgs) -> Result<(), Error> {
    let tls = match (&args.pki, &args.certificate, &args.key) {
        (Some(folder), ..) => TlsSource::Folder(folder.clone()),
        (None, Some(certificate), Some(key)) => {
            TlsSource::Files { certificate: certificate.clone(), key: key.clone() }
        }
        _ => return Err(Error::Usage("name --pki, or --certificate and --key".into())),
    };
    let options = ServeOptions {
        listen: args.listen,
        name: args.name.clone(),
        tls,
        watch_interval: Duration::from(args.watch_interval),
    };
    let mut announce = Announce { line: Vec::new(), port_file: args.port_file.clone() };
    runtime()?.block_on(serve_forever(options, &mut announce))
}

/// Writes the announcement to standard output, and its port to the file.
struct Announce {
    line: Vec<u8>,
    port_file: Option<PathBuf>,
}

impl Write for Announce {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.line.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let line = std::mem::take(&mut self.line);
        if let Some(path) = &self.port_file {
            let told: serde_json::Value = serde_json::from_slice(&line)?;
            let address = told["listening"].as_str().and_then(|text| text.parse().ok());
            let address: SocketAddr = address.ok_or(io::ErrorKind::InvalidData)?;
            // Renamed once complete, so that a process that waits for the file reads all of it.
            let hidden = path.with_extension("tmp");
            std::fs::write(&hidden, format!("{}\n", address.port()))?;
            std::fs::rename(&hidden, path)?;
        }
        let mut out = io::stdout().lock();
        out.write_all(&line)?;
        out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_stands_in_the_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("port");
        let mut announce = Announce { line: Vec::new(), port_file: Some(path.clone()) };
        writeln!(announce, "{{\"name\":\"cp-1\",\"listening\":\"127.0.0.1:6443\"}}").expect("kept");
        assert!(!path.exists());
        announce.flush().expect("written");
        assert_eq!(std::fs::read_to_string(&path).expect("it is there"), "6443\n");
    }
}
