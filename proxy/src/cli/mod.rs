//! The command line: one verb per task.
//!
//! A verb is an argument struct, a function that does the work and is tested without a process, and
//! a thin `run` that reads the clock and writes the answer. Standard output carries the answer
//! only; advice and errors go to standard error.

mod argv;
mod authority;
mod check;
mod core_dumps;
mod credentials;
mod dashboard;
mod delegate;
mod demo;
mod doctor;
mod drain;
mod forward;
mod generate;
mod health;
mod hosts;
mod init;
mod invite;
mod join;
mod kubeconfig;
mod leave;
mod lifetime;
mod line;
mod load;
mod local;
mod logging;
mod output;
mod paths;
mod query;
mod reload;
mod render;
mod renew;
mod reset;
mod revoke;
mod roles;
mod rotate_key;
mod rotate_secret;
mod run;
mod saved_directory;
mod service;
mod signer;
mod stand_in;
mod support_bundle;
mod text;
mod textfile;
mod top;
mod upgrade;
mod version;
mod vip_hooks;
mod wait;
mod watch;

#[cfg(test)]
mod tests;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

use self::core_dumps::Children;
use meshport_daemon::Error;
use meshport_daemon::clock;

/// The nearest healthy apiserver behind one local address, on every node
///
/// meshport joins machines into one encrypted mesh. On each of them, 127.0.0.1:7445 reaches the
/// nearest healthy Kubernetes apiserver, wherever it is. No root, no public apiserver port, no load
/// balancer.
#[derive(Debug, Parser)]
#[command(
    name = "meshport",
    version,
    after_help = "Every command has examples: meshport COMMAND --help",
    after_long_help = text::ROOT,
    disable_help_subcommand = false,
    subcommand_required = true,
    arg_required_else_help = true
)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Create a new mesh: its authority and its first node
    ///
    /// Writes the authority's key, the mesh secret, and this machine's keys and credential. Run it
    /// once per mesh; every other machine joins with an invite.
    #[command(after_long_help = text::INIT)]
    Init(init::InitArgs),
    /// Print an invite, a line that lets a machine join
    ///
    /// The line holds a key that may sign one kind of credential for a limited time, the mesh
    /// secret, and addresses of members. Needs the authority's key. Standard output is only the
    /// line.
    #[command(after_long_help = text::INVITE)]
    Invite(invite::InviteArgs),
    /// Join the mesh with an invite
    ///
    /// Verifies the line, creates this machine's keys and writes its credential. No server takes
    /// part. A machine whose credential expires joins again with a new line and --force, and stays
    /// the same node.
    #[command(after_long_help = text::JOIN)]
    Join(join::JoinArgs),
    /// Run the daemon
    ///
    /// Connects to the mesh, listens on the local addresses and serves until SIGTERM. SIGHUP
    /// reloads the configuration, like `meshport reload`. Without a configuration file, the site
    /// comes from the credential and every other setting has its default. Waits for another daemon
    /// of the same state folder that is stopping.
    #[command(after_long_help = text::RUN)]
    Run(run::RunArgs),
    /// Reload the daemon's configuration
    ///
    /// Shows each changed setting with its old and new value, and what needs a restart. No session
    /// ends unless a new `allow` list excludes it; a file with problems changes nothing.
    #[command(after_long_help = text::RELOAD)]
    Reload(query::QueryArgs),
    /// Replace the running daemon with the program on disk
    ///
    /// The daemon starts its successor, which reads the configuration and the state folder, and
    /// passes its sockets on only when the successor is ready. No client is refused, and open
    /// sessions continue in the previous process for at most ten minutes. If the successor cannot
    /// run, or exits in its first seconds, the daemon keeps serving and this command says why.
    /// Works under systemd too; in a container, replace the container.
    #[command(after_long_help = text::UPGRADE)]
    Upgrade(query::QueryArgs),
    /// Check whether the daemon is alive or ready, by the exit code
    ///
    /// For liveness and readiness probes. Uses the admin socket, which other users of the machine
    /// cannot open.
    #[command(after_long_help = text::HEALTH)]
    Health(health::HealthArgs),
    /// Check a configuration file without starting anything
    ///
    /// Shows all problems at once, and the effective configuration with every default.
    #[command(after_long_help = text::CHECK)]
    Check(check::CheckArgs),
    /// Show the state of this node at a glance
    ///
    /// Shows which apiserver this node uses and why, every origin with its state and distance,
    /// absent members, and warnings.
    #[command(after_long_help = text::STATUS)]
    Status(query::StatusArgs),
    /// Watch the mesh as this node sees it, on the terminal
    ///
    /// Shows routes and their reasons, origins, paths, sessions of the last ten minutes, events and
    /// nodes, like the dashboard in a browser. Survives restarts of the daemon. Keys: `?`.
    #[command(after_long_help = text::TOP)]
    Top(top::TopArgs),
    /// Check for known problems
    ///
    /// Checks this machine, the mesh, services and kubeconfigs in at most 10 s, with or without a
    /// running daemon. For each finding it prints the meaning and what to do.
    #[command(after_long_help = text::DOCTOR)]
    Doctor(doctor::DoctorArgs),
    /// Write an archive for support, without secrets
    ///
    /// Contains the daemon's answers, the findings of `doctor`, the configuration in force, the log
    /// of the unit, limits and sockets, as far as they are available; works without a daemon. It
    /// contains names and addresses of nodes, but no keys or tokens.
    #[command(after_long_help = text::SUPPORT_BUNDLE)]
    SupportBundle(support_bundle::SupportBundleArgs),
    /// Show the order in which new sessions try the origins
    ///
    /// One table per service: the candidates in order, and the reason for each position.
    #[command(after_long_help = text::ROUTES)]
    Routes(query::QueryArgs),
    /// Show counters of each listener, service and origin
    ///
    /// Sessions, bytes, errors and connect times since the daemon's start, as a table, CSV or JSON.
    #[command(after_long_help = text::STATS)]
    Stats(query::StatsArgs),
    /// Explain the route of new sessions
    ///
    /// Shows the origin in use and the reason, what the others lack, how other nodes see each of
    /// them, the relays that could be used, and the last ten route changes with their causes.
    #[command(after_long_help = text::EXPLAIN)]
    Explain(query::ExplainArgs),
    /// Show every node in the mesh
    ///
    /// One row per node: endpoint, age of the last WireGuard handshake, bytes in both directions.
    #[command(after_long_help = text::PEERS)]
    Peers(query::PeersArgs),
    /// Measure the round-trip time to a node through the mesh
    ///
    /// Sends probes through the tunnel, as ping(8) does outside it.
    #[command(after_long_help = text::PING)]
    Ping(query::PingArgs),
    /// Wait until a service has a healthy origin
    ///
    /// For scripts at boot: ends as soon as a new session would find a ready origin. The daemon may
    /// start after this command. Fails at once if this user may not open its socket, or if it has
    /// no such service.
    #[command(after_long_help = text::WAIT)]
    Wait(wait::WaitArgs),
    /// Move all sessions away from this origin
    ///
    /// New sessions go to another origin at once. Each open one gets its turn within its node's
    /// `drain-window` (1m) and then ends at its next pause in traffic (0.2 s, or 2 s while its
    /// client waits for an answer), or after 10 s without one. If no other origin is ready, they
    /// stay. Lasts until undrain or until the daemon stops; an upgrade continues it.
    #[command(after_long_help = text::DRAIN)]
    Drain(drain::DrainArgs),
    /// End a drain: offer this origin again
    ///
    /// Undoes `meshport drain`, as does stopping the daemon.
    #[command(after_long_help = text::UNDRAIN)]
    Undrain(drain::UndrainArgs),
    /// Revoke a node or an invite
    ///
    /// For a stolen machine or a leaked invite. Its sessions end everywhere within a second, and
    /// the key can never be used again. Needs the authority's key.
    #[command(after_long_help = text::REVOKE)]
    Revoke(revoke::RevokeArgs),
    /// Take this node out of the mesh for good
    ///
    /// The node's own key signs this, so it needs neither the authority nor an invite. From then on
    /// every member refuses the key, the node's sessions end and its daemon stops. To return, join
    /// with new keys and a new invite.
    #[command(after_long_help = text::LEAVE)]
    Leave(leave::LeaveArgs),
    /// Erase the state of this machine
    ///
    /// Erases keys, credential and everything else in the state folder; the configuration stays.
    /// Refuses while a daemon runs. Does not notify other nodes.
    #[command(after_long_help = text::RESET)]
    Reset(reset::ResetArgs),
    /// List all credentials with age and expiry
    ///
    /// Lists the credentials of all known nodes, this one first, and revoked ones. Exit code 1 if
    /// this node's credential expires within 30 days.
    #[command(after_long_help = text::CREDENTIALS)]
    Credentials(credentials::CredentialsArgs),
    /// Renew this node's credential without interruption
    ///
    /// The authority's key or an invite signs it. The node keeps its keys and its name; a running
    /// daemon uses the new credential at once, and no session ends.
    #[command(after_long_help = text::RENEW)]
    Renew(renew::RenewArgs),
    /// Let a member renew the credentials of others
    ///
    /// Signs a mandate, bounded in roles, site and time, that is installed on a member with the
    /// role issuer. Nodes then renew their credentials automatically when a third of the lifetime
    /// is left, and the authority's key stays offline. Needs the authority's key.
    #[command(after_long_help = text::DELEGATE)]
    Delegate(delegate::DelegateArgs),
    /// Show the authority's key, or make another one for the same mesh
    ///
    /// A key that the first one has endorsed signs invites, renewals and revocations just like it.
    /// So the mesh survives the loss or replacement of a key.
    #[command(after_long_help = text::AUTHORITY)]
    Authority(authority::AuthorityArgs),
    /// Replace the mesh secret while sessions continue
    ///
    /// Use it when an old invite, a laptop or a revoked node still has the current one. Members get
    /// the new one within seconds; for members that are away, the previous one works until the
    /// overlap ends. Needs the authority's key.
    #[command(after_long_help = text::ROTATE_SECRET)]
    RotateSecret(rotate_secret::RotateSecretArgs),
    /// Replace this node's keys while its sessions continue
    ///
    /// Use it when others may have seen its state folder or a backup. The node keeps its name, its
    /// address and its sessions; peers learn of the new key within a second, and the previous one
    /// is revoked in the whole mesh. Signed by the authority's key or an invite, and by the current
    /// key itself.
    #[command(after_long_help = text::ROTATE_KEY)]
    RotateKey(rotate_key::RotateKeyArgs),
    /// Open a local address that leads to the nearest healthy origin, from any machine
    ///
    /// For an operator's laptop: no daemon, no root, no configuration. Needs an invite with the
    /// role operator once and saves the credential. Keeps the address while origins, members and
    /// networks change, until Ctrl-C or the end of the command it runs.
    #[command(after_long_help = text::FORWARD)]
    Forward(Box<forward::ForwardArgs>),
    /// Show any node's dashboard in a browser, through the mesh
    ///
    /// For an operator's laptop: no daemon, no root, no configuration. Serves the daemons'
    /// dashboard on a loopback port, with data from the nodes themselves. Uses the credential of
    /// `meshport forward`, or an invite with the role operator.
    #[command(after_long_help = text::DASHBOARD)]
    Dashboard(Box<dashboard::DashboardArgs>),
    /// Print or write a kubeconfig context for the local address
    ///
    /// Takes the cluster of an existing context and points it at this node's local address. The
    /// user's credentials are not copied. The certificate is verified for a name that all origins'
    /// certificates have; the daemon fetches all of them.
    #[command(after_long_help = text::KUBECONFIG)]
    Kubeconfig(kubeconfig::KubeconfigArgs),
    /// Map an API name to this node in the hosts file
    ///
    /// Prints the lines; --add and --remove change the file, only between meshport's markers.
    #[command(after_long_help = text::HOSTS)]
    Hosts(hosts::HostsArgs),
    /// Print a systemd unit, pod manifests or installer configuration
    ///
    /// Each file begins with its purpose, what to change, and the page that explains it.
    #[command(after_long_help = text::GENERATE)]
    Generate(generate::GenerateArgs),
    /// Demonstrate meshport on this machine
    ///
    /// Runs three sites, each with an apiserver and two daemons, behind an emulated WAN, sends
    /// requests, stops the nearest apiserver, and shows the traffic fail over and return. Needs no
    /// root and leaves nothing behind.
    #[command(after_long_help = text::DEMO)]
    Demo(demo::DemoArgs),
    /// Run a daemon for as long as the demo that started it
    #[command(name = meshport_demo::VERB, hide = true)]
    DemoNode(demo::NodeArgs),
    /// Run an apiserver stand-in
    #[command(hide = true)]
    StandIn(stand_in::StandInArgs),
    /// Run the commands of virtual addresses for the daemon that started it
    #[command(name = meshport_daemon::vip_hooks::VERB, hide = true)]
    VipHooks(vip_hooks::VipHooksArgs),
    /// Print the version of this program and of the running daemon
    ///
    /// They differ after an update, until a restart or `meshport upgrade`. Succeeds even if no
    /// daemon answers.
    #[command(after_long_help = text::VERSION)]
    Version(version::VersionArgs),
    /// Print shell completions
    ///
    /// Source the output, or put it into the shell's completion folder.
    #[command(after_long_help = text::COMPLETIONS)]
    Completions {
        /// The shell
        #[arg(value_parser = ["bash", "zsh", "fish"])]
        shell: String,
    },
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    if let Some(code) = meshport_daemon::starter::serve() {
        return code;
    }
    let cli = match Cli::try_parse_from(argv::words()) {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    // Any command may have an invite or a key in memory.
    let runs_a_command = matches!(cli.verb, Verb::Forward(_));
    core_dumps::forbid(if runs_a_command { Children::MayRaise } else { Children::Limited });
    match run(&cli.verb) {
        Ok(code) => ExitCode::from(code),
        Err(error) => ExitCode::from(output::report(&error)),
    }
}

