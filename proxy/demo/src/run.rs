//! The show: a client in the stage's site asks its local address at a steady rate, while the
//! apiserver there stops and comes back as the schedule says.
//!
//! Bounds: the client asks [`RATE`] times per second and gives up after
//! [`super::client::DEFAULT_TIMEOUT`], so at most 100 requests are in progress.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use super::client::{Answer, Client, ClientError, clock};
use super::mesh::DemoMesh;
use super::plan::{SITES, STAGE, distance, nearest, origin_name};
use super::schedule::Schedule;
use super::screen::Screen;
use super::stats::{Request, Stats};
use super::table::{OriginRow, Summary, View};
use meshport_daemon::Error;

/// Requests per second, each on a new connection.
const RATE: u32 = 20;
/// Interval between redraws of the table.
const REDRAW: Duration = Duration::from_millis(200);
/// How long a stopping apiserver serves open requests: far longer than one answer takes.
const STOPPING: Duration = Duration::from_secs(1);
/// A time that is never reached.
const NEVER: Duration = Duration::from_secs(365 * 24 * 3600);

type Outcome = (Instant, Result<Answer, ClientError>);

struct Run<'a> {
    mesh: &'a mut DemoMesh,
    screen: &'a mut Screen,
    client: Client,
    requests: JoinSet<Outcome>,
    began: Instant,
    stats: Stats,
    view: View,
}

/// The next step of the schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Stop,
    Cut,
    Restart,
    End,
}

/// Plays the schedule. Every daemon must survive it.
pub(super) async fn play(
    mesh: &mut DemoMesh,
    schedule: &Schedule,
    screen: &mut Screen,
) -> Result<Summary, Error> {
    let client = mesh.client(STAGE)?;
    let row = |site| OriginRow::new(origin_name(site), distance(STAGE, site));
    let phase = "all apiservers serve, and the nearest answers".to_owned();
    let view = View::new(phase, (0..SITES.len()).map(row).collect());
    let mut run = Run {
        mesh,
        screen,
        client,
        requests: JoinSet::new(),
        began: clock(),
        stats: Stats::default(),
        view,
    };
    run.run(schedule).await?;
    run.screen.draw_last(&run.view)?;
    Ok(run.stats.summary(schedule))
}

/// The steps of a schedule, in order.
fn steps(schedule: &Schedule) -> Vec<(Duration, Step)> {
    let stop = schedule.stop_at.map(|at| (at, Step::Stop));
    let cut = schedule.stop_at.map(|at| (at + STOPPING, Step::Cut));
    let restart = schedule.restart_at.map(|at| (at, Step::Restart));
    stop.into_iter().chain(cut).chain(restart).chain([(schedule.length, Step::End)]).collect()
}

impl Run<'_> {
    async fn run(&mut self, schedule: &Schedule) -> Result<(), Error> {
        let mut ticks = tokio::time::interval(Duration::from_secs(1) / RATE);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut redraw = tokio::time::interval(REDRAW);
        redraw.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut steps = steps(schedule).into_iter().peekable();
        loop {
            let (due, step) = steps.peek().copied().unwrap_or((NEVER, Step::End));
            tokio::select! {
                () = tokio::time::sleep_until((self.began + due).into()) => {
                    steps.next();
                    match step {
                        Step::Stop => self.stop().await,
                        Step::Cut => self.mesh.apiserver(STAGE).cut_connections(),
                        Step::Restart => self.restart()?,
                        Step::End => break,
                    }
                    if step != Step::Cut {
                        self.draw()?;
                        self.ask();
                    }
                }
                Some(outcome) = self.requests.join_next() => self.take(outcome.ok()),
                _ = ticks.tick() => self.ask(),
                _ = redraw.tick() => self.draw()?,
            }
        }
        // Each of them ends by its own timeout.
        while let Some(outcome) = self.requests.join_next().await {
            self.take(outcome.ok());
        }
        self.draw()
    }

    fn ask(&mut self) {
        let client = self.client.clone();
        self.requests.spawn(async move {
            let started = clock();
            (started, client.whoami().await)
        });
    }

    fn take(&mut self, outcome: Option<Outcome>) {
        // Nothing aborts a request, and none of them panics.
        let Some((started, outcome)) = outcome else { return };
        let at = |instant: Instant| instant.saturating_duration_since(self.began);
        let request = Request { started: at(started), finished: at(clock()) };
        match outcome {
            Ok(answer) => {
                let was_home = self.stats.is_home();
                self.stats.answered(request, &answer.origin);
                if self.stats.is_home() && !was_home {
                    self.view.phase = format!("traffic is back: {} answers", answer.origin);
                }
                self.view.answered(&answer.origin, answer.total);
            }
            Err(error) => {
                self.view.failed(error);
                self.stats.failed();
            }
        }
    }

    /// Like an apiserver that gets SIGTERM: it accepts no new connections, finishes open requests,
    /// and ends.
    async fn stop(&mut self) {
        self.mesh.apiserver(STAGE).refuse().await;
        self.stats.stopped(self.elapsed());
        let next = nearest(STAGE, |site| site != STAGE).map(origin_name).unwrap_or_default();
        self.view.origins[STAGE].trouble = Some("stopped".to_owned());
        self.view.phase =
            format!("the apiserver of {} is stopped: {next} takes over", SITES[STAGE]);
    }

    fn restart(&mut self) -> Result<(), Error> {
        self.mesh.apiserver(STAGE).resume()?;
        self.stats.restarted(self.elapsed());
        self.view.origins[STAGE].trouble = None;
        self.view.phase = format!(
            "the apiserver of {} is back: traffic returns when that has lasted a second",
            SITES[STAGE]
        );
        Ok(())
    }

    fn draw(&mut self) -> Result<(), Error> {
        self.mesh.check()?;
        self.view.elapsed = self.elapsed();
        self.screen.draw(&self.view)
    }

    fn elapsed(&self) -> Duration {
        clock().saturating_duration_since(self.began)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cues_come_in_order_and_end_with_the_end() {
        for seconds in 1..100 {
            let schedule = Schedule::of(Duration::from_secs(seconds));
            let steps = steps(&schedule);
            assert!(steps.is_sorted_by_key(|(at, _)| *at), "{seconds}: {steps:?}");
            assert_eq!(steps.last(), Some(&(schedule.length, Step::End)));
        }
    }
}
