//! `meshport forward`: a local address on an operator's machine that leads to the nearest healthy
//! origin, for as long as the command runs.
//!
//! Needs no daemon, root or configuration: an invite the first time, the saved credential later.
//! The leaf ([`meshport_daemon::lifecycle::leaf`]) does the work; this command finds the
//! credential, reports progress, writes the kubeconfig and runs a command.

mod child;
mod context;
pub(super) mod identity;
pub(super) mod messages;

use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use clap::Args;
use meshport_config::{LogLevel, Period, ServiceName, ServiceSettings};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, sleep_until, timeout};

use self::context::{ContextArgs, TemporaryKubeconfig};
use self::identity::{IdentityArgs, Start, Storage};
use self::messages::Console;
use super::kubeconfig::{Chosen, Evidence};
use super::{clock, local, logging, output, runtime};
use meshport_daemon::Error;
use meshport_daemon::lifecycle::leaf::{Destination, Leaf, Options};

/// How long to wait until a first choice that is usable but not healthy becomes healthy.
const GRACE: Duration = Duration::from_secs(2);
/// Maximum wait for a nearer origin once one has answered; the first one's round-trip time if that
/// is shorter.
const NEARER_WAIT: Duration = Duration::from_millis(250);
/// How long to wait while all members that answer refuse: others may still accept the credential.
const REFUSED_WAIT: Duration = Duration::from_secs(3);
/// Limit for fetching the origins' certificates, which decide the name that a context verifies:
/// enough for a handshake on any path, and hardly noticeable if one does not answer.
const CERTIFICATES_WAIT: Duration = Duration::from_secs(1);
/// Interval at which progress is redrawn.
const LOOK: Duration = Duration::from_millis(50);

/// `meshport forward`
#[derive(Debug, Args)]
pub(crate) struct ForwardArgs {
    /// The service to reach
    #[arg(long, value_name = "NAME", default_value = ServiceName::KUBE_APISERVER)]
    pub(crate) service: ServiceName,
    /// Local address to open; port 0 is any free port [default: 127.0.0.1 and the port that nodes
    /// use, or a free one]
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) listen: Option<SocketAddr>,
    /// Let other machines connect to the address and use your credential
    #[arg(long, requires = "listen")]
    pub(crate) allow_remote_clients: bool,
    #[command(flatten)]
    pub(crate) identity: IdentityArgs,
    #[command(flatten)]
    pub(crate) context: ContextArgs,
    /// Local UDP address, for firewalls that require a fixed one [default: any]
    #[arg(long, value_name = "ADDR:PORT", default_value = "[::]:0", hide_default_value = true)]
    pub(crate) mesh_listen: SocketAddr,
    /// How long to search for an origin before giving up
    #[arg(long, value_name = "TIME", default_value = "30s")]
    pub(crate) timeout: Period,
    /// Log to standard error at this level: error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL")]
    pub(crate) log_level: Option<LogLevel>,
    /// Run a command with KUBECONFIG set, and exit with its exit code
    #[arg(long, requires = "command")]
    pub(crate) exec: bool,
    /// The command and its arguments
    #[arg(last = true, value_name = "COMMAND", requires = "exec")]
    pub(crate) command: Vec<OsString>,
}

/// The exit code: 0, or the command's.
pub(crate) fn run(args: &ForwardArgs) -> Result<u8, Error> {
    let listen = args.listen_addresses()?;
    start_log(args.log_level)?;
    let context = context::find(args)?;
    if args.exec && context.is_none() && args.service.as_str() == ServiceName::KUBE_APISERVER {
        output::advice(
            "warning: no kubeconfig was found, so KUBECONFIG is not set for the command; name one \
             with --from, or use the address in MESHPORT_ADDRESS",
        );
    }
    let start = identity::start(&args.identity)?;
    runtime()?.block_on(forward(args, listen, start, context.as_ref()))
}

/// Starts the log of a leaf, if requested. Nobody relies on its audit lines, so the level is theirs
/// too.
pub(super) fn start_log(level: Option<LogLevel>) -> Result<(), Error> {
    let Some(level) = level.map(LogLevel::as_str) else { return Ok(()) };
    logging::start(false, &format!("{level},audit={level}")).map(drop)
}

