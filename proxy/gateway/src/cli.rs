//! The command line.

use std::io::{self, Write};
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use meshport_config::Cidr;
use meshport_daemon::log_lines;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use crate::Error;
use crate::plan::{Rules, plan};
use crate::run::{self, Options, describe};
use crate::watch::Cluster;

/// The exit code for an invalid command line, as in `meshport`.
const USAGE: u8 = 2;
/// The RBAC rights it needs, for `kubectl apply`.
const RBAC: &str = include_str!("rbac.yaml");
const EXAMPLES: &str = "\
Examples:
  meshport-gateway --rbac | kubectl apply -f -
  meshport-gateway --kubeconfig /etc/meshport/gateway.conf --dry-run
  meshport-gateway --kubeconfig /etc/meshport/gateway.conf

Annotations of a Service:
  meshport.io/expose: \"web\"              its port, as service web of the mesh
  meshport.io/expose: \"web:80,adm:admin\" several ports, by number or name
  meshport.io/allow: \"site:fra,role:node\" the nodes that may use it";

/// Offers Services of a Kubernetes cluster in the mesh
///
/// Runs beside `meshport run` on a node whose credential has the roles `gateway` and `origin:NAME`
/// for each NAME that is offered. A Service requests to be offered with an annotation, or with type
/// LoadBalancer and loadBalancerClass meshport.io/mesh. Instances follow the endpoints.
#[derive(Debug, Parser)]
#[command(name = "meshport-gateway", version, after_help = EXAMPLES, max_term_width = 80)]
pub struct Cli {
    /// How to reach the cluster [default: $KUBECONFIG, ~/.kube/config, or the pod's own]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The daemon's socket
    #[arg(long, value_name = "PATH", default_value = "/run/meshport/meshport.sock")]
    socket: PathBuf,
    /// Only Services of this namespace; can be repeated [default: all]
    #[arg(long = "namespace", short = 'n', value_name = "NAME")]
    namespaces: Vec<String>,
    /// Only endpoints in this network; can be repeated [default: all but loopback and link-local]
    #[arg(long = "endpoints", value_name = "CIDR")]
    endpoint_networks: Vec<Cidr>,
    /// Offer Services of type ExternalName too: their authors choose what this node connects to
    #[arg(long)]
    external_names: bool,
    /// Address for the status of Services of type LoadBalancer; can be repeated
    #[arg(long = "address", value_name = "IP")]
    addresses: Vec<IpAddr>,
    /// Print which Services would be offered, and why the others would not, and exit
    #[arg(long)]
    dry_run: bool,
    /// Print the ServiceAccount and its rights for kubectl apply, and exit
    #[arg(long, conflicts_with = "dry_run")]
    rbac: bool,
    /// error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log_level: LevelFilter,
}

/// The program.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let is_answer =
                matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
            // The terminal is gone; the error cannot be reported.
            let _ = error.print();
            return if is_answer { ExitCode::SUCCESS } else { ExitCode::from(USAGE) };
        }
    };
    match start(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "meshport-gateway: {error}");
            ExitCode::FAILURE
        }
    }
}

fn start(cli: Cli) -> Result<(), Error> {
    if cli.rbac {
        return print(RBAC);
    }
    // This program's own lines already contain the client's messages.
    let client = ["kube_client", "kube_runtime"].map(|it| (it, LevelFilter::OFF));
    let filter = Targets::new().with_default(cli.log_level).with_targets(client);
    let lines = log_lines::on_stderr().with_target(false);
    tracing_subscriber::registry().with(lines.with_filter(filter)).init();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|source| Error::Io { what: "cannot start", source })?;
    runtime.block_on(work(cli))
}

async fn work(cli: Cli) -> Result<(), Error> {
    let client = client(cli.kubeconfig.as_deref()).await?;
    let rules = Rules {
        namespaces: cli.namespaces.into_iter().collect(),
        endpoint_networks: cli.endpoint_networks,
        external_names: cli.external_names,
        addresses: cli.addresses,
    };
    if cli.dry_run {
        let mut cluster = Cluster::watch(&client).await?;
        return print(&describe(&plan(&cluster.snapshot(&rules).await, &rules)));
    }
    let signals =
        |kind| signal(kind).map_err(|source| Error::Io { what: "cannot wait for signals", source });
    let (mut terminate, mut interrupt) =
        (signals(SignalKind::terminate())?, signals(SignalKind::interrupt())?);
    let stop = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    run::run(client, Options { socket: cli.socket, rules }, stop).await
}

/// A client configured by the kubeconfig at this path, or by the one that kubectl would use.
async fn client(kubeconfig: Option<&std::path::Path>) -> Result<Client, Error> {
    let config = match kubeconfig {
        Some(file) => {
            let read =
                Kubeconfig::read_from(file).map_err(|error| Error::Kubeconfig(Box::new(error)))?;
            let options = KubeConfigOptions::default();
            let config = Config::from_custom_kubeconfig(read, &options).await;
            config.map_err(|error| Error::Kubeconfig(Box::new(error)))?
        }
        None => Config::infer().await.map_err(|error| Error::Kubeconfig(Box::new(error)))?,
    };
    Client::try_from(config).map_err(|error| Error::Kubeconfig(Box::new(error)))
}

fn print(text: &str) -> Result<(), Error> {
    let what = "cannot write to standard output";
    io::stdout().write_all(text.as_bytes()).map_err(|source| Error::Io { what, source })
}
