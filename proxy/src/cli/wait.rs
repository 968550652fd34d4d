//! `meshport wait`: waits until a service has a healthy origin, to order units at boot.
//!
//! Polls the daemon, which may not have started yet, so that a boot script needs one command only.

use std::time::Duration;

use clap::Args;
use meshport_config::{Period, ServiceName};
use tokio::time::{Instant, sleep, timeout_at};

use super::query::{DaemonArgs, is_closed, unknown_service};
use super::{output, runtime};
use meshport_daemon::Error;
use meshport_daemon::admin::api::{OriginStatus, ServiceStatus};
use meshport_daemon::admin::client::AdminClient;
use meshport_daemon::admin::queries::RoutesRequest;
use meshport_daemon::clock;

/// Interval between queries: a boot takes seconds, and a query costs the daemon microseconds.
const INTERVAL: Duration = Duration::from_millis(200);
/// Time after which the obstacle is printed: longer than a daemon takes to start.
const MOMENT: Duration = Duration::from_secs(3);
/// The least time that a daemon has for an answer.
const LEAST: Duration = Duration::from_secs(1);
const DEFAULT_SERVICE: &str = "kube-apiserver";

/// `meshport wait`
#[derive(Debug, Args)]
pub(crate) struct WaitArgs {
    /// The service to wait for
    #[arg(long, value_name = "NAME", default_value = DEFAULT_SERVICE)]
    pub(crate) service: ServiceName,
    /// Give up after this time
    #[arg(long, value_name = "TIME", default_value = "5m")]
    pub(crate) timeout: Period,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) daemon: DaemonArgs,
}

pub(crate) fn run(args: &WaitArgs) -> Result<(), Error> {
    let client = args.daemon.client()?;
    let found = runtime()?.block_on(wait(&client, &args.service, args.timeout.0, tell))?;
    output::either(args.json, &found, |OriginStatus { who, rtt_ms, .. }| {
        let rtt = rtt_ms.map_or("this node".into(), |rtt| format!("{rtt:.2} ms"));
        format!("{}: {} in {}, {rtt}\n", args.service, who.name, who.site_or_dash())
    })
}

/// Prints the obstacle.
pub(crate) fn tell(obstacle: &str) {
    output::advice(&format!("waiting: {obstacle}"));
}

/// The ready origin new sessions would go to. Calls `tell` once with the obstacle if there is none
/// after a moment.
///
/// # Errors
/// [`Error::Negative`] with the last obstacle if there is none in time. At once, since waiting does
/// not help: [`Error::Usage`] for a service that the daemon does not know, [`Error::NoDaemon`] if
/// this user may not open its socket.
pub(crate) async fn wait(
    client: &AdminClient,
    service: &ServiceName,
    patience: Duration,
    tell: impl FnOnce(&str),
) -> Result<OriginStatus, Error> {
    let start = Instant::from_std(clock::now());
    let deadline = start + patience;
    let mut tell = Some(tell);
    loop {
        let due = if tell.is_some() { deadline.min(start + MOMENT) } else { deadline };
        let limit = limit(due, Instant::from_std(clock::now()));
        let answer = timeout_at(limit, client.ask(&RoutesRequest)).await;
        let obstacle = match answer {
            Ok(Ok(routes)) => match judge(&routes, service)? {
                Readiness::Ready(origin) => return Ok(*origin),
                Readiness::NotYet(obstacle) => obstacle,
            },
            Ok(Err(error @ (Error::NoDaemon { .. } | Error::Refused(_)))) if !is_closed(&error) => {
                error.to_string()
            }
            Ok(Err(error)) => return Err(error),
            Err(_elapsed) => "the daemon does not answer".into(),
        };
        let now = Instant::from_std(clock::now());
        if now + INTERVAL > deadline {
            let waited = Period(patience);
            return Err(Error::Negative(format!("timed out after {waited}: {obstacle}")));
        }
        if let Some(tell) = tell.take_if(|_| now >= start + MOMENT) {
            tell(&obstacle);
        }
        sleep(INTERVAL).await;
    }
}

