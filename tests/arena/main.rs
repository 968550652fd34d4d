//! The arena: one schedule of faults, the same TLS upstreams, the same clients, played against
//! meshport and against the balancers people run on their nodes today, all side by side.
//!
//! Every run gets its own stage: hosts in network namespaces joined by a network in userspace
//! (`meshport_tests::net`), upstreams, daemons and rivals as real processes ([`stage`]). Clients of
//! all of them run at the same time ([`client`]), so that all have the same fault at the same
//! instant on the same machine; their observations become figures ([`score`]), tables, plots and a
//! verdict ([`bars`]).
//!
//! Needs root, `/dev/net/tun`, `ip`, `setpriv` and `unshare`. See README.md in this folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;

mod bars;
mod client;
mod contenders;
mod faults;
mod mesh;
mod plot;
mod record;
mod run;
mod score;
mod stage;
mod table;

use contenders::Contender;
use faults::Fault;
use score::Row;

/// The niceness of all processes of the arena: other work on the machine comes second.
const PRIORITY: i32 = -10;
/// How often a fault is played at most until it lasts as long as intended.
const MAX_PLAYS: u32 = 3;

/// Plays faults against meshport and its rivals, side by side.
#[derive(Debug, Parser)]
struct Arguments {
    /// Faults to play, by name; all without it
    #[arg(long, value_delimiter = ',')]
    faults: Vec<String>,
    /// Balancers to compare, by name; all without it
    #[arg(long, value_delimiter = ',')]
    balancers: Vec<String>,
    /// How often each fault is played
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,
    /// Folder for plots and the logs of every process
    #[arg(long, value_name = "DIR", default_value = "target/arena")]
    out: PathBuf,
    /// File for the rows, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Decides which packets are lost
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The least important lines meshport logs
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log_level: String,
    /// Judge by what a busy machine must still show: counts as they are, times three times as long
    #[arg(long)]
    smoke: bool,
    /// Print what can be played and compared
    #[arg(long)]
    list: bool,
}

#[expect(clippy::print_stdout, clippy::print_stderr, reason = "a command-line tool")]
fn main() -> ExitCode {
    let arguments = Arguments::parse();
    meshport_tests::process::end_children_on_panic();
    if arguments.list {
        for fault in faults::all() {
            println!("{:<18} {}", fault.name, fault.about);
        }
        for contender in contenders::ALL {
            println!("{:<18} {}", contender.name, contender.program().err().unwrap_or_default());
        }
        return ExitCode::SUCCESS;
    }
    let (faults, contenders) = match choose(&arguments) {
        Ok(chosen) => chosen,
        Err(problem) => {
            eprintln!("meshport-arena: {problem}; --list names what there is");
            return ExitCode::from(2);
        }
    };
    meshport_tests::netns::remove_stale();
    // Child processes inherit the priority. Without it the figures are noisier but not wrong.
    let _ = rustix::process::setpriority_process(None, PRIORITY);
    let mut rows = Vec::new();
    println!("{}\n", table::LEGEND);
    for fault in &faults {
        println!("== {}: {}", fault.name, fault.about);
        for number in 1..=arguments.runs {
            let folder = arguments.out.join(format!("{}-{number}", fault.name));
            let mut those = contenders.clone();
            those.retain(|contender| contender.is_ours() || !fault.relay);
            let played = play(&arguments, fault, number, &those, &folder);
            let late = played.iter().map(|row| row.late_ms).fold(0.0, f64::max);
            println!("run {number} (the load itself was late by up to {late:.0} ms)");
            println!("{}", table::of_fault(&played));
            rows.extend(played);
            if let Some(file) = &arguments.json {
                write_rows(file, &rows);
            }
        }
    }
    let verdicts = bars::judge(&rows);
    println!("{}", table::of_verdicts(&verdicts));
    let missed = verdicts.iter().filter(|verdict| match arguments.smoke {
        true => !verdict.met_loosely(),
        false => !verdict.met(),
    });
    match missed.count() {
        0 => ExitCode::SUCCESS,
        count => {
            println!("{count} bars are not met");
            ExitCode::FAILURE
        }
    }
}

/// After every run, so that its results are not lost if a later one fails.
fn write_rows(file: &Path, rows: &[Row]) {
    let text = serde_json::to_string_pretty(rows).expect("rows are plain values");
    fs::write(file, text + "\n").expect("the file of the rows can be written");
}

#[expect(clippy::print_stdout, reason = "a command-line tool")]
fn play(
    arguments: &Arguments,
    fault: &Fault,
    number: u32,
    contenders: &[Contender],
    folder: &Path,
) -> Vec<Row> {
    let seed = arguments.seed.wrapping_add(u64::from(number));
    let mut plays = 0;
    let (folder, played) = loop {
        // Results and state of an earlier run would mix with these; there may be none.
        let _ = fs::remove_dir_all(folder);
        fs::create_dir_all(folder).expect("the folder for logs can be made");
        let folder = fs::canonicalize(folder).expect("the folder is there");
        let played = run::play(fault, contenders, seed, &folder, &arguments.log_level);
        plays += 1;
        if plays == MAX_PLAYS || fault.is_of(&played.moments) {
            break (folder, played);
        }
        println!("{}: this machine healed it too late; it is played again", fault.name);
    };
    let svg = plot::draw(
        &plot::Frame {
            title: &format!("{}: {}", fault.name, fault.about),
            fault_s: played.moments.fault.as_secs_f64(),
            healed_s: played.moments.healed.map(|at| at.as_secs_f64()),
            end_s: played.moments.end.as_secs_f64(),
        },
        &played.records,
    );
    let file = arguments.out.join(format!("{}-{number}.svg", fault.name));
    fs::write(file, svg).expect("the plot can be written");
    let (records, since) = (&played.records, played.moments.fault);
    let raw = [
        ("connections.csv", record::connections_csv(records, since)),
        ("held.csv", record::held_csv(records, since)),
    ];
    for (name, text) in raw {
        fs::write(folder.join(name), text).expect("the run's folder can be written");
    }
    let victims: Vec<&str> = fault.victims.iter().map(|at| stage::UPSTREAMS[*at]).collect();
    let row = |(name, record): &(String, record::Record)| Row {
        fault: fault.name.to_owned(),
        balancer: name.clone(),
        run: number,
        ..score::score(record, played.moments, &victims)
    };
    played.records.iter().map(row).collect()
}

/// The faults to play and the contenders that can run; the others are listed.
#[expect(clippy::print_stderr, reason = "a command-line tool")]
fn choose(arguments: &Arguments) -> Result<(Vec<Fault>, Vec<Contender>), String> {
    let faults = faults::all();
    let known = |name: &String| faults.iter().any(|fault| fault.name == name);
    if let Some(unknown) = arguments.faults.iter().find(|name| !known(name)) {
        return Err(format!("there is no fault {unknown}"));
    }
    let known = |name: &String| contenders::ALL.iter().any(|it| it.name == name);
    if let Some(unknown) = arguments.balancers.iter().find(|name| !known(name)) {
        return Err(format!("there is no balancer {unknown}"));
    }
    let asked =
        |names: &[String], name: &str| names.is_empty() || names.iter().any(|it| it == name);
    let faults = faults.into_iter().filter(|fault| asked(&arguments.faults, fault.name)).collect();
    let mut contenders = Vec::new();
    for contender in contenders::ALL.iter().filter(|it| asked(&arguments.balancers, it.name)) {
        match contender.program() {
            Ok(_) => contenders.push(*contender),
            Err(problem) => eprintln!("NOT RUN: {}: {problem}", contender.name),
        }
    }
    Ok((faults, contenders))
}
