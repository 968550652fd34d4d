//! `meshport drain` and `undrain`: take the local instance out of service, and put it back.
//!
//! With --wait it returns once no other node uses the instance, so the next command of a script can
//! start maintenance.

use std::io::{self, IsTerminal};
use std::time::Duration;

use clap::Args;
use meshport_config::{Period, ServiceName};
use tokio::time::{Instant, sleep};

use super::query::DaemonArgs;
use super::render::{age, counted};
use super::{output, runtime};
use meshport_daemon::Error;
use meshport_daemon::admin::api::{DrainReport, DrainRequest, Offering, ServiceStatus};
use meshport_daemon::admin::client::AdminClient;
use meshport_daemon::admin::queries::RoutesRequest;
use meshport_daemon::clock;

/// Interval at which open sessions are counted.
const INTERVAL: Duration = Duration::from_millis(500);
/// Interval of progress lines if output is not a terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// `meshport drain`
#[derive(Debug, Args)]
pub(crate) struct DrainArgs {
    #[command(flatten)]
    pub(crate) undrain: UndrainArgs,
    /// Wait at most this long until no session of another node is open here
    #[arg(long, value_name = "TIME")]
    pub(crate) wait: Option<Period>,
}

/// `meshport undrain`
#[derive(Debug, Args)]
pub(crate) struct UndrainArgs {
    /// The service of the local instance
    #[arg(long, value_name = "NAME", default_value = ServiceName::KUBE_APISERVER)]
    pub(crate) service: ServiceName,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) daemon: DaemonArgs,
}

pub(crate) fn drain(args: &DrainArgs) -> Result<(), Error> {
    let UndrainArgs { service, json, daemon } = &args.undrain;
    let client = daemon.client()?;
    let request = DrainRequest { service: service.clone(), draining: true };
    let (report, successor) = runtime()?.block_on(async {
        let report = client.ask(&request).await?;
        match args.wait {
            Some(patience) => Ok((emptied(&client, &report, patience).await?, None)),
            None => {
                let routes = client.ask(&RoutesRequest).await?;
                let route = routes.iter().find(|route| route.name == report.service);
                Ok::<_, Error>((report, route.and_then(successor).map(str::to_owned)))
            }
        }
    })?;
    output::either(*json, &report, |report| said(report, successor.as_deref()))
}

pub(crate) fn undrain(args: &UndrainArgs) -> Result<(), Error> {
    let request = DrainRequest { service: args.service.clone(), draining: false };
    output::either(args.json, &args.daemon.ask(&request)?, taken_up)
}

fn taken_up(DrainReport { service, changed, state, .. }: &DrainReport) -> String {
    match changed {
        true => format!("{service}: offered again, as {state}\n"),
        false => format!("{service}: was not draining; nothing changed, it is {state}\n"),
    }
}

fn said(report: &DrainReport, successor: Option<&str>) -> String {
    let DrainReport { service, state, sessions, .. } = report;
    let state = match state.as_str() {
        "draining" => state.clone(),
        other => format!("drained, and {other}"),
    };
    let open = format!("{} of other nodes", counted(*sessions, "session"));
    match (sessions, successor) {
        (0, _) => format!("{service}: {state}; no session of another node is open here\n"),
        (1, Some(name)) => format!("{service}: {state}; {open} moves, {name} is ready\n"),
        (_, Some(name)) => format!("{service}: {state}; {open} move, {name} is ready\n"),
        (_, None) => format!("{service}: {state}; {open} left: no other origin is ready\n"),
    }
}

/// Another origin of the service that takes over this one's sessions.
fn successor(route: &ServiceStatus) -> Option<&str> {
    let others = route.origins.iter().filter(|it| it.path != "own");
    let mut ready = others.filter(|it| it.usable && it.state == "ready");
    ready.next().map(|it| it.who.name.as_str())
}

/// Why sessions are left, and what to do.
fn left(sessions: u64, patience: Period, route: Option<&ServiceStatus>) -> String {
    let open =
        format!("{} of other nodes still open after {patience}", counted(sessions, "session"));
    match route.and_then(successor) {
        Some(name) => format!(
            "{open}, though {name} is ready. Each gets its turn within its own node's \
             drain-window (1m by default) and ends at its next pause in traffic, or 10 s later; \
             wait longer, or stop the instance and cut them"
        ),
        None => format!(
            "{open}: no other origin is ready, so they stay until they end. `meshport routes` \
             shows why"
        ),
    }
}

/// Reports progress: on a terminal in place, otherwise a line every [`LINE_INTERVAL`].
struct Progress {
    terminal: bool,
    begun: Instant,
    told: Option<Instant>,
}

