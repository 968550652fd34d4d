//! The inputs of all checks: the settings, the state folder and the answers of the daemon.

use std::path::{Path, PathBuf};
use std::time::Duration;

use meshport_config::{NamedSeed, Seed, ServiceName, Settings, UnixSeconds};
use meshport_core::findings::{Finding, Kind};
use tokio::sync::OnceCell;
use tokio::time::timeout;

use super::report::Skip;
use crate::cli::load::{self, Loaded};
use crate::cli::paths::Paths;
use crate::cli::query::{DaemonArgs, is_closed};
use crate::cli::{clock, kubeconfig};
use meshport_daemon::Error;
use meshport_daemon::admin::api::{FindingRow, PeerRow, ServiceStatus, Status};
use meshport_daemon::admin::certificates::{CertificatesRequest, OriginCertificate};
use meshport_daemon::admin::client::AdminClient;
use meshport_daemon::admin::inquire::{InquireRequest, InquiryReport, MemberAnswer};
use meshport_daemon::admin::queries::{PeersRequest, StatusRequest};
use meshport_state::StateDir;

/// Limit for an answer of the daemon, which has all answers in memory.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);
/// Directory in which kubeadm and others keep the kubeconfigs of a node's components.
const NODE_KUBECONFIGS: &str = "/etc/kubernetes";
/// The maximum number of kubeconfigs to read in that folder; kubeadm has 5.
const MAX_KUBECONFIGS: usize = 32;

/// Why a check is skipped.
pub(super) const NO_ANSWER: &str = "no daemon answers";
pub(super) const CLOSED: &str =
    "this user may not query the daemon. Run this as the user of the daemon, or as root";
pub(super) const NO_MEMBERS: &str = "there is no other member to ask";
const OTHER_FOLDER: &str = "only --socket was given, so the daemon may use another configuration \
                            and state folder than this user's. Add --state-dir, or give --config \
                            instead";
pub(super) const NO_SETTINGS: &str = "the settings cannot be read";
pub(super) const NO_STATE: &str = "the state folder cannot be opened";

#[derive(Debug)]
pub(super) struct Facts {
    pub(super) now: UnixSeconds,
    loaded: Result<Loaded, Error>,
    /// The configuration, if there is one.
    pub(super) config: Option<PathBuf>,
    state_dir: Option<PathBuf>,
    /// Only a socket was named, other than that of the settings, so that its daemon may use other
    /// ones and another state folder.
    pub(super) has_only_socket: bool,
    pub(super) client: AdminClient,
    pub(super) daemon: Result<Daemon, Error>,
    certificates: OnceCell<Result<Vec<OriginCertificate>, Skip>>,
    inquiry: OnceCell<Result<InquiryReport, Skip>>,
    /// Kubeconfigs, in lists that are merged as `KUBECONFIG` is.
    pub(super) kubeconfigs: Vec<Vec<PathBuf>>,
}

/// The daemon's facts about itself.
#[derive(Debug)]
pub(super) struct Daemon {
    pub(super) status: Status,
    pub(super) peers: Vec<PeerRow>,
    /// Absent if the kernel does not report it.
    pub(super) pid: Option<i32>,
}

impl Facts {
    /// # Errors
    /// [`Error::Usage`] when this user has no home folder, [`Error::Unfit`] for a configuration
    /// that was named and cannot be read.
    pub(super) async fn gather(args: &DaemonArgs) -> Result<Self, Error> {
        let paths = Paths::of_this_user()?;
        let (config, state_dir) = (args.config.as_deref(), args.state_dir.as_deref());
        let client = args.client()?;
        let loaded = load::settings(config, state_dir, &paths);
        let is_known = |it: &Loaded| it.settings.admin.socket == client.socket();
        let has_only_socket = args.socket.is_some()
            && args.state_dir.is_none()
            && !loaded.as_ref().is_ok_and(is_known);
        let state_dir = match (&loaded, state_dir) {
            (Ok(loaded), _) => Some(loaded.settings.state_dir.clone()),
            (Err(_), Some(named)) => Some(named.to_owned()),
            // The configuration may set another socket.
            (Err(Error::Config { .. } | Error::Unfit(_)), None) => None,
            (Err(_), None) => Some(load::default_state_dir(&paths)),
        };
        let asked = timeout(ANSWER_LIMIT, Daemon::ask(&client)).await;
        let daemon = asked.unwrap_or_else(|_elapsed| {
            let source = std::io::ErrorKind::TimedOut.into();
            Err(Error::NoDaemon { path: client.socket().to_owned(), source })
        });
        let mut kubeconfigs = of_components(Path::new(NODE_KUBECONFIGS));
        kubeconfigs.push(kubeconfig::default_files());
        let (certificates, inquiry) = (OnceCell::new(), OnceCell::new());
        Ok(Self {
            now: clock::wall(),
            loaded,
            config: load::config_file(config, &paths).map(Path::to_owned),
            state_dir,
            has_only_socket,
            client,
            daemon,
            certificates,
            inquiry,
            kubeconfigs,
        })
    }

