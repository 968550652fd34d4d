//! `status`, `stats`, `routes`, `explain`, `peers` and `ping`: queries to a running daemon.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, value_parser};
use meshport_config::{Period, ServiceName, TextError};
use meshport_core::names;

use super::load::{socket, state_dir};
use super::{clock, output, render, runtime, saved_directory, watch};
use meshport_daemon::Error;
use meshport_daemon::admin::api::{NodeRef, OriginRef, PingReport, PingRequest, SeedRow};
use meshport_daemon::admin::client::AdminClient;
use meshport_daemon::admin::explain::Explanation;
use meshport_daemon::admin::queries::{
    ExplainRequest, PeersRequest, RoutesRequest, SeedsRequest, StatsRequest, StatusRequest,
};
use meshport_daemon::admin::request::Request;
use meshport_daemon::admin::wayback::WayRequest;
use meshport_state::StateDir;

/// Shortest interval: pings must not load a path.
const MIN_INTERVAL: Period = Period(Duration::from_millis(50));
const MAX_INTERVAL: Period = Period(Duration::from_secs(60));
/// Enough for a day of one probe a second.
const MAX_COUNT: i64 = 100_000;

/// The daemon to query, and the output format.
#[derive(Debug, Args)]
pub(crate) struct QueryArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) daemon: DaemonArgs,
}

/// `meshport status`
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// Repeat until Ctrl-C, every 2 s or as in --watch=5s
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true,
        default_missing_value = "2s", value_parser = interval)]
    pub(crate) watch: Option<Duration>,
    #[command(flatten)]
    pub(crate) query: QueryArgs,
}

/// The daemon to query.
#[derive(Debug, Args)]
pub(crate) struct DaemonArgs {
    /// The daemon's socket [default: `admin.socket` of the configuration]
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// The daemon's configuration, to find its socket
    #[arg(long, value_name = "FILE", conflicts_with = "socket")]
    pub(crate) config: Option<PathBuf>,
    /// The daemon's state folder, also to find its socket
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
}

/// `meshport peers`
#[derive(Debug, Args)]
pub(crate) struct PeersArgs {
    /// Print members as seeds for `mesh.seeds` and `meshport invite --seed`, this node first
    #[arg(long)]
    pub(crate) seeds: bool,
    #[command(flatten)]
    pub(crate) query: QueryArgs,
}

/// `meshport stats`
#[derive(Debug, Args)]
pub(crate) struct StatsArgs {
    /// Print CSV, with a header line
    #[arg(long, conflicts_with = "json")]
    pub(crate) csv: bool,
    #[command(flatten)]
    pub(crate) query: QueryArgs,
}

/// `meshport ping`
#[derive(Debug, Args)]
pub(crate) struct PingArgs {
    /// Name, NodeId or short NodeId of the node to reach
    #[arg(value_name = "NODE")]
    pub(crate) target: String,
    /// Probes to send
    #[arg(short, long, default_value_t = 5, value_parser = value_parser!(u32).range(1..=MAX_COUNT))]
    pub(crate) count: u32,
    /// Time between probes
    #[arg(short, long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    pub(crate) interval: Duration,
    #[command(flatten)]
    pub(crate) query: QueryArgs,
}

/// `meshport explain`
#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// Only this origin, by name, NodeId or short NodeId
    #[arg(value_name = "ORIGIN")]
    pub(crate) origin: Option<String>,
    /// Only this service
    #[arg(long, value_name = "NAME")]
    pub(crate) service: Option<ServiceName>,
    /// How an apiserver of this node reaches this node's kubelet (the way back)
    #[arg(long, value_name = "NAME", conflicts_with_all = ["origin", "service"])]
    pub(crate) node: Option<String>,
    #[command(flatten)]
    pub(crate) query: QueryArgs,
}

impl QueryArgs {
    /// Prints the daemon's reply to a request.
    pub(super) fn answer<R: Request>(
        &self,
        request: &R,
        text: impl FnOnce(&R::Reply) -> String,
    ) -> Result<(), Error> {
        output::either(self.json, &self.daemon.ask(request)?, text)
    }
}

impl DaemonArgs {
    /// A client of that daemon.
    pub(super) fn client(&self) -> Result<AdminClient, Error> {
        let (config, named) = (self.config.as_deref(), self.state_dir.as_deref());
        let client = match &self.socket {
            // The default state folder may be another daemon's.
            Some(path) if named.is_none() => return Ok(AdminClient::new(path)),
            Some(path) => AdminClient::new(path),
            None => AdminClient::new(socket(config, named)?),
        };
        Ok(match state_dir(config, named) {
            Ok(folder) => client.with_state_dir(folder),
            Err(_) => client,
        })
    }

    /// That daemon's reply to a request.
    pub(super) fn ask<R: Request>(&self, request: &R) -> Result<R::Reply, Error> {
        runtime()?.block_on(self.client()?.ask(request))
    }

