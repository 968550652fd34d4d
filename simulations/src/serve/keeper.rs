//! The thread that owns the world: advances its time and answers queries about it.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::oneshot;

use super::pace::{MAX_SPEED, MIN_SPEED, Pace};
use crate::Error;
use crate::scenario::Event;
use crate::world::World;
use crate::world::live::Truth;

/// Virtual time that passes between two checks for requests, and the share of wall time for it.
const SLICE: Duration = Duration::from_millis(100);
const SLICE_OF_WALL: Duration = Duration::from_millis(20);
/// Interval between advances of the world if there are no requests.
const TURN: Duration = Duration::from_millis(20);
/// Most events in one request: enough to cut one site off from all others, and more.
pub(super) const MAX_EVENTS: usize = 300;

/// A request with the channel for its answer.
pub(super) struct Asked {
    pub(super) what: Question,
    pub(super) answer: oneshot::Sender<Answer>,
}

/// A document, or the reason for a refusal.
pub(super) type Answer = Result<String, Refusal>;

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The request is not valid here.
    Wrong(String),
    /// There is no node of that name, or it is not running.
    Absent(String),
}

/// A request to the world.
#[derive(Debug)]
pub(super) enum Question {
    /// The view of this node, or of the first that runs.
    View(Option<String>),
    /// The true state of the world; with many sites, only the paths of this one.
    World(Option<String>),
    /// Makes events happen.
    Happen(Vec<Event>),
    /// Changes the speed.
    Pace(PaceChange),
}

/// A change of speed; absent values stay.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PaceChange {
    speed: Option<f64>,
    paused: Option<bool>,
}

/// The world, the pace of its time, and its name.
#[derive(Debug, Serialize)]
struct State<'a> {
    scenario: &'a str,
    speed: f64,
    actual_speed: f64,
    paused: bool,
    #[serde(flatten)]
    truth: Truth,
}

/// See the module's description.
pub(super) struct Keeper {
    world: World,
    pace: Pace,
    scenario: String,
    start: Instant,
}

impl Keeper {
    pub(super) fn new(world: World, scenario: String, speed: f64, is_paused: bool) -> Self {
        #[expect(clippy::disallowed_methods, reason = "the wall that the world's time follows")]
        let start = Instant::now();
        Self { world, pace: Pace::new(speed, is_paused), scenario, start }
    }

    /// Runs until no more requests can arrive.
    pub(super) fn keep(mut self, asked: &Receiver<Asked>) {
        loop {
            match asked.recv_timeout(if self.advance() { Duration::ZERO } else { TURN }) {
                Ok(Asked { what, answer }) => {
                    // The caller may have gone.
                    let _ = answer.send(self.answer(what));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn wall(&self) -> Duration {
        self.start.elapsed()
    }

    /// Advances time; whether it is late.
    fn advance(&mut self) -> bool {
        let began = self.wall();
        let target = self.pace.target(began);
        while self.world.time() < target && self.wall() - began < SLICE_OF_WALL {
            let until = target.min(self.world.time() + SLICE);
            if !self.world.step(until) {
                break;
            }
        }
        let (wall, world) = (self.wall(), self.world.time());
        self.pace.reached(wall, world);
        world < target && wall - began >= SLICE_OF_WALL
    }

    fn answer(&mut self, what: Question) -> Answer {
        match what {
            Question::View(name) => self.view(name),
            Question::World(site) => Ok(self.state(site.as_deref())),
            Question::Happen(events) => {
                for event in &events {
                    self.world.strike(event).map_err(|error| Refusal::Wrong(error.to_string()))?;
                }
                Ok(self.state(None))
            }
            Question::Pace(PaceChange { speed, paused }) => {
                let speed = speed.unwrap_or(self.pace.speed());
                check_speed(speed).map_err(Refusal::Wrong)?;
                let paused = paused.unwrap_or(self.pace.is_paused());
                self.pace.set(speed, paused, self.wall(), self.world.time());
                Ok(self.state(None))
            }
        }
    }

    fn view(&self, name: Option<String>) -> Answer {
        let first = || self.world.first_running().map(str::to_owned);
        let Some(name) = name.or_else(first) else {
            return Err(Refusal::Absent("no node runs".into()));
        };
        match self.world.view(&name) {
            Some(view) => Ok(serde_json::to_string(&view).expect("a view is JSON")),
            None => Err(Refusal::Absent(format!("{name} does not run"))),
        }
    }

    fn state(&self, site: Option<&str>) -> String {
        let state = State {
            scenario: &self.scenario,
            speed: self.pace.speed(),
            actual_speed: (self.pace.actual() * 100.0).round() / 100.0,
            paused: self.pace.is_paused(),
            truth: self.world.truth(site),
        };
        json!(state).to_string()
    }
}

/// Whether time may pass at this speed.
pub(crate) fn check_speed(speed: f64) -> Result<(), String> {
    let fits = (MIN_SPEED..=MAX_SPEED).contains(&speed);
    let wrong = || format!("a speed is a number from {MIN_SPEED} to {MAX_SPEED}");
    fits.then_some(()).ok_or_else(wrong)
}

/// Starts the thread of a world.
pub(super) fn start(
    keeper: impl FnOnce() -> Result<Keeper, Error> + Send + 'static,
    questions: usize,
) -> Result<SyncSender<Asked>, Error> {
    let (ask, asked) = std::sync::mpsc::sync_channel(questions);
    let (ready, started) = std::sync::mpsc::sync_channel(1);
    let run = move || match keeper() {
        Ok(keeper) => {
            let _ = ready.send(Ok(()));
            keeper.keep(&asked);
        }
        Err(error) => {
            let _ = ready.send(Err(error));
        }
    };
    let thread = std::thread::Builder::new().name("world".into()).spawn(run);
    thread.map_err(|error| Error::Machine(format!("no thread for the world: {error}")))?;
    let gone = |_| Error::Machine("the world ended at its beginning".into());
    started.recv().map_err(gone)??;
    Ok(ask)
}
