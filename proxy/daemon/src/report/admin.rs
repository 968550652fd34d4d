//! What the admin server reports of itself.

use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use meshport_config::counters;
use meshport_config::counters::{Counter, Counters, SharedCounters};
use meshport_core::credit::Rate;
use meshport_core::findings::{ADDRESS_TAKEN, Finding};
use tracing::{debug, warn};

use crate::clock;
use crate::log_budget::LogBudget;
use crate::sessions::claim::Loss;
use crate::sessions::client::ClientId;

/// Lines about connections that are reset: a flood is told once, and then once a minute.
const LINES: Rate = Rate { most: 1, each: Duration::from_secs(60) };

counters! {
    /// Connections that the admin server refused.
    pub(crate) enum AdminCount {
        "meshport_admin_refused_total" by "reason" {
            /// Reset because their user opens too many on the loopback port.
            OverPace = "over-pace",
            /// Closed because requests are answered on all connections that could make room.
            OverLimit = "over-limit",
        }
    }
}

/// The admin server's loopback port.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum AdminHttp {
    /// It is off, or cannot be opened for a reason that only the log has.
    #[default]
    Off,
    /// It is bound to this address.
    Open(SocketAddr),
    /// The configured address is lost.
    Lost(SocketAddr, Loss),
}

/// Shared by the server and by what reports of it.
#[derive(Debug, Default)]
pub(crate) struct AdminFacts {
    refused: SharedCounters<AdminCount, { AdminCount::ALL.len() }>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    http: AdminHttp,
    /// Why the socket, which was removed, cannot be created again.
    lost_socket: Option<String>,
    lines: Option<LogBudget>,
}

impl AdminFacts {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The loopback port now.
    pub(crate) fn http(&self) -> AdminHttp {
        self.state().http
    }

    /// Takes what became of the loopback port.
    pub(crate) fn note_http(&self, http: AdminHttp) {
        self.state().http = http;
    }

    /// Takes whether the socket is lost.
    pub(crate) fn note_socket(&self, lost: Option<String>) {
        self.state().lost_socket = lost;
    }

    /// Counts a refused connection of this user, and logs it.
    pub(crate) fn note_refused(&self, who: ClientId, why: AdminCount) {
        self.refused.bump(why);
        if why != AdminCount::OverPace {
            return debug!(%who, "admin connection refused: all slots are busy");
        }
        let now = clock::now();
        let line = self.state().lines.get_or_insert_with(|| LogBudget::new(LINES, now)).take(now);
        if let Some(held_back) = line {
            warn!(
                %who, held_back,
                "connections to the loopback port (admin.http) are reset: their user opens too \
                 many. Find the program with `ss -tnp`; other users are unaffected"
            );
        }
    }

    /// The refused connections.
    pub(crate) fn refused(&self) -> Counters<AdminCount, { AdminCount::ALL.len() }> {
        self.refused.read()
    }

    /// That the socket is lost, if it is.
    pub(crate) fn lost_socket(&self) -> Option<Finding> {
        let why = self.state().lost_socket.clone()?;
        let remedy = "Create the socket's folder if it is gone, and restart the daemon: in its \
                      sandbox it writes only in folders that exist at its start";
        let detail = format!("the admin socket was removed and cannot be created again ({why})");
        Some(Finding { remedy: remedy.into(), ..ADDRESS_TAKEN.found(detail) })
    }
}
