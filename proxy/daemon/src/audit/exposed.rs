//! Audit lines about clients of exposed listeners.
//!
//! Each listener has a budget for sessions and one for refusals, so that a flood of refused clients
//! hides no session.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use meshport_config::counters::Counter;
use meshport_config::{ListenerName, ServiceName};
use meshport_core::credit::Rate;

use super::{Audit, line};
use crate::clock;
use crate::log_budget::{FEW, LogBudget};
use crate::sessions::exposed::{ExposeCount, Tally};

/// Lines about a listener's sessions: a burst of reconnecting clients, then ten a second.
const SESSIONS: Rate = Rate { most: 1_000, each: Duration::from_millis(100) };

/// The budgets of lines of one listener.
#[derive(Debug)]
pub(crate) struct ExposedBudgets {
    sessions: Mutex<LogBudget>,
    /// Of lines about refused clients.
    refusals: Mutex<LogBudget>,
}

impl ExposedBudgets {
    /// Full budgets.
    pub(crate) fn new(now: Instant) -> Self {
        let full = |rate| Mutex::new(LogBudget::new(rate, now));
        Self { sessions: full(SESSIONS), refusals: full(FEW) }
    }
}

/// A client of an exposed listener.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExposedClient<'a> {
    pub(crate) listener: &'a ListenerName,
    pub(crate) client: SocketAddr,
    /// The load balancer that names it, if any.
    pub(crate) balancer: Option<IpAddr>,
}

impl Audit {
    /// Whether a line may be written now; if so, the number of lines suppressed before it.
    fn take_of(&self, budget: &Mutex<LogBudget>) -> Option<u64> {
        let mut budget = budget.lock().unwrap_or_else(PoisonError::into_inner);
        self.counted(budget.take(clock::now()))
    }

    /// A client was refused.
    pub(crate) fn refused_client(
        &self,
        budgets: &ExposedBudgets,
        who: &ExposedClient<'_>,
        why: ExposeCount,
    ) {
        let Some(suppressed) = self.take_of(&budgets.refusals) else { return };
        let ExposedClient { listener, client, balancer } = who;
        let (balancer, reason) = (balancer.map(|it| it.to_string()), why.row().value);
        line!(suppressed, "client-refused", %listener, %client, balancer, reason);
    }
}

/// An open session of a client; its end is logged on drop.
#[derive(Debug)]
pub(crate) struct ExposedSession<'a> {
    audit: &'a Audit,
    budgets: &'a ExposedBudgets,
    who: ExposedClient<'a>,
    service: &'a ServiceName,
    carried: &'a Arc<Tally>,
    begun: Instant,
}

impl<'a> ExposedSession<'a> {
    /// Logs its start.
    pub(crate) fn begin(
        audit: &'a Audit,
        budgets: &'a ExposedBudgets,
        who: &ExposedClient<'a>,
        service: &'a ServiceName,
        carried: &'a Arc<Tally>,
    ) -> Self {
        if let Some(suppressed) = audit.take_of(&budgets.sessions) {
            let ExposedClient { listener, client, balancer } = who;
            let balancer = balancer.map(|it| it.to_string());
            line!(
                suppressed, "client-session-started",
                %listener, %client, balancer, %service
            );
        }
        Self { audit, budgets, who: *who, service, carried, begun: clock::now() }
    }
}

impl Drop for ExposedSession<'_> {
    fn drop(&mut self) {
        let Some(suppressed) = self.audit.take_of(&self.budgets.sessions) else { return };
        let ExposedClient { listener, client, .. } = self.who;
        let seconds = clock::now().saturating_duration_since(self.begun).as_secs();
        line!(
            suppressed, "client-session-ended",
            %listener, %client, service = %self.service, seconds,
            sent_bytes = self.carried.down(), received_bytes = self.carried.up()
        );
    }
}