impl ForwardArgs {
    /// The addresses to try, best first.
    fn listen_addresses(&self) -> Result<Vec<SocketAddr>, Error> {
        let loopback = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        match self.listen {
            Some(address) if !address.ip().is_loopback() && !self.allow_remote_clients => {
                Err(Error::Usage(format!(
                    "other machines can reach {address} and would act with your credential; \
                     listen on 127.0.0.1, or add --allow-remote-clients"
                )))
            }
            Some(address) => Ok(vec![address]),
            None => {
                let usual = ServiceSettings::defaults(&self.service);
                let usual = usual.listen.first().map(|address| loopback(address.port()));
                Ok(usual.into_iter().chain([loopback(0)]).collect())
            }
        }
    }
}

async fn forward(
    args: &ForwardArgs,
    listen: Vec<SocketAddr>,
    start: Start,
    context: Option<&Chosen>,
) -> Result<u8, Error> {
    let Start { identity, seeds, directory, storage } = start;
    let (service, mesh_listen) = (args.service.clone(), args.mesh_listen);
    let options = Options { identity, seeds, directory, service, listen, mesh_listen };
    let mut console = Console::new(args, clock::now());
    let mut signals = EndSignals::new()?;
    let mut leaf = Leaf::start(options)?;
    let ready = tokio::select! {
        ready = connect(&mut leaf, args, &mut console) => ready,
        () = signals.any() => Err(Error::Negative("interrupted before an origin was found".into())),
    };
    console.clear();
    let mut forward = Forward { args, leaf, console, storage, signals, told: None };
    let outcome = match ready {
        Ok(destination) => forward.serve(destination, context).await,
        Err(error) => Err(error),
    };
    forward.leaf.stop().await;
    outcome
}

/// Waits for a usable origin and reports progress.
async fn connect(
    leaf: &mut Leaf,
    args: &ForwardArgs,
    console: &mut Console,
) -> Result<Destination, Error> {
    let begun = Instant::from_std(clock::now());
    let (deadline, mut usable_since) = (begun + args.timeout.0, None);
    loop {
        leaf.check_revoked()?;
        console.tell_copied(leaf);
        let now = Instant::from_std(clock::now());
        let progress = leaf.progress();
        match leaf.destination() {
            Some(found) if found.healthy => return Ok(nearest(leaf, found).await),
            Some(found) if now >= *usable_since.get_or_insert(now) + GRACE => return Ok(found),
            Some(_) => {}
            None => usable_since = None,
        }
        let refused = progress.refused.is_some() && progress.members == 0;
        if now >= deadline || (refused && now >= begun + REFUSED_WAIT) {
            return Err(messages::no_origin(&progress, args));
        }
        console.show(&progress);
        // Wake up to redraw even without a change.
        let _ = timeout(LOOK, leaf.changed()).await;
    }
}

/// The first origin to answer may only have had its tunnel earlier. A nearer one answers within
/// that origin's round trip.
async fn nearest(leaf: &mut Leaf, found: Destination) -> Destination {
    let wait = found.rtt.unwrap_or_default().min(NEARER_WAIT);
    let until = Instant::from_std(clock::now()) + wait;
    loop {
        let progress = leaf.progress();
        if progress.measured >= progress.origins {
            break;
        }
        tokio::select! {
            () = leaf.changed() => {}
            () = sleep_until(until) => break,
        }
    }
    leaf.destination().unwrap_or(found)
}

/// A forward whose local address is open.
struct Forward<'a> {
    args: &'a ForwardArgs,
    leaf: Leaf,
    console: Console,
    storage: Storage,
    signals: EndSignals,
    /// The refusal that was printed since the last usable origin.
    told: Option<String>,
}