impl Progress {
    fn new() -> Self {
        let begun = Instant::from_std(clock::now());
        Self { terminal: io::stderr().is_terminal(), begun, told: None }
    }

    fn show(&mut self, sessions: u64) {
        let now = Instant::from_std(clock::now());
        let waited = age((now - self.begun).as_secs());
        let text = format!("{} of other nodes open, {waited}", counted(sessions, "session"));
        if self.terminal {
            output::draw(&text);
        } else if self.told.is_none_or(|told| now >= told + LINE_INTERVAL) {
            output::advice(&text);
        } else {
            return;
        }
        self.told = Some(now);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.terminal && self.told.is_some() {
            output::draw("");
        }
    }
}

/// Waits until no other node uses the instance; returns the report.
///
/// # Errors
/// [`Error::Negative`] when sessions are left at the end.
async fn emptied(
    client: &AdminClient,
    report: &DrainReport,
    patience: Period,
) -> Result<DrainReport, Error> {
    let mut progress = Progress::new();
    let deadline = progress.begun + patience.0;
    loop {
        let routes = client.ask(&RoutesRequest).await?;
        let route = routes.iter().find(|route| route.name == report.service);
        let offering = route.and_then(|route| route.offering.as_ref());
        let sessions = offering.map_or(0, |offering| offering.sessions);
        if sessions == 0 {
            return Ok(latest(report, offering));
        }
        if Instant::from_std(clock::now()) + INTERVAL > deadline {
            return Err(Error::Negative(left(sessions, patience, route)));
        }
        progress.show(sessions);
        sleep(INTERVAL).await;
    }
}

/// The report as it is now: while sessions ended, the state may have changed.
fn latest(report: &DrainReport, offering: Option<&Offering>) -> DrainReport {
    let sessions = offering.map_or(0, |offering| offering.sessions);
    let state = offering.map_or(&report.state, |offering| &offering.state).clone();
    DrainReport { state, sessions, ..report.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::render::tests::service;

    #[test]
    fn says_how_many_are_left() {
        let report = |sessions, successor| {
            let service = ServiceName::kube_apiserver();
            let state = "draining".into();
            said(&DrainReport { service, changed: true, state, sessions }, successor)
        };
        assert_eq!(
            report(0, Some("cp-2")),
            "kube-apiserver: draining; no session of another node is open here\n"
        );
        let moves = "kube-apiserver: draining; 1 session of other nodes moves, cp-2 is ready\n";
        assert_eq!(report(1, Some("cp-2")), moves);
        let service = ServiceName::kube_apiserver();
        let unready = DrainReport { service, changed: true, state: "unready".into(), sessions: 0 };
        assert!(said(&unready, None).contains("drained, and unready; no session"), "{unready:?}");
        let stay = report(12, None);
        assert!(stay.contains("12 sessions of other nodes left: no other origin is"), "{stay}");
    }

    #[test]
    fn the_state_after_a_wait_is_the_last_one() {
        let (service, state) = (ServiceName::kube_apiserver(), "unready".into());
        let first = DrainReport { service, changed: true, state, sessions: 2 };
        let offering = Offering {
            address: "127.0.0.1:6443".into(),
            state: "draining".into(),
            since_s: 3,
            detail: "drained by its operator; ready".into(),
            sessions: 0,
        };
        let last = latest(&first, Some(&offering));
        assert_eq!((last.state.as_str(), last.sessions), ("draining", 0));
        assert_eq!(latest(&first, None).state, "unready", "it is offered no longer");
    }

    #[test]
    fn an_instance_that_was_not_draining_is_not_offered_again() {
        let report = |changed| {
            let (service, state) = (ServiceName::kube_apiserver(), "ready".into());
            taken_up(&DrainReport { service, changed, state, sessions: 0 })
        };
        assert_eq!(report(true), "kube-apiserver: offered again, as ready\n");
        assert!(report(false).contains("was not draining"));
    }

    #[test]
    fn what_is_left_has_its_reason() {
        let mut route = service();
        let patience = Period(Duration::from_secs(120));
        let text = left(1, patience, Some(&route));
        assert!(text.starts_with("1 session of other nodes still open after 2m, though cp-1 is"));
        assert!(!text.contains("no other origin is ready"), "{text}");
        // The node's own instance takes over none of its sessions.
        route.origins.truncate(1);
        route.origins[0].path = "own".into();
        let text = left(12, patience, Some(&route));
        assert!(
            text.contains("12 sessions") && text.contains("no other origin is ready"),
            "{text}"
        );
    }
}