    /// That daemon's reply to a request; `None` if none runs. `undone` as for
    /// [`require_none`](Self::require_none).
    pub(super) fn ask_if_running<R: Request>(
        &self,
        request: &R,
        state: &StateDir,
        undone: &str,
    ) -> Result<Option<R::Reply>, Error> {
        match self.ask(request) {
            Err(Error::NoDaemon { .. }) => self.require_none(state, undone).map(|()| None),
            reply => reply.map(Some),
        }
    }

    /// Fails if a daemon runs and answers on another socket. `undone` says what that daemon would
    /// not learn.
    ///
    /// # Errors
    /// [`Error::State`] when a daemon uses the state folder.
    pub(super) fn require_none(&self, state: &StateDir, undone: &str) -> Result<(), Error> {
        if state.try_lock()?.is_some() {
            return Ok(());
        }
        let socket = self.client()?.socket().display().to_string();
        Err(Error::State {
            path: state.path().to_owned(),
            what: format!(
                "a daemon is using this state folder but does not answer on {socket}, so {undone}"
            ),
            remedy: "Name its socket with --socket, or its configuration with --config, and run \
                     this again"
                .into(),
        })
    }

    /// The state folder of that daemon.
    pub(super) fn state(&self) -> Result<StateDir, Error> {
        Ok(StateDir::open(state_dir(self.config.as_deref(), self.state_dir.as_deref())?)?)
    }
}

pub(crate) fn status(StatusArgs { watch, query: args }: &StatusArgs) -> Result<(), Error> {
    if let Some(every) = watch {
        return runtime()?.block_on(watch::watch(&args.daemon.client()?, *every, args.json));
    }
    let now = clock::wall().0;
    args.answer(&StatusRequest, |status| render::status(status, now, output::style()))
}

pub(crate) fn routes(args: &QueryArgs) -> Result<(), Error> {
    args.answer(&RoutesRequest, |routes| render::routes(routes, output::style()))
}

pub(crate) fn stats(StatsArgs { csv, query: args }: &StatsArgs) -> Result<(), Error> {
    args.answer(&StatsRequest, |rows| match csv {
        true => render::stats_csv(rows),
        false => render::stats(rows, output::style()),
    })
}

pub(crate) fn explain(args: &ExplainArgs) -> Result<(), Error> {
    if let Some(node) = &args.node {
        let request = WayRequest { node: node.clone() };
        return args.query.answer(&request, |way| render::way(node, way));
    }
    let all = args.query.daemon.ask(&ExplainRequest)?;
    let shown = select(all.clone(), args.service.as_ref(), args.origin.as_deref())?;
    output::either(args.query.json, &shown, |it| render::explain(it, &all, output::style()))
}

/// Whether this user may not open the socket, so that a daemon may be behind it.
pub(super) fn is_closed(error: &Error) -> bool {
    matches!(error, Error::NoDaemon { source, .. }
        if source.kind() == io::ErrorKind::PermissionDenied)
}

/// The error that this node does not have the service.
pub(super) fn unknown_service<'a>(
    service: &ServiceName,
    known: impl Iterator<Item = &'a ServiceName>,
) -> Error {
    let known: Vec<&str> = known.map(AsRef::as_ref).collect();
    Error::Usage(format!("this node has no service {service}; it has {}", known.join(", ")))
}

/// Selects the requested rows.
fn select(
    mut all: Vec<Explanation>,
    service: Option<&ServiceName>,
    origin: Option<&str>,
) -> Result<Vec<Explanation>, Error> {
    if let Some(service) = service {
        let unknown = unknown_service(service, all.iter().map(|it| &it.service));
        all.retain(|it| it.service == *service);
        if all.is_empty() {
            return Err(unknown);
        }
    }
    let Some(origin) = origin else { return Ok(all) };
    let is_it = |who: &OriginRef| {
        let ids = who.node.iter().flat_map(|node| [node.to_string(), node.short()]);
        who.name == origin || ids.into_iter().any(|id| id == origin)
    };
    let names = all.iter().flat_map(|it| &it.candidates).map(|it| it.status.who.name.clone());
    let known: Vec<String> = names.collect();
    for it in &mut all {
        it.candidates.retain(|candidate| is_it(&candidate.status.who));
    }
    all.retain(|it| !it.candidates.is_empty());
    if all.is_empty() {
        return Err(Error::Usage(names::unknown_of(
            "origin",
            origin,
            known.iter().map(String::as_str),
            "explain",
        )));
    }
    Ok(all)
}

pub(crate) fn peers(args: &PeersArgs) -> Result<(), Error> {
    if !args.seeds {
        return args.query.answer(&PeersRequest, |peers| render::peers(peers, output::style()));
    }
    let seeds = match args.query.daemon.ask(&SeedsRequest) {
        Err(error @ Error::NoDaemon { .. }) if args.query.daemon.socket.is_none() => {
            saved_seeds(&args.query.daemon, error)?
        }
        seeds => seeds?,
    };
    output::either(args.query.json, &seeds, |seeds| {
        seeds.iter().map(|it| format!("{}\n", it.seed)).collect()
    })
}

