//! `meshport demo`, and the parts that it shares with the end-to-end tests, in addition to the
//! emulated WAN in [`crate::wan`].
//!
//! * [`apiserver`] is a stand-in for a Kubernetes apiserver, with the faults real ones have.
//! * [`client`] is an HTTPS client that reports which origin answered and how long it took.
//! * [`table`] renders the live table and the summary.
//! * [`plan`], [`schedule`] and [`stats`] are pure: the nodes, the steps, the results.
//!
//! [`run()`] makes a mesh the way an operator does, runs a real daemon per node as a child process,
//! sends requests, and judges the answers. Nothing outlives the demo.

use std::time::Duration;

use meshport_config::UnixSeconds;
use tokio::signal::unix::{Signal, SignalKind, signal};

use meshport_daemon::Error;

pub mod apiserver;
pub mod browser;
pub mod client;
mod console;
mod daemon;
mod folder;
mod members;
mod mesh;
pub mod plan;
mod run;
pub mod schedule;
mod screen;
pub mod stats;
pub mod table;
pub mod wan;

pub use daemon::{VERB, end_with_parent};
pub use screen::Screen;

use client::clock;
use mesh::DemoMesh;
use plan::{DISTANCES_MS, NodePlan, SITES, STAGE};
use schedule::Schedule;
use table::Summary;

/// The options of the demo.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long requests are sent.
    pub length: Duration,
    /// Whether everything stays up afterwards, until a signal.
    pub keep_running: bool,
    /// Whether a browser is to show the page of the node that clients on the stage use.
    pub open: bool,
    /// The seed of the emulated WAN.
    pub seed: u64,
    /// The wall time, for credentials.
    pub now: UnixSeconds,
}

/// Runs the demo to its end.
///
/// # Errors
/// [`Error::Negative`] if a node does not become ready, a request failed, the nearest was not
/// chosen or a signal arrived too early; otherwise the system's error.
pub async fn run(options: &Options, screen: &mut Screen) -> Result<(), Error> {
    let mut interrupt = Interrupt::listen()?;
    let schedule = Schedule::of(options.length);
    if let Some(shortened) = schedule.shortened() {
        screen.tell(&shortened)?;
    }
    let mut mesh = tokio::select! {
        mesh = open(options, screen) => mesh?,
        () = interrupt.came() => return Err(interrupted(screen)),
    };
    let summary = tokio::select! {
        summary = run::play(&mut mesh, &schedule, screen) => summary?,
        () = interrupt.came() => return Err(interrupted(screen)),
    };
    screen.note("")?;
    screen.summary(&summary)?;
    if options.keep_running {
        tokio::select! {
            ended = console::play(&mut mesh, screen) => ended?,
            // The terminal has shown the keys of the interrupt.
            () = interrupt.came() => screen.note("")?,
        }
    }
    verdict(&summary, &mut mesh)
}

fn interrupted(screen: &mut Screen) -> Error {
    // The terminal has shown the keys of the interrupt. An output error does not matter now.
    let _ = screen.note("");
    Error::Negative("interrupted before the end; everything was removed".to_owned())
}

/// An error unless the demo showed everything that it promises. The logs of a failure are kept.
fn verdict(summary: &Summary, mesh: &mut DemoMesh) -> Result<(), Error> {
    let shortcomings = summary.shortcomings();
    if shortcomings.is_empty() {
        return Ok(());
    }
    let folder = mesh.keep_folder().display();
    Err(Error::Negative(format!(
        "{}\n  all logs and configurations: {folder}",
        shortcomings.join("; ")
    )))
}

/// A mesh in which every node is ready, introduced to the reader.
async fn open(options: &Options, screen: &mut Screen) -> Result<DemoMesh, Error> {
    let began = clock();
    screen.note(&introduction())?;
    let mut mesh = DemoMesh::start(options.seed, options.now)?;
    mesh.ready().await?;
    let took = clock().saturating_duration_since(began).as_secs_f64();
    screen.note(&format!(
        "Ready after {took:.1} s. A client in {} uses {}; try it from another terminal:\n\n  {}\n",
        SITES[STAGE],
        mesh.local(STAGE),
        mesh.curl(STAGE)
    ))?;
    screen.note(&pages(&mesh))?;
    if options.open
        && let Err(error) = browser::open(&mesh.page(STAGE))
    {
        screen.tell(&error.to_string())?;
    }
    Ok(mesh)
}

/// The address of each node's page; first the node whose clients the demo is about.
fn pages(mesh: &DemoMesh) -> String {
    let stage = mesh.page(STAGE);
    let others = mesh.pages().iter().map(|(name, page)| match *page == stage {
        true => format!("  {name:<11} {page}   the node that carries the requests below\n"),
        false => format!("  {name:<11} {page}\n"),
    });
    let others: String = others.collect();
    format!("Watch it in a browser. Each node has a dashboard with its own view:\n\n{others}")
}

fn introduction() -> String {
    let distances = DISTANCES_MS.map(|(a, b, ms)| format!("{a}-{b} {ms} ms"));
    format!(
        "Three sites on this machine, with an apiserver each, {} real daemons, and an emulated\n\
         WAN between the sites. Round trips: {}.",
        NodePlan::all().count(),
        distances.join(", ")
    )
}

/// The signals that end the demo.
struct Interrupt {
    signals: [Signal; 3],
}

impl Interrupt {
    fn listen() -> Result<Self, Error> {
        let listen = |kind| signal(kind).map_err(Error::io("listen for signals"));
        let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        let [interrupt, terminate, hangup] = kinds.map(listen);
        Ok(Self { signals: [interrupt?, terminate?, hangup?] })
    }

    async fn came(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.signals;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}
