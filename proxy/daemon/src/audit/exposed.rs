//! Audit lines about clients of exposed listeners.
//!
//! Each listener has a budget for sessions and one for refusals, so that a flood of refused clients
//! hides no session.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use meshport_config::counters::Counter;
use meshport_config::{ListenerName, ServiceName};
use meshport_core::credit::{Credit, Rate};
use tracing::info;

use super::Audit;
use crate::clock;
use crate::sessions::exposed::{ExposeCount, Tally};

/// Lines about a listener's sessions: a burst of reconnecting clients, then ten a second.
const SESSIONS: Rate = Rate { most: 1_000, each: Duration::from_millis(100) };
/// Lines about refused clients of one listener.
const REFUSALS: Rate = Rate { most: 20, each: Duration::from_secs(1) };

/// The budget of lines of one listener.
#[derive(Debug)]
pub(crate) struct ExposedBudgets {
    sessions: Mutex<Budget>,
    refusals: Mutex<Budget>,
}

#[derive(Debug)]
struct Budget {
    credit: Credit,
    suppressed: u64,
}

impl ExposedBudgets {
    /// Full budgets.
    pub(crate) fn new(now: Instant) -> Self {
        let full = |rate| Mutex::new(Budget { credit: Credit::full(rate, now), suppressed: 0 });
        Self { sessions: full(SESSIONS), refusals: full(REFUSALS) }
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
    fn take_of(&self, budget: &Mutex<Budget>) -> Option<u64> {
        let mut budget = budget.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = budget.credit.take(clock::now());
        let count = if taken { &self.0.written } else { &self.0.held_back };
        count.fetch_add(1, Ordering::Relaxed);
        if !taken {
            budget.suppressed += 1;
            return None;
        }
        Some(std::mem::take(&mut budget.suppressed))
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
        info!(
            target: "audit",
            event = "client-refused",
            %listener, %client, balancer, reason, suppressed,
        );
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
            info!(
                target: "audit",
                event = "client-session-started",
                %listener, %client, balancer, %service, suppressed,
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
        info!(
            target: "audit",
            event = "client-session-ended",
            %listener, %client, service = %self.service, seconds,
            sent_bytes = self.carried.down(), received_bytes = self.carried.up(), suppressed,
        );
    }
}
