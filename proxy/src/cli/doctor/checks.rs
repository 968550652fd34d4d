//! Runs checks in parallel, each within its limit.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use meshport_core::findings::{Finding, Kind};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::facts::Facts;
use super::report::{Done, Outcome, Skip};
use crate::cli::clock;

/// Default limit of a check: a name or file that takes longer is a problem in itself.
const LIMIT: Duration = Duration::from_secs(2);

/// The findings, or why the check cannot run.
pub(super) type Looked = Result<Vec<Finding>, Skip>;

/// Looks for findings of some kinds.
pub(super) struct Check {
    kinds: Vec<&'static Kind>,
    limit: Duration,
    work: Pin<Box<dyn Future<Output = Looked> + Send>>,
}

impl Check {
    pub(super) fn new(
        kinds: &[&'static Kind],
        work: impl Future<Output = Looked> + Send + 'static,
    ) -> Self {
        Self { kinds: kinds.to_vec(), limit: LIMIT, work: Box::pin(work) }
    }

    /// The same with another limit.
    pub(super) fn within(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }

    /// A check that reads files. It runs on its own thread, because a network file system may hang.
    pub(super) fn of_files(
        kinds: &[&'static Kind],
        facts: &Arc<Facts>,
        look: impl FnOnce(&Facts) -> Looked + Send + 'static,
    ) -> Self {
        let facts = facts.clone();
        Self::new(kinds, async move {
            let looked = tokio::task::spawn_blocking(move || look(&facts)).await;
            looked.unwrap_or_else(|error| Err(format!("internal error: {error}").into()))
        })
    }
}

/// Runs all checks; none takes longer than its limit and than `left`.
pub(super) async fn run_all(checks: Vec<Check>, left: Duration) -> Vec<Done> {
    let mut running = JoinSet::new();
    for (position, Check { kinds, limit, work }) in checks.into_iter().enumerate() {
        let limit = limit.min(left);
        running.spawn(async move {
            let begun = clock::now();
            let outcome = match timeout(limit, work).await {
                Ok(Ok(found)) => Outcome::Looked(found),
                Ok(Err(why)) => Outcome::Skipped(why),
                Err(_elapsed) => Outcome::Late(limit),
            };
            let took = clock::now().saturating_duration_since(begun);
            (position, Done { kinds, outcome, took })
        });
    }
    let mut done = running.join_all().await;
    done.sort_by_key(|(position, _)| *position);
    done.into_iter().map(|(_, done)| done).collect()
}

#[cfg(test)]
mod tests {
    use meshport_core::findings::{NO_DAEMON, SEED_NAME};

    use super::*;

    #[test]
    fn all_run_at_once_and_one_that_hangs_is_late() {
        let runtime = crate::cli::runtime().expect("a runtime");
        let slow =
            |kind| Check::new(&[kind], std::future::pending()).within(Duration::from_millis(200));
        let quick = Check::new(&[&NO_DAEMON], async { Ok(vec![NO_DAEMON.found("none")]) });
        let skipped = Check::new(&[&SEED_NAME], async { Err("not here".into()) });
        let begun = clock::now();
        let checks = vec![slow(&SEED_NAME), quick, slow(&SEED_NAME), skipped];
        let done = runtime.block_on(run_all(checks, Duration::from_secs(10)));
        let took = clock::now().saturating_duration_since(begun);
        assert!(took < Duration::from_millis(390), "one after the other: {took:?}");
        assert!(matches!(done[0].outcome, Outcome::Late(_)), "{done:?}");
        assert!(matches!(&done[1].outcome, Outcome::Looked(found) if found.len() == 1));
        assert!(matches!(&done[3].outcome, Outcome::Skipped(why) if *why == "not here".into()));
    }

    #[test]
    fn what_is_left_of_all_is_a_limit_too() {
        let runtime = crate::cli::runtime().expect("a runtime");
        let hangs = vec![Check::new(&[&SEED_NAME], std::future::pending())];
        let done = runtime.block_on(run_all(hangs, Duration::from_millis(20)));
        assert!(matches!(done[0].outcome, Outcome::Late(limit) if limit.as_millis() == 20));
    }
}
