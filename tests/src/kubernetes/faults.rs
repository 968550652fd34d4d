//! Faults of an apiserver, and how they are undone.

use std::time::Duration;

use super::{Cluster, START_LIMIT};
use crate::wait;

/// Number of consecutive reads that prove that an apiserver reaches etcd, and the deadline of one.
const REACHES: usize = 3;
const PROMPT: Duration = Duration::from_secs(1);

/// A fault of one control-plane host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// `kill -9` of the apiserver.
    Kill,
    /// SIGTERM: new connections are refused at once, open ones are served for up to 60 s.
    Terminate,
    /// SIGTERM with `--shutdown-delay-duration=10s`: `/readyz` fails first, then as above.
    TerminateLater,
    /// SIGSTOP: the kernel still accepts connections, nothing else happens.
    Hang,
    /// The host is lost: packets to and from it are dropped silently.
    Vanish,
}

/// The flag of [`Fault::TerminateLater`].
const DELAY: &str = "--shutdown-delay-duration=10s";

impl Fault {
    /// Every fault.
    pub const ALL: [Self; 5] =
        [Self::Kill, Self::Terminate, Self::TerminateLater, Self::Hang, Self::Vanish];

    /// Its name in a table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill -9",
            Self::Terminate => "SIGTERM",
            Self::TerminateLater => "SIGTERM, delay 10 s",
            Self::Hang => "SIGSTOP",
            Self::Vanish => "black hole",
        }
    }

    /// Flags that the apiserver must have been started with.
    pub fn flags(self) -> &'static [&'static str] {
        if self == Self::TerminateLater { &[DELAY] } else { &[] }
    }

    /// Whether open watches must continue as if nothing had happened.
    pub fn is_graceful(self) -> bool {
        matches!(self, Self::Terminate | Self::TerminateLater)
    }

    /// How long the consequences are observed.
    pub fn span(self) -> Duration {
        // The delay must end within it.
        Duration::from_secs(if self == Self::TerminateLater { 15 } else { 10 })
    }

    /// Injects the fault on the control-plane host of that number.
    pub fn strike(self, cluster: &mut Cluster, number: usize) {
        match self {
            Self::Kill => cluster.kill_apiserver(number),
            Self::Terminate | Self::TerminateLater => cluster.apiserver(number).signal("TERM"),
            Self::Hang => cluster.apiserver(number).signal("STOP"),
            Self::Vanish => cluster.network.isolate(number, true),
        }
    }

    /// Repairs the host; its apiserver then runs with `flags`.
    pub fn heal(self, cluster: &mut Cluster, number: usize, flags: &[&str]) {
        match self {
            Self::Vanish => cluster.network.isolate(number, false),
            Self::Hang => cluster.apiserver(number).signal("CONT"),
            Self::Kill | Self::Terminate | Self::TerminateLater => {}
        }
        let again = !matches!(self, Self::Vanish | Self::Hang) || flags != self.flags();
        if again {
            cluster.kill_apiserver(number);
            cluster.spawn_apiserver(number, flags);
        }
        cluster.apiserver_is_ready(number);
        if self == Self::Vanish {
            // It reports ready while its connections to etcd are still dead, and then answers with
            // errors, which this test is not about.
            let own = cluster.kubectl_direct(number);
            wait::until("the apiserver reaches etcd again", START_LIMIT, || {
                let calls: Vec<_> = (0..REACHES).map(|_| own.call(&["get", "ns"])).collect();
                calls.iter().all(|it| it.succeeded && it.took < PROMPT).then_some(())
            });
        }
    }
}