/// When a query that starts `now` times out, since a daemon that hangs is an obstacle too: when the
/// next report is due, and not before a daemon that works could answer.
fn limit(due: Instant, now: Instant) -> Instant {
    due.max(now + LEAST)
}

/// Whether the wait has ended.
#[derive(Debug)]
enum Readiness {
    /// The first choice, which is healthy.
    Ready(Box<OriginStatus>),
    /// The obstacle, as text.
    NotYet(String),
}

/// Whether a new session would find a ready origin.
///
/// # Errors
/// [`Error::Usage`] for a service the daemon does not know.
fn judge(routes: &[ServiceStatus], service: &ServiceName) -> Result<Readiness, Error> {
    let Some(route) = routes.iter().find(|route| route.name == *service) else {
        return Err(unknown_service(service, routes.iter().map(|route| &route.name)));
    };
    Ok(match route.origins.first() {
        None => Readiness::NotYet(format!("{service}: no origin is known yet")),
        Some(first) if first.chosen && first.lacks.is_empty() => {
            Readiness::Ready(Box::new(first.clone()))
        }
        Some(first) => {
            let lacks = if first.lacks.is_empty() { "not usable" } else { &first.lacks };
            let name = &first.who.name;
            Readiness::NotYet(format!("{service}: the best origin is {name}: {lacks}"))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::render::tests::service;

    fn name() -> ServiceName {
        DEFAULT_SERVICE.parse().expect("a valid name")
    }

    #[test]
    fn only_a_healthy_first_choice_ends_the_wait() {
        let obstacle = |route: &ServiceStatus| match judge(std::slice::from_ref(route), &name())
            .expect("known")
        {
            Readiness::Ready(_) => None,
            Readiness::NotYet(obstacle) => Some(obstacle),
        };
        let mut route = service();
        assert_eq!(obstacle(&route), None);
        route.origins[0].lacks = "unready".into();
        assert!(obstacle(&route).expect("not yet").ends_with("is cp-1: unready"));
        route.origins.clear();
        assert!(obstacle(&route).expect("not yet").contains("no origin is known"));
    }

    #[test]
    fn an_unknown_service_fails_at_once() {
        let other = "registry".parse().expect("a valid name");
        let error = judge(&[service()], &other).expect_err("unknown").to_string();
        assert!(error.contains("kube-apiserver"), "{error}");
    }

    #[tokio::test]
    async fn a_daemon_that_never_comes_is_named_in_the_end() {
        let folder = tempfile::tempdir().expect("a folder");
        let client = AdminClient::new(folder.path().join("no.sock"));
        let quiet = |said: &str| panic!("{said}");
        let waited = wait(&client, &name(), Duration::from_millis(1), quiet).await;
        let error = waited.expect_err("no daemon");
        assert_eq!(error.exit_code(), 1);
        assert!(error.to_string().contains("no daemon answers"), "{error}");
    }

    #[test]
    fn a_query_just_before_a_report_is_not_cut_short() {
        let now = Instant::from_std(clock::now());
        assert_eq!(limit(now + MOMENT, now), now + MOMENT);
        assert_eq!(limit(now, now + INTERVAL), now + INTERVAL + LEAST);
    }

    #[tokio::test(start_paused = true)]
    async fn the_obstacle_is_printed_once_after_a_moment() {
        let folder = tempfile::tempdir().expect("a folder");
        let client = AdminClient::new(folder.path().join("no.sock"));
        let (start, mut told) = (clock::now(), None);
        let tell = |obstacle: &str| told = Some((clock::now() - start, obstacle.to_owned()));
        wait(&client, &name(), 3 * MOMENT, tell).await.expect_err("no daemon");
        let (after, obstacle) = told.expect("it is printed");
        assert!((MOMENT..MOMENT + 2 * INTERVAL).contains(&after), "{after:?}");
        assert!(obstacle.contains("no.sock: the socket does not exist"), "{obstacle}");
    }
}
