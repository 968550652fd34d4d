//! Faults of a node in a group whose address is held by meshport, or by keepalived with haproxy.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use super::wires::{Net, Wires};

/// Nodes that hold an address in turn, before apiservers.
pub(super) trait Group {
    fn wires(&self) -> &Wires;
    /// Where clients connect.
    fn target(&self) -> SocketAddr;
    /// What signs the apiservers' certificates.
    fn authority(&self) -> PathBuf;
    /// Those processes of a node that hold the address, or its apiserver.
    fn processes(&self, name: &str, part: Part) -> Vec<String>;
    /// Starts those again that have ended.
    fn start(&mut self, name: &'static str, part: Part);
    /// Shows the processes of a node another time of day; `false` if it cannot.
    fn set_clock(&mut self, name: &str, offset: &str) -> bool;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Daemon,
    Apiserver,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    Killed(Part),
    Stopped(Part),
    /// All processes are gone, and the cables have no carrier.
    PowerOff,
    Cut(Net),
    /// The time of day is another one.
    Clock,
}

impl Fault {
    /// All of them.
    pub(super) const ALL: [Self; 8] = [
        Self::Killed(Part::Daemon),
        Self::Killed(Part::Apiserver),
        Self::Stopped(Part::Daemon),
        Self::Stopped(Part::Apiserver),
        Self::PowerOff,
        Self::Cut(Net::Lan),
        Self::Cut(Net::Mesh),
        Self::Clock,
    ];

    /// Whether a holder that it happens to is silent.
    pub(super) fn ends_the_holder(self) -> bool {
        matches!(self, Self::Killed(Part::Daemon) | Self::Stopped(Part::Daemon) | Self::PowerOff)
    }

    pub(super) fn strike(self, group: &mut dyn Group, name: &'static str) {
        let wires = group.wires();
        match self {
            Self::Killed(part) => Wires::signal(&group.processes(name, part), "KILL"),
            Self::Stopped(part) => Wires::signal(&group.processes(name, part), "STOP"),
            Self::PowerOff => {
                // First, so that nothing says goodbye.
                for net in [Net::Lan, Net::Mesh] {
                    wires.carry(name, net, false);
                }
                Wires::signal(&wires.processes(name, None), "KILL");
            }
            Self::Cut(net) => wires.cut(name, net),
            Self::Clock => {
                group.set_clock(name, "+1h");
            }
        }
    }

    /// Undoes it.
    pub(super) fn mend(self, group: &mut dyn Group, name: &'static str) {
        let wires = group.wires();
        match self {
            Self::Killed(part) => group.start(name, part),
            Self::Stopped(part) => Wires::signal(&group.processes(name, part), "CONT"),
            Self::PowerOff => {
                for net in [Net::Lan, Net::Mesh] {
                    wires.carry(name, net, true);
                }
                group.start(name, Part::Apiserver);
                group.start(name, Part::Daemon);
            }
            Self::Cut(net) => wires.heal(name, net),
            Self::Clock => {
                group.set_clock(name, "+0h");
            }
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Killed(Part::Daemon) => "kill -9 of the daemon",
            Self::Killed(Part::Apiserver) => "kill -9 of its apiserver",
            Self::Stopped(Part::Daemon) => "SIGSTOP of the daemon",
            Self::Stopped(Part::Apiserver) => "SIGSTOP of its apiserver",
            Self::PowerOff => "power off",
            Self::Cut(Net::Lan) => "its LAN cut",
            Self::Cut(Net::Mesh) => "its mesh cut",
            Self::Clock => "its clock an hour ahead",
        })
    }
}
