//! Interactive mode: everything stays up, and lines typed into the demo stop and start apiservers.
//!
//! The daemons are ordinary processes: if one was killed and is started again by hand, the WAN
//! finds it at its new port.

use std::io::{self, BufRead as _};
use std::time::Duration;

use tokio::sync::mpsc;

use super::mesh::DemoMesh;
use super::plan::SITES;
use super::screen::Screen;
use meshport_daemon::Error;
use meshport_daemon::admin::queries::StatusRequest;

/// Lines typed faster than they are executed.
const MAX_LINES: usize = 16;
/// Interval between checks of the daemons.
const LOOK: Duration = Duration::from_secs(1);

/// The command of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Stop(usize),
    Start(usize),
    Hang(usize),
    Unready(usize),
}

const USAGE: &str = "stop SITE, start SITE, hang SITE or unready SITE; Ctrl-C ends the demo";

impl Order {
    fn parse(line: &str) -> Option<Self> {
        let (verb, site) = line.trim().split_once(char::is_whitespace)?;
        let site = SITES.iter().position(|name| *name == site.trim())?;
        Some(match verb {
            "stop" => Self::Stop(site),
            "start" => Self::Start(site),
            "hang" => Self::Hang(site),
            "unready" => Self::Unready(site),
            _ => return None,
        })
    }
}

/// Prints the instructions, and executes commands until the caller ends it.
pub(super) async fn play(mesh: &mut DemoMesh, screen: &mut Screen) -> Result<(), Error> {
    screen.tell(&guide(mesh))?;
    let mut lines = typed_lines()?;
    let mut look = tokio::time::interval(LOOK);
    loop {
        tokio::select! {
            Some(line) = lines.recv() => {
                let said = match Order::parse(&line) {
                    Some(order) => obey(order, mesh).await?,
                    None => USAGE.to_owned(),
                };
                screen.tell(&said)?;
            }
            _ = look.tick() => follow(mesh, screen).await?,
        }
    }
}

async fn obey(order: Order, mesh: &DemoMesh) -> Result<String, Error> {
    let (site, what) = match order {
        Order::Stop(site) => {
            mesh.apiserver(site).kill().await;
            (site, "is stopped")
        }
        Order::Start(site) => {
            let apiserver = mesh.apiserver(site);
            apiserver.set_ready(true);
            apiserver.unhang();
            apiserver.resume()?;
            (site, "serves")
        }
        Order::Hang(site) => {
            mesh.apiserver(site).hang();
            (site, "hangs: it accepts but never answers")
        }
        Order::Unready(site) => {
            mesh.apiserver(site).set_ready(false);
            (site, "answers, but reports that it is not ready")
        }
    };
    Ok(format!("the apiserver of {} {what}", SITES[site]))
}

/// Reports daemons that ended, and gives the WAN the ports of restarted ones.
async fn follow(mesh: &mut DemoMesh, screen: &mut Screen) -> Result<(), Error> {
    let mut found = Vec::new();
    for daemon in mesh.daemons() {
        if let Some(how) = daemon.newly_ended() {
            let config = daemon.files.config.display();
            screen.tell(&format!(
                "{} ended ({how}); start it again with:\n  {} run --config {config}",
                daemon.plan.name(),
                program()
            ))?;
        }
        if let Ok(status) = daemon.admin.ask(&StatusRequest).await {
            found.push((daemon.plan.name(), status.process.mesh_listen));
        }
    }
    for (name, real) in found {
        // Refused while the address belongs to another daemon that has just ended; the next check
        // tries again.
        let _ = mesh.shaper().set_real(&name, real);
    }
    Ok(())
}

fn guide(mesh: &mut DemoMesh) -> String {
    let curls = (0..SITES.len()).map(|site| format!("  {}   {}\n", SITES[site], mesh.curl(site)));
    let curls: String = curls.collect();
    let nodes = mesh.daemons().iter().map(|daemon| {
        let config = daemon.files.config.display();
        format!("  {:<11} {:>7}  {config}\n", daemon.plan.name(), daemon.pid())
    });
    let nodes: String = nodes.collect();
    let program = program();
    format!(
        "\nEverything stays up until Ctrl-C. Clients in each site:\n{curls}\n\
         The daemons, their process ids and configurations (logs are beside them):\n{nodes}\n\
         Ask one of them:  {program} status --config FILE     (also routes, peers, ping NAME)\n\
         Type here:        {USAGE}"
    )
}

/// This program as it was called, for lines that can be copied.
fn program() -> String {
    std::env::args().next().unwrap_or_else(|| "meshport".to_owned())
}

/// Lines of standard input, until it ends.
fn typed_lines() -> Result<mpsc::Receiver<String>, Error> {
    let (sender, lines) = mpsc::channel(MAX_LINES);
    if is_in_background() {
        return Ok(lines);
    }
    let read = move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new()
        .name("console".to_owned())
        .spawn(read)
        .map_err(Error::io("start a thread"))?;
    Ok(lines)
}

/// Whether this process is in the background of a terminal: reading from it would stop the demo.
fn is_in_background() -> bool {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // pid (name) state ppid pgrp session tty tpgid: the name may hold anything but a last ')'.
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    match (fields.get(2), fields.get(5)) {
        // -1: there is no terminal.
        (Some(own), Some(foreground)) => *foreground != "-1" && own != foreground,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_a_verb_and_a_site() {
        assert_eq!(Order::parse("stop mad"), Some(Order::Stop(0)));
        assert_eq!(Order::parse("  start   bru \n"), Some(Order::Start(2)));
        assert_eq!(Order::parse("hang ams"), Some(Order::Hang(1)));
        assert_eq!(Order::parse("unready ams"), Some(Order::Unready(1)));
        for line in ["", "stop", "stop nowhere", "mad stop", "stop mad now"] {
            assert_eq!(Order::parse(line), None, "{line:?}");
        }
    }
}
