//! The show: a client in the stage's site asks its local address at a steady rate, while the
//! apiserver there stops and comes back as the story says.
//!
//! Bounds: the client asks [`RATE`] times per second and gives up after
//! [`super::client::DEFAULT_TIMEOUT`], so at most 100 requests are under way.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use super::client::{Answer, Client, ClientError, clock};
use super::mesh::DemoMesh;
use super::plan::{SITES, STAGE, distance, nearest, origin_name};
use super::score::{Request, Score};
use super::screen::Screen;
use super::story::Story;
use super::table::{Board, OriginRow, Summary};
use meshport_daemon::Error;

/// Requests per second, each on a new connection.
const RATE: u32 = 20;
/// Between two drawings of the table.
const REDRAW: Duration = Duration::from_millis(200);
/// How long a stopping apiserver serves what it has begun: far longer than one answer takes.
const STOPPING: Duration = Duration::from_secs(1);
/// A time that does not come.
const NEVER: Duration = Duration::from_secs(365 * 24 * 3600);

type Outcome = (Instant, Result<Answer, ClientError>);

struct Show<'a> {
    mesh: &'a mut DemoMesh,
    screen: &'a mut Screen,
    client: Client,
    requests: JoinSet<Outcome>,
    began: Instant,
    score: Score,
    board: Board,
}

/// What the story does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cue {
    Stop,
    Cut,
    Restart,
    End,
}

/// Plays the story. Every daemon has to live through it.
pub(super) async fn play(
    mesh: &mut DemoMesh,
    story: &Story,
    screen: &mut Screen,
) -> Result<Summary, Error> {
    let client = mesh.client(STAGE)?;
    let row = |site| OriginRow::new(origin_name(site), distance(STAGE, site));
    let phase = "all apiservers serve, and the nearest answers".to_owned();
    let board = Board::new(phase, (0..SITES.len()).map(row).collect());
    let mut show = Show {
        mesh,
        screen,
        client,
        requests: JoinSet::new(),
        began: clock(),
        score: Score::default(),
        board,
    };
    show.run(story).await?;
    show.screen.draw_last(&show.board)?;
    Ok(show.score.summary(story))
}

/// The cues of a story, in order.
fn cues(story: &Story) -> Vec<(Duration, Cue)> {
    let stop = story.stop_at.map(|at| (at, Cue::Stop));
    let cut = story.stop_at.map(|at| (at + STOPPING, Cue::Cut));
    let restart = story.restart_at.map(|at| (at, Cue::Restart));
    stop.into_iter().chain(cut).chain(restart).chain([(story.length, Cue::End)]).collect()
}

impl Show<'_> {
    async fn run(&mut self, story: &Story) -> Result<(), Error> {
        let mut ticks = tokio::time::interval(Duration::from_secs(1) / RATE);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut redraw = tokio::time::interval(REDRAW);
        redraw.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut cues = cues(story).into_iter().peekable();
        loop {
            let (due, cue) = cues.peek().copied().unwrap_or((NEVER, Cue::End));
            tokio::select! {
                () = tokio::time::sleep_until((self.began + due).into()) => {
                    cues.next();
                    match cue {
                        Cue::Stop => self.stop().await,
                        Cue::Cut => self.mesh.apiserver(STAGE).cut_connections(),
                        Cue::Restart => self.restart()?,
                        Cue::End => break,
                    }
                    if cue != Cue::Cut {
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
                let was_home = self.score.is_home();
                self.score.answered(request, &answer.origin);
                if self.score.is_home() && !was_home {
                    self.board.phase = format!("traffic is back: {} answers", answer.origin);
                }
                self.board.answered(&answer.origin, answer.total);
            }
            Err(error) => {
                self.board.failed(error);
                self.score.failed();
            }
        }
    }

    /// As an apiserver that is told to terminate: it takes no new connection, ends what it has
    /// begun, and is gone.
    async fn stop(&mut self) {
        self.mesh.apiserver(STAGE).refuse().await;
        self.score.stopped(self.elapsed());
        let next = nearest(STAGE, |site| site != STAGE).map(origin_name).unwrap_or_default();
        self.board.origins[STAGE].trouble = Some("stopped".to_owned());
        self.board.phase =
            format!("the apiserver of {} is stopped: {next} takes over", SITES[STAGE]);
    }

    fn restart(&mut self) -> Result<(), Error> {
        self.mesh.apiserver(STAGE).resume()?;
        self.score.restarted(self.elapsed());
        self.board.origins[STAGE].trouble = None;
        self.board.phase = format!(
            "the apiserver of {} is back: traffic returns when that has lasted a second",
            SITES[STAGE]
        );
        Ok(())
    }

    fn draw(&mut self) -> Result<(), Error> {
        self.mesh.check()?;
        self.board.elapsed = self.elapsed();
        self.screen.draw(&self.board)
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
            let story = Story::of(Duration::from_secs(seconds));
            let cues = cues(&story);
            assert!(cues.is_sorted_by_key(|(at, _)| *at), "{seconds}: {cues:?}");
            assert_eq!(cues.last(), Some(&(story.length, Cue::End)));
        }
    }
}
