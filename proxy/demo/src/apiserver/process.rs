//! One stand-in as a separate process, for tests that stop or kill it.
//!
//! Signals play the faults: SIGUSR1 makes it unready, SIGUSR2 ready again, SIGTERM closes the port
//! and lets open connections end (bounded by [`DRAIN_LIMIT`], a second SIGTERM ends it at once).
//! SIGSTOP, SIGCONT and SIGKILL have their usual effect.

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::authority::{Authority, Leaf};
use super::{StandIn, StandInConfig};
use meshport_daemon::Error;

/// How long open connections may continue after SIGTERM; an apiserver's default.
pub const DRAIN_LIMIT: Duration = Duration::from_secs(60);
/// How often a draining stand-in checks whether its last connection has ended.
const DRAIN_POLL: Duration = Duration::from_millis(50);

/// The source of certificate and key.
#[derive(Clone, Debug)]
pub enum TlsSource {
    /// Existing PEM files.
    Files {
        /// The certificate, or a chain that begins with it.
        certificate: PathBuf,
        /// Its private key.
        key: PathBuf,
    },
    /// A new certificate by the authority of this folder, see [`Authority::in_folder`]. Client
    /// certificates of that authority are requested, and verified if sent.
    Folder(PathBuf),
}

/// How [`serve_forever`] starts.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// Where to listen; port 0 picks a free one.
    pub listen: SocketAddr,
    /// The name of the origin.
    pub name: String,
    /// Certificate and key.
    pub tls: TlsSource,
    /// As [`StandInConfig::watch_interval`].
    pub watch_interval: Duration,
}

impl ServeOptions {
    fn config(self) -> Result<StandInConfig, Error> {
        let (leaf, client_ca) = match &self.tls {
            TlsSource::Files { certificate, key } => {
                (Leaf::read(&self.name, certificate, key)?, None)
            }
            TlsSource::Folder(folder) => {
                let authority = Authority::in_folder(folder)?;
                let leaf = authority.issue_server(&self.name)?;
                (leaf, Some(authority.certificate_pem().to_owned()))
            }
        };
        let Self { listen, watch_interval, .. } = self;
        Ok(StandInConfig { listen, leaf, client_ca, watch_interval })
    }
}

/// Serves until SIGTERM or SIGINT. One line of JSON, `{"name", "listening"}`, goes to `announce`
/// as soon as connections are accepted.
///
/// # Errors
/// The stand-in cannot start, or the line cannot be written.
pub async fn serve_forever(
    options: ServeOptions,
    announce: &mut (impl Write + Send),
) -> Result<(), Error> {
    let listen_for = |kind| signal(kind).map_err(Error::io("listen for signals"));
    let mut unready = listen_for(SignalKind::user_defined1())?;
    let mut ready = listen_for(SignalKind::user_defined2())?;
    let mut terminate = listen_for(SignalKind::terminate())?;
    let mut interrupt = listen_for(SignalKind::interrupt())?;
    let stand_in = StandIn::start(options.config()?)?;
    let line = json!({ "name": stand_in.name(), "listening": stand_in.addr() });
    writeln!(announce, "{line}")
        .and_then(|()| announce.flush())
        .map_err(Error::io("say where the stand-in listens"))?;
    loop {
        tokio::select! {
            _ = unready.recv() => stand_in.set_ready(false),
            _ = ready.recv() => stand_in.set_ready(true),
            _ = interrupt.recv() => break,
            _ = terminate.recv() => {
                drain(&stand_in, &mut terminate).await;
                break;
            }
        }
    }
    stand_in.stop().await;
    Ok(())
}

async fn drain(stand_in: &StandIn, again: &mut Signal) {
    stand_in.set_ready(false);
    stand_in.refuse().await;
    let idle = async {
        while stand_in.open_connections() > 0 {
            tokio::time::sleep(DRAIN_POLL).await;
        }
    };
    tokio::select! {
        _ = tokio::time::timeout(DRAIN_LIMIT, idle) => {}
        _ = again.recv() => {}
    }
}