/// The command line with all its texts; the manual pages are generated from it.
pub fn command() -> clap::Command {
    Cli::command()
}

/// Returns the exit code: 0, 1 for findings, or that of the command that was run.
fn run(verb: &Verb) -> Result<u8, Error> {
    let done = match verb {
        Verb::Forward(args) => return forward::run(args),
        Verb::Doctor(args) => return doctor::run(args),
        Verb::Init(args) => init::run(args),
        Verb::Invite(args) => invite::run(args),
        Verb::Join(args) => join::run(args),
        Verb::Run(args) => run::run(args),
        Verb::Reload(args) => reload::run(args),
        Verb::Upgrade(args) => upgrade::run(args),
        Verb::Health(args) => health::run(args),
        Verb::Check(args) => check::run(args),
        Verb::Status(args) => query::status(args),
        Verb::Top(args) => top::run(args),
        Verb::Dashboard(args) => dashboard::run(args),
        Verb::SupportBundle(args) => support_bundle::run(args),
        Verb::Routes(args) => query::routes(args),
        Verb::Stats(args) => query::stats(args),
        Verb::Explain(args) => query::explain(args),
        Verb::Peers(args) => query::peers(args),
        Verb::Ping(args) => query::ping(args),
        Verb::Wait(args) => wait::run(args),
        Verb::Drain(args) => drain::drain(args),
        Verb::Undrain(args) => drain::undrain(args),
        Verb::Revoke(args) => revoke::run(args),
        Verb::Leave(args) => leave::run(args),
        Verb::Reset(args) => reset::run(args),
        Verb::Credentials(args) => credentials::run(args),
        Verb::Renew(args) => renew::run(args),
        Verb::Delegate(args) => delegate::run(args),
        Verb::Authority(args) => authority::run(args),
        Verb::RotateSecret(args) => rotate_secret::run(args),
        Verb::RotateKey(args) => rotate_key::run(args),
        Verb::Kubeconfig(args) => kubeconfig::run(args),
        Verb::Hosts(args) => hosts::run(args),
        Verb::Generate(args) => generate::run(args),
        Verb::Demo(args) => demo::run(args),
        Verb::DemoNode(args) => demo::node(args),
        Verb::StandIn(args) => stand_in::run(args),
        Verb::VipHooks(args) => vip_hooks::run(args),
        Verb::Version(args) => version::run(args),
        Verb::Completions { shell } => completions(shell),
    };
    done.map(|()| 0)
}

/// Help and version go to standard output with code 0, misuse to standard error with code 2.
fn usage(error: &clap::Error) -> ExitCode {
    // On a closed pipe nobody reads the text.
    let _ = error.print();
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}

fn completions(shell: &str) -> Result<(), Error> {
    let shell: Shell = shell.parse().map_err(Error::Usage)?;
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut command(), "meshport", &mut text);
    output::answer(&String::from_utf8_lossy(&text))
}

/// The runtime of one verb: a single thread.
fn runtime() -> Result<tokio::runtime::Runtime, Error> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Error::io("start the event loop"))
}
