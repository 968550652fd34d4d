//! `meshport dashboard`: the dashboard of any node, on an operator's machine.
//!
//! Needs no daemon: the leaf of `meshport forward`, without a local address for clients, reads
//! views through the mesh, and the page is served on a loopback port.

use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;
use meshport_config::{LogLevel, NodeName, Period, ServiceName};
use meshport_daemon::Error;
use meshport_daemon::admin::local_server;
use meshport_daemon::lifecycle::dashboard::{self, ViewError};
use meshport_daemon::lifecycle::leaf::{Leaf, Options};
use meshport_demo::browser;
use tokio::time::{Instant, timeout};

use super::forward::identity::{self, IdentityArgs, Start, Storage};
use super::forward::messages::no_member;
use super::forward::{EndSignals, start_log};
use super::{clock, output, runtime};

/// Interval between attempts to read the first view, unless something changes earlier.
const LOOK: Duration = Duration::from_millis(200);

/// `meshport dashboard`
#[derive(Debug, Args)]
pub(crate) struct DashboardArgs {
    /// The node to show first; the page can switch to others [default: the nearest apiserver's
    /// node]
    node: Option<NodeName>,
    /// Loopback address to serve the dashboard on; port 0 is any free port
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Open the dashboard in a browser
    #[arg(long)]
    open: bool,
    #[command(flatten)]
    identity: IdentityArgs,
    /// Local UDP address, for firewalls that require a fixed one [default: any]
    #[arg(long, value_name = "ADDR:PORT", default_value = "[::]:0", hide_default_value = true)]
    mesh_listen: SocketAddr,
    /// How long to look for a member before giving up
    #[arg(long, value_name = "TIME", default_value = "30s")]
    timeout: Period,
    /// Log to standard error at this level: error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<LogLevel>,
}

pub(crate) fn run(args: &DashboardArgs) -> Result<(), Error> {
    start_log(args.log_level)?;
    let start = identity::start(&args.identity)?;
    runtime()?.block_on(serve(args, start))
}

async fn serve(args: &DashboardArgs, start: Start) -> Result<(), Error> {
    let listener = local_server::bind(args.listen).await?;
    let address = listener.local_addr().map_err(Error::io("read the address of the page"))?;
    let Start { identity, seeds, directory, mut storage } = start;
    let mut signals = EndSignals::new()?;
    let mut leaf = Leaf::start(Options {
        identity,
        seeds,
        directory,
        service: ServiceName::kube_apiserver(),
        listen: Vec::new(),
        mesh_listen: args.mesh_listen,
    })?;
    let ready = tokio::select! {
        ready = first_view(&mut leaf, args) => ready,
        () = signals.any() => Err(Error::Negative("interrupted before a member answered".into())),
    };
    let served = match ready {
        Ok(()) => {
            if let Err(error) = storage.store(leaf.directory().await).await {
                output::advice(&identity::unsaved(&error));
            }
            tell(args, address)?;
            let page = dashboard::serve(listener, leaf.viewer());
            let ended = tokio::select! {
                () = page => Ok(()),
                error = follow(&mut leaf, &storage) => Err(error),
                () = signals.any() => Ok(()),
            };
            storage.store_directory(leaf.directory().await).await;
            ended
        }
        Err(error) => Err(error),
    };
    leaf.stop().await;
    served
}

/// Waits until the first page has something to show.
async fn first_view(leaf: &mut Leaf, args: &DashboardArgs) -> Result<(), Error> {
    let viewer = leaf.viewer();
    let node = args.node.as_ref().map(NodeName::as_str);
    let deadline = Instant::from_std(clock::now()) + args.timeout.0;
    loop {
        leaf.check_revoked()?;
        let error = match viewer.view(node, 0).await {
            Ok(_) => return Ok(()),
            Err(error) => error,
        };
        let is_final = matches!(error, ViewError::NotAllowed | ViewError::Older);
        if is_final || Instant::from_std(clock::now()) >= deadline {
            return Err(no_view(&error, leaf, args));
        }
        // Retry soon, since a change may come without a notification.
        let _ = timeout(LOOK, leaf.changed()).await;
    }
}

fn no_view(error: &ViewError, leaf: &Leaf, args: &DashboardArgs) -> Error {
    let of = args.node.as_ref().map(|node| format!(" of {node}")).unwrap_or_default();
    let text = match error {
        ViewError::NoMember => no_member(leaf.progress().refused.as_deref(), args.timeout),
        ViewError::UnknownNode(_) => format!(
            "{error}. `meshport dashboard` without a name shows the nearest apiserver's node, and \
             all names"
        ),
        error => format!("cannot read the view{of}: {error}"),
    };
    Error::Negative(text)
}

/// Prints the dashboard's address, and opens it if requested.
fn tell(args: &DashboardArgs, address: SocketAddr) -> Result<(), Error> {
    let node = args.node.as_ref().map(|node| format!("?node={node}")).unwrap_or_default();
    let page = format!("http://{address}/{node}");
    output::answer(&format!("{page}\n"))?;
    if args.open
        && let Err(error) = browser::open(&page)
    {
        output::advice(&error.to_string());
    }
    output::advice("Every node's dashboard, read through the mesh. Press Ctrl-C to stop.");
    Ok(())
}

/// Saves new mesh secrets of the leaf and warns of a copy of it, until it is revoked.
async fn follow(leaf: &mut Leaf, storage: &Storage) -> Error {
    loop {
        if let Some(copied) = leaf.take_copied() {
            output::advice(&format!("warning: {copied}"));
        }
        leaf.changed().await;
        if let Err(error) = leaf.check_revoked() {
            return error;
        }
        storage.take_secrets(leaf).await;
    }
}