/// The members of the saved directory, if no daemon answers; the daemon's error if there are none.
fn saved_seeds(daemon: &DaemonArgs, silent: Error) -> Result<Vec<SeedRow>, Error> {
    let Ok(state) = daemon.state() else { return Err(silent) };
    let seeds = saved_directory::members(&state, clock::wall())?;
    if seeds.is_empty() {
        return Err(silent);
    }
    output::advice(&format!("{silent}. These are from the saved directory"));
    Ok(seeds)
}

/// One request per probe, so that each line appears with its answer. Ctrl-C ends the probes and
/// prints the summary.
pub(crate) fn ping(args: &PingArgs) -> Result<(), Error> {
    let client = args.query.daemon.client()?;
    let report = runtime()?.block_on(probe(&client, args))?;
    let summary = render::PingSummary::of(&report.rtt_ms);
    output::either(args.query.json, &report, |it| render::ping_summary(&it.who, &summary))?;
    match summary.answered {
        0 => {
            let why = report.lacks.map_or_else(String::new, |lacks| format!(": {lacks}"));
            Err(Error::Negative(format!("{} did not answer{why}", report.who.name)))
        }
        _ => Ok(()),
    }
}

/// The time between two probes.
pub(super) fn interval(text: &str) -> Result<Duration, TextError> {
    text.parse::<Period>()?.within(MIN_INTERVAL, MAX_INTERVAL).map(Duration::from)
}

async fn probe(client: &AdminClient, args: &PingArgs) -> Result<PingReport, Error> {
    let request = PingRequest { target: args.target.clone(), count: 1 };
    let mut interrupt = std::pin::pin!(tokio::signal::ctrl_c());
    let mut ticks = tokio::time::interval(args.interval);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut who: Option<NodeRef> = None;
    let mut rtt_ms = Vec::new();
    let mut lacks = None;
    for sequence in 1..=args.count {
        let answer = async {
            ticks.tick().await;
            client.ask(&request).await
        };
        let report = tokio::select! {
            report = answer => report?,
            _ = interrupt.as_mut() => break,
        };
        let probe = report.rtt_ms.first().copied().flatten();
        if !args.query.json {
            if who.is_none() {
                output::answer(&render::ping_header(&report.who))?;
            }
            let sequence = usize::try_from(sequence).unwrap_or(usize::MAX);
            output::answer(&render::ping_line(&report.who, sequence, probe))?;
        }
        who = Some(report.who);
        lacks = report.lacks;
        rtt_ms.push(probe);
    }
    let sent = u32::try_from(rtt_ms.len()).unwrap_or(u32::MAX);
    let who = who.ok_or_else(|| Error::Negative("interrupted before the first answer".into()))?;
    Ok(PingReport { who, sent, rtt_ms, lacks })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::render::tests::service;
    use meshport_daemon::admin::explain::CandidateFacts;

    fn explanation() -> Explanation {
        let service = service();
        let facts = |status| CandidateFacts {
            status,
            standing: "healthy".into(),
            cost_ms: 1.0,
            deviation_ms: None,
            evidence: 0.0,
            seen: None,
            relays: Vec::new(),
        };
        Explanation {
            service: service.name,
            policy: service.policy,
            chosen: service.chosen,
            candidates: service.origins.into_iter().map(facts).collect(),
            sessions: Vec::new(),
            changes: Vec::new(),
        }
    }

    #[test]
    fn an_origin_has_a_name_an_id_and_a_short_id() {
        let node = explanation().candidates[1].status.who.node.expect("a node");
        for word in ["cp-2".to_owned(), node.to_string(), node.short()] {
            let chosen = select(vec![explanation()], None, Some(&word)).expect("it is there");
            let names = chosen[0].candidates.iter().map(|it| it.status.who.name.as_str());
            assert_eq!(names.collect::<Vec<_>>(), ["cp-2"], "{word}");
        }
        let error = select(vec![explanation()], None, Some("cp-9")).expect_err("unknown");
        assert_eq!(error.exit_code(), 2);
    }

    #[test]
    fn a_daemon_that_answers_elsewhere_differs_from_none() {
        let folder = tempfile::tempdir().expect("a folder");
        let state = StateDir::open(folder.path()).expect("a state folder");
        let socket = Some(folder.path().join("other.sock"));
        let args = DaemonArgs { socket, config: None, state_dir: None };
        args.require_none(&state, "nothing is done").expect("nobody uses the folder");
        let _lock = state.lock().expect("it is free");
        let error = args.require_none(&state, "nothing is done").expect_err("it is in use");
        let text = error.to_string();
        assert!(text.contains("other.sock") && text.contains("--socket"), "{text}");
    }

    #[test]
    fn an_unknown_service_is_misuse() {
        let name = ServiceName::kube_apiserver();
        assert_eq!(select(vec![explanation()], Some(&name), None).expect("known").len(), 1);
        let other: ServiceName = "registry".parse().expect("a valid name");
        let error = select(vec![explanation()], Some(&other), None).expect_err("unknown");
        assert!(error.to_string().contains("kube-apiserver"), "{error}");
        assert_eq!(error.exit_code(), 2);
    }
}
