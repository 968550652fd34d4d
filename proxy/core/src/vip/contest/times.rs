//! The times of the contest, and the constraints between them.

use std::time::Duration;

/// Interval of announcements and of claims: two may be lost within [`SILENCE`].
pub const REPEAT_INTERVAL: Duration = Duration::from_millis(400);
/// How long an announcement lets its sender answer.
pub const LEASE: Duration = Duration::from_millis(800);
/// How long a holder counts as present after its last sign.
pub const SILENCE: Duration = Duration::from_secs(1);
/// Probes before a claim. [`PROBE_INTERVAL`] separates them and the claim; it is longer than a LAN
/// takes for an answer, and shorter than the one to two seconds of RFC 5227, which is for hosts
/// without haste.
pub const PROBES: u8 = 3;
/// See [`PROBES`].
pub const PROBE_INTERVAL: Duration = Duration::from_millis(150);
/// How late a probe may be; later ones start over, since answers may be unread.
pub(super) const PROBE_SLACK: Duration = Duration::from_millis(100);
/// A loop that takes longer has missed events: longer than [`REPEAT_INTERVAL`], at which it runs.
pub(super) const STALL: Duration = Duration::from_millis(600);
/// How much later a standby that is not preferred claims, if the preferred one does not.
pub(super) const DEFERENCE: Duration = Duration::from_millis(600);
/// Interval of turns while waiting for another node.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// Pause after the loss of the address before it may be probed for again.
pub(super) const QUIET: Duration = Duration::from_secs(1);
/// The same after a station that does not yield (RFC 5227, `DEFEND_INTERVAL`).
pub(super) const CONFLICT_QUIET: Duration = Duration::from_secs(10);
/// Interval of defences, which all stations hear.
pub(super) const DEFENCE_INTERVAL: Duration = Duration::from_millis(50);
/// How long a station may contest the address before the holder gives it up.
pub(super) const CONTEST_LIMIT: Duration = Duration::from_millis(900);
/// How long a release waits for a successor: longer than its silence and probes take.
pub(super) const RELEASE_LIMIT: Duration = Duration::from_secs(2);
/// How long a holder that releases waits for its short connections to end, once a successor is
/// ready.
pub(super) const BUSY_LIMIT: Duration = Duration::from_secs(1);
/// Interval between checks of these connections.
pub(super) const BUSY_LOOK_INTERVAL: Duration = Duration::from_millis(5);
/// How long a ready standby waits for the holder's signal: longer than [`BUSY_LIMIT`].
pub(super) const READY_LIMIT: Duration = Duration::from_millis(1_200);
/// A releasing node that has not run for this long is silent: shorter than its successor's probes.
pub(super) const RELEASE_STALL: Duration = Duration::from_millis(300);
/// How long announcements are accompanied by answers, as caches need.
pub(super) const REFRESH_PERIOD: Duration = Duration::from_secs(4);
/// How long a preferred node must have been usable before the holder hands over.
pub const SETTLED: Duration = Duration::from_secs(10);
/// Minimum interval of handovers: a preferred node that cannot claim costs one gap in ten minutes.
pub(super) const HANDOVER_INTERVAL: Duration = Duration::from_secs(600);
/// How long all others of the group must have missed the holder on the LAN before it considers
/// itself isolated: their claims lag behind its first announcement.
pub(super) const ISOLATION: Duration = Duration::from_secs(1);
/// Minimum interval of such releases: if the LAN is cut for all, the address moves no faster.
pub(super) const ISOLATION_INTERVAL: Duration = Duration::from_secs(60);
/// Minimum number of such others: of two nodes neither can know which one is isolated.
pub(super) const MIN_WITNESSES: usize = 2;
