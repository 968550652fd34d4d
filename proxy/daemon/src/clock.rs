//! The only place of the daemon that reads the clocks of the operating system.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use meshport_config::UnixSeconds;
use meshport_core::believed::{Believed, DOUBT, Jump};
use meshport_core::vip::boot_time::BootTime;
use rustix::time::{ClockId, clock_gettime};
use tracing::{info, warn};

/// Monotonic time. Follows tokio's clock, so that a paused runtime stops it too.
#[expect(clippy::disallowed_methods, reason = "the daemon's one reading of monotonic time")]
pub fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Time since the machine started, suspension included; the clock of virtual addresses.
pub(crate) fn boot() -> BootTime {
    BootTime::new(Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default())
}

/// Time that this machine was suspended since its start. Both clocks bypass a simulated machine,
/// where their difference stays the same.
fn suspended() -> Duration {
    let [boot, awake] = [ClockId::Boottime, ClockId::Monotonic].map(clock_gettime);
    Duration::try_from(boot - awake).unwrap_or_default()
}

/// One per process, so that all its parts agree.
static BELIEVED: Mutex<Believed> = Mutex::new(Believed::new());

/// Notes that a verified credential is not valid before `begins`.
pub(crate) fn note_start(begins: UnixSeconds) {
    BELIEVED.lock().unwrap_or_else(PoisonError::into_inner).handle_evidence(begins);
}

/// Notes that this node's own credential is not valid before `begins`.
pub(crate) fn note_own(begins: UnixSeconds) {
    BELIEVED.lock().unwrap_or_else(PoisonError::into_inner).handle_own(begins);
}

/// Wall time as far as it is believed, for credentials and logs only. A clock before 1970 reads as
/// 1970.
#[expect(clippy::disallowed_methods, reason = "beside the wall clock, also in a paused runtime")]
pub fn wall() -> UnixSeconds {
    let mut believed = BELIEVED.lock().unwrap_or_else(PoisonError::into_inner);
    let before = believed.lead();
    let time = believed.handle_reading(since_1970(), Instant::now() + suspended());
    let (after, jumped) = (believed.lead(), believed.jumped());
    drop(believed);
    match (before, after) {
        (None, Some(lead)) => warn!(
            ahead_s = lead.as_secs(),
            "the system clock jumped ahead; credentials are checked against the former time until \
             the jump has lasted for {} s",
            DOUBT.as_secs()
        ),
        (Some(_), None) if jumped.is_some() => {
            warn!("the system clock stays ahead; credentials are checked against it from now on");
        }
        (Some(_), None) => info!("the system clock is believed again"),
        _ => {}
    }
    time
}

/// The jumps ahead of the last hour that the clock has not taken back.
pub(crate) fn jumped() -> Option<Jump> {
    wall();
    BELIEVED.lock().unwrap_or_else(PoisonError::into_inner).jumped()
}

/// Whether such a jump has been believed for less than [`DOUBT`].
pub(crate) fn has_just_jumped() -> bool {
    BELIEVED.lock().unwrap_or_else(PoisonError::into_inner).has_just_jumped()
}

/// Wall time since 1970 in full precision; only to notice that the clock has jumped.
#[expect(clippy::disallowed_methods, reason = "the daemon's one reading of wall time")]
pub(crate) fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Resolves at that time; never without one.
pub(crate) async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due.into()).await,
        None => std::future::pending().await,
    }
}