    /// Refuses what was read here if the daemon that answers may not use it.
    fn of_the_daemon(&self) -> Result<(), Skip> {
        let is_there = self.daemon.as_ref().map_or_else(is_closed, |_| true);
        if is_there && self.has_only_socket { Err(OTHER_FOLDER.into()) } else { Ok(()) }
    }

    pub(super) fn loaded(&self) -> Result<&Result<Loaded, Error>, Skip> {
        self.of_the_daemon().map(|()| &self.loaded)
    }

    pub(super) fn settings(&self) -> Result<&Settings, Skip> {
        self.of_the_daemon()?;
        self.loaded.as_ref().map(|it| &it.settings).map_err(|_| NO_SETTINGS.into())
    }

    /// The certificates of the apiserver service's origins, queried once for all checks.
    pub(super) async fn certificates(&self) -> Result<&[OriginCertificate], Skip> {
        let ask = || async {
            let service = ServiceName::kube_apiserver();
            let asked = self.client.ask(&CertificatesRequest { service }).await;
            asked.map_err(|error| Skip(error.to_string()))
        };
        match self.certificates.get_or_init(ask).await {
            Ok(answers) => Ok(answers),
            Err(why) => Err(why.clone()),
        }
    }

    /// The answers of members, queried once for all checks.
    pub(super) async fn inquiry(&self) -> Result<&InquiryReport, Skip> {
        self.daemon()?;
        let ask = || async {
            let asked = self.client.ask(&InquireRequest).await;
            asked.map_err(|error| Skip(error.to_string()))
        };
        match self.inquiry.get_or_init(ask).await {
            Ok(report) if report.members.is_empty() => Err(NO_MEMBERS.into()),
            Ok(report) => Ok(report),
            Err(why) => Err(why.clone()),
        }
    }

    /// The answers of members, if they were queried.
    pub(super) fn members(&self) -> &[MemberAnswer] {
        let asked = self.inquiry.get().and_then(|it| it.as_ref().ok());
        asked.map_or(&[], |it| &it.members)
    }

    pub(super) fn daemon(&self) -> Result<&Daemon, Skip> {
        let why = |error| if is_closed(error) { CLOSED } else { NO_ANSWER };
        self.daemon.as_ref().map_err(|error| why(error).into())
    }

    pub(super) fn state_dir(&self) -> Result<&Path, Skip> {
        self.of_the_daemon()?;
        self.state_dir.as_deref().ok_or(NO_SETTINGS.into())
    }

    pub(super) fn state(&self) -> Result<StateDir, Skip> {
        StateDir::open(self.state_dir()?).map_err(|_| NO_STATE.into())
    }

    /// The seeds of the settings and of the state folder that have addresses.
    pub(super) fn seeds(&self) -> Result<Vec<Seed>, Skip> {
        let configured = self.settings()?.mesh.seeds.iter().filter_map(|seed| match seed {
            NamedSeed::Whole(seed) => Some(seed.clone()),
            NamedSeed::Name(_) => None,
        });
        let mut seeds: Vec<Seed> = configured.collect();
        let stored =
            self.state().and_then(|it| it.seeds().map_err(|error| Skip(error.to_string())));
        match stored {
            Ok(stored) => seeds.extend(stored),
            Err(why) if seeds.is_empty() => return Err(why),
            Err(_) => {}
        }
        if seeds.is_empty() {
            return Err("this node has no seeds".into());
        }
        Ok(seeds)
    }
}

impl Daemon {
    async fn ask(client: &AdminClient) -> Result<Self, Error> {
        let status = client.ask(&StatusRequest).await?;
        let peers = client.ask(&PeersRequest).await?;
        Ok(Self { status, peers, pid: client.pid().await })
    }

    /// The findings of a kind that the daemon reports.
    pub(super) fn found(&self, kind: &Kind) -> Vec<Finding> {
        let all = self.status.findings.iter().filter_map(FindingRow::read);
        all.filter(|it| it.kind == kind).collect()
    }

    /// The apiserver service, if clients of this node use it.
    pub(super) fn apiservers(&self) -> Option<&ServiceStatus> {
        let is_it = |it: &&ServiceStatus| it.name.as_str() == ServiceName::KUBE_APISERVER;
        self.status.services.iter().find(is_it).filter(|it| !it.listen.is_empty())
    }
}

/// The kubeconfigs of a folder, each as a separate list.
fn of_components(folder: &Path) -> Vec<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let files = entries.map(|entry| entry.path());
    let mut files: Vec<PathBuf> = files
        .filter(|path| path.extension().is_some_and(|it| it == "conf"))
        .take(MAX_KUBECONFIGS)
        .collect();
    files.sort();
    files.into_iter().map(|file| vec![file]).collect()
}