impl Forward<'_> {
    /// Serves until a signal, the command's end, or the revocation of this machine.
    async fn serve(
        &mut self,
        destination: Destination,
        context: Option<&Chosen>,
    ) -> Result<u8, Error> {
        let listen = self.leaf.listen().ok_or_else(|| Error::Bug("nothing is bound".into()))?;
        let local = local::dialled(listen);
        let kubeconfig = match context {
            Some(context) => self.write_context(context, local).await?,
            None => None,
        };
        let mut command = match self.args.command.split_first() {
            Some((program, rest)) => Some(child::Child::start(program, rest, local, kubeconfig)?),
            None => None,
        };
        self.console.leads(local, Some(&destination), false, clock::wall());
        // Save on another task: disk writes must not block this loop.
        if let Err(error) = self.storage.store(self.leaf.directory().await).await {
            self.console.remark(&identity::unsaved(&error));
        }
        self.storage.take_secrets(&mut self.leaf).await;
        let mut last = Some(destination);
        loop {
            self.console.tell_copied(&mut self.leaf);
            tokio::select! {
                () = self.leaf.changed() => {
                    if let Err(revoked) = self.leaf.check_revoked() {
                        // First: the command may take a while to end.
                        let code = output::report(&revoked);
                        child::terminate(command, self.signals.any()).await;
                        return Ok(code);
                    }
                    self.storage.take_secrets(&mut self.leaf).await;
                    let now = self.leaf.destination();
                    self.tell_change(local, last.as_ref(), now.as_ref());
                    self.tell_refusal(now.as_ref());
                    last = now;
                }
                code = child::ended(&mut command) => {
                    self.storage.store_directory(self.leaf.directory().await).await;
                    return code;
                }
                end = self.signals.next() => match &mut command {
                    Some(command) => command.pass_on(end),
                    None => {
                        self.storage.store_directory(self.leaf.directory().await).await;
                        return Ok(0);
                    }
                }
            }
        }
    }

    /// Writes the context if requested; returns the kubeconfig for a command.
    async fn write_context(
        &mut self,
        context: &Chosen,
        local: SocketAddr,
    ) -> Result<Option<TemporaryKubeconfig>, Error> {
        let answers = self.leaf.certificates(CERTIFICATES_WAIT).await;
        let evidence = Evidence::of_origins(&self.args.service, &answers);
        let evidence = context.judge(evidence, clock::wall());
        if let Some(file) = &self.args.context.kubeconfig {
            let remarks = context.merge_into(file, local, &evidence)?;
            remarks.iter().for_each(|remark| self.console.remark(remark));
        }
        if !self.args.exec {
            return Ok(None);
        }
        let kubeconfig = TemporaryKubeconfig::write(context, local, &evidence)?;
        kubeconfig.warnings.iter().for_each(|warning| self.console.remark(warning));
        Ok(Some(kubeconfig))
    }

    /// Prints the new destination if it has changed, or its health.
    fn tell_change(
        &self,
        local: SocketAddr,
        last: Option<&Destination>,
        now: Option<&Destination>,
    ) {
        let stays = matches!((last, now), (Some(last), Some(now)) if last.is_same_way(now));
        let is_healthy = |it: Option<&Destination>| it.map(|it| it.healthy);
        // Nothing usable is neither.
        if is_healthy(last) != is_healthy(now) || (now.is_some() && !stays) {
            self.console.leads(local, now, stays, clock::wall());
            let denied = self.leaf.progress().denied.filter(|_| now.is_none());
            if let Some(denied) = denied {
                self.console.remark(&messages::denied(&denied, &self.args.service));
            }
        }
    }

    /// Prints a new refusal while no origin is usable, since that may be the reason.
    fn tell_refusal(&mut self, now: Option<&Destination>) {
        let refused = self.leaf.progress().refused;
        if let Some(reason) = refused.as_ref().filter(|_| now.is_none() && refused != self.told) {
            self.console.remark(&messages::last_refusal(reason));
        }
        self.told = refused;
    }
}

/// The signals that stop the program.
pub(super) struct EndSignals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
    quit: Signal,
}

/// A signal that stops the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EndSignal {
    Interrupt,
    Terminate,
    Hangup,
    Quit,
}

impl EndSignals {
    pub(super) fn new() -> Result<Self, Error> {
        let listen = |kind| signal(kind).map_err(Error::io("listen for signals"));
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hangup: listen(SignalKind::hangup())?,
            quit: listen(SignalKind::quit())?,
        })
    }

    async fn next(&mut self) -> EndSignal {
        tokio::select! {
            _ = self.interrupt.recv() => EndSignal::Interrupt,
            _ = self.terminate.recv() => EndSignal::Terminate,
            _ = self.hangup.recv() => EndSignal::Hangup,
            _ = self.quit.recv() => EndSignal::Quit,
        }
    }

    pub(super) async fn any(&mut self) {
        self.next().await;
    }
}
