//! Congestion window: CUBIC (RFC 9438) adapted to long paths with a little loss.
//!
//! Four rules differ from the RFC, each for a measured reason (ADR 025):
//!
//! * *A loss is not always congestion.* Long paths lose packets for other reasons, and a window of
//!   thousands of packets that shrinks at each loss never becomes large. Without a standing queue
//!   on the path, up to [`TOLERATED_LOSS`] of the packets may get lost: the share that BBR
//!   tolerates.
//! * *Growth stops while a queue stands.* More in flight would only wait there.
//! * *A large window grows by [`MAX_STEP`] packets per round trip at most.* What exceeds the path
//!   gets lost in one round trip, every other packet of it, and quinn closes a connection when a
//!   stream has more than 1,024 gaps.
//! * *A connection starts with [`FIRST_WINDOW`] packets in flight* instead of ten.

use std::time::{Duration, Instant};

/// The factor applied to a window after congestion.
const BETA: f64 = 0.7;
/// How steeply a window grows, in packets per cubic second.
const C: f64 = 0.4;
/// Packets per round trip that match a Reno flow with the same loss (RFC 9438, section 4.3).
const RENO_ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);
/// Packets in flight at the start: as in Chromium's QUIC, paced. RFC 6928 has 10, which costs a
/// long path almost two more round trips.
const FIRST_WINDOW: u64 = 32;
/// Minimum window, in packets.
const MIN_WINDOW: u64 = 2;
/// Share of bytes that may get lost without congestion: `BBRLossThresh` of the BBR draft.
const TOLERATED_LOSS: f64 = 0.02;
/// Packets that may get lost in addition, so that one of a few is not a large share.
const TOLERATED_PACKETS: u64 = 4;
/// Number of packets after which earlier losses count half.
const MEMORY: u64 = 2048;
/// Maximum growth of a window per round trip, in packets, once doubling could cause twice as many
/// gaps as quinn allows: two steps are in flight when the first loss is known.
const MAX_STEP: u64 = 400;
/// Windows up to this many packets may double: if half of them are lost, that is less than 1,024
/// gaps.
const MAX_DOUBLED: u64 = 1600;
/// A queue has built up if all packets of a round trip are slower than the best by an eighth, and
/// by this at least: what pacing and batches add.
const MIN_QUEUE: Duration = Duration::from_millis(4);

/// The window of one path. See the module's description.
#[derive(Debug, Clone)]
pub(super) struct Cubic {
    mtu: u64,
    /// In bytes.
    window: f64,
    /// Slow start ends here, in bytes.
    threshold: f64,
    /// The window before the last congestion, in bytes.
    highest: f64,
    /// The window that a Reno flow would have now, in bytes.
    reno: f64,
    /// Time of that congestion: packets sent before it show nothing new.
    reduced: Option<Instant>,
    /// No packet of the last round trip was fast.
    queue_stands: bool,
    /// Whether a packet of the current round trip was fast, and which packets belong to the next
    /// one: those sent from then on. One fast packet is enough: a busy machine is slow now and
    /// then, a queue always.
    is_fast: bool,
    round: Option<Instant>,
    /// Bytes that arrived and that were lost; both are halved after [`MEMORY`].
    arrived: u64,
    lost: u64,
}

/// Sending time of a packet whose outcome is now known.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sent {
    pub(super) at: Instant,
    pub(super) now: Instant,
}

/// How long a round trip takes.
#[derive(Debug, Clone, Copy)]
pub(super) struct RoundTrip {
    pub(super) now: Duration,
    /// The best round trip.
    pub(super) least: Duration,
}

impl Cubic {
    pub(super) fn new(mtu: u16) -> Self {
        let mtu = u64::from(mtu);
        Self {
            mtu,
            window: to_f64(FIRST_WINDOW * mtu),
            threshold: f64::INFINITY,
            highest: 0.0,
            reno: 0.0,
            reduced: None,
            queue_stands: false,
            is_fast: false,
            round: None,
            arrived: 0,
            lost: 0,
        }
    }

    /// Bytes that may be in flight.
    pub(super) fn window(&self) -> u64 {
        to_u64(self.window)
    }

    /// End of slow start, in bytes.
    pub(super) fn threshold(&self) -> Option<u64> {
        self.threshold.is_finite().then(|| to_u64(self.threshold))
    }

    /// The initial window of a path.
    pub(super) fn first(&self) -> u64 {
        FIRST_WINDOW * self.mtu
    }

    pub(super) fn set_mtu(&mut self, mtu: u16) {
        self.mtu = u64::from(mtu);
        self.window = self.window.max(to_f64(MIN_WINDOW * self.mtu));
    }

    /// A packet of this many bytes arrived. `is_used`: the window limits sending.
    pub(super) fn arrived(&mut self, sent: Sent, bytes: u64, is_used: bool, rtt: RoundTrip) {
        self.remember(bytes, 0);
        self.look_for_queue(sent, rtt.least);
        let is_old = self.reduced.is_some_and(|reduced| sent.at <= reduced);
        if is_used && !is_old {
            self.grow(sent.now, bytes, rtt.now);
        }
    }

    fn look_for_queue(&mut self, sent: Sent, shortest: Duration) {
        if self.round.is_none_or(|round| sent.at >= round) {
            self.queue_stands = self.round.is_some() && !self.is_fast;
            (self.round, self.is_fast) = (Some(sent.now), false);
        }
        let took = sent.now.saturating_duration_since(sent.at);
        if took <= shortest + (shortest / 8).max(MIN_QUEUE) {
            (self.is_fast, self.queue_stands) = (true, false);
        }
    }

    fn grow(&mut self, now: Instant, bytes: u64, rtt: Duration) {
        let bytes = to_f64(bytes);
        let grown = match self.reduced {
            Some(reduced) if self.window >= self.threshold => {
                let since = now.saturating_duration_since(reduced) + rtt;
                self.reno += RENO_ALPHA * bytes * to_f64(self.mtu) / self.window;
                let target = self.cubic(since).clamp(self.window, 1.5 * self.window);
                let cubic = (target - self.window) / self.window * bytes;
                cubic.max(self.reno - self.window)
            }
            _ if self.queue_stands => 0.0,
            _ => bytes,
        };
        let step = if self.window > to_f64(MAX_DOUBLED * self.mtu) { MAX_STEP } else { u64::MAX };
        let most = to_f64(step.saturating_mul(self.mtu)) * bytes / self.window;
        self.window += grown.min(most).min(bytes);
    }

    /// The window at this time after congestion, in bytes (RFC 9438, section 4.2).
    fn cubic(&self, since: Duration) -> f64 {
        let mtu = to_f64(self.mtu);
        let highest = self.highest / mtu;
        let back = (highest * (1.0 - BETA) / C).cbrt();
        (C * (since.as_secs_f64() - back).powi(3) + highest) * mtu
    }

    /// Packets of this many bytes were lost; `sent` is the last of them.
    pub(super) fn lost(&mut self, sent: Sent, bytes: u64) {
        self.remember(0, bytes);
        let all = to_f64(self.arrived + self.lost);
        let tolerated = TOLERATED_LOSS * all + to_f64(TOLERATED_PACKETS * self.mtu);
        // Zero bytes mean an ECN mark, by which the network reports congestion.
        let is_tolerated = bytes > 0 && !self.queue_stands && to_f64(self.lost) <= tolerated;
        if !is_tolerated {
            self.reduce(sent);
        }
    }

    fn reduce(&mut self, sent: Sent) {
        if self.reduced.is_some_and(|reduced| sent.at <= reduced) {
            return;
        }
        // A flow whose window was already smaller than before leaves room for others.
        let is_less = self.window < self.highest;
        self.highest = if is_less { self.window * (1.0 + BETA) / 2.0 } else { self.window };
        self.window = (self.window * BETA).max(to_f64(MIN_WINDOW * self.mtu));
        (self.threshold, self.reno) = (self.window, self.window);
        self.reduced = Some(sent.now);
        (self.arrived, self.lost) = (0, 0);
    }

    /// Persistent congestion (RFC 9002, section 7.6): starts over.
    pub(super) fn collapse(&mut self, sent: Sent) {
        self.reduce(sent);
        self.window = to_f64(MIN_WINDOW * self.mtu);
        self.reduced = None;
    }

    fn remember(&mut self, arrived: u64, lost: u64) {
        self.arrived += arrived;
        self.lost += lost;
        if self.arrived + self.lost > MEMORY * self.mtu {
            (self.arrived, self.lost) = (self.arrived / 2, self.lost / 2);
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "bytes in flight are far below 2^52")]
fn to_f64(bytes: u64) -> f64 {
    bytes as f64
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "windows are positive and far below 2^52"
)]
fn to_u64(bytes: f64) -> u64 {
    bytes as u64
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "an origin for made-up time")]
mod tests {
    use super::*;

    const MTU: u16 = 1000;
    const RTT: Duration = Duration::from_millis(100);

    /// A path on which every packet takes [`RTT`] and a queue.
    struct Path {
        cubic: Cubic,
        now: Instant,
    }

    impl Path {
        fn new() -> Self {
            Self { cubic: Cubic::new(MTU), now: Instant::now() }
        }

        /// Sends a window of packets; `lost` of them do not arrive.
        fn round(&mut self, queue: Duration, lost: u64) {
            let sent = self.now;
            self.now += RTT + queue;
            let packets = self.cubic.window() / u64::from(MTU);
            for _ in 0..packets.saturating_sub(lost) {
                let sent = Sent { at: sent, now: self.now };
                self.cubic.arrived(
                    sent,
                    u64::from(MTU),
                    true,
                    RoundTrip { now: RTT + queue, least: RTT },
                );
            }
            if lost > 0 {
                self.cubic.lost(Sent { at: sent, now: self.now }, lost * u64::from(MTU));
            }
        }

        fn packets(&self) -> u64 {
            self.cubic.window() / u64::from(MTU)
        }
    }

    #[test]
    fn it_doubles_until_half_of_it_lost_were_too_many_gaps() {
        let mut path = Path::new();
        assert_eq!(path.packets(), FIRST_WINDOW);
        let mut before = path.packets();
        for _ in 0..20 {
            path.round(Duration::ZERO, 0);
            let grown = path.packets() - before;
            if before <= MAX_DOUBLED / 2 {
                assert_eq!(grown, before);
            }
            assert!(before <= MAX_DOUBLED || grown <= MAX_STEP, "{before} + {grown}");
            before = path.packets();
        }
        assert!(before > 5000, "{before}");
    }

    #[test]
    fn it_stays_while_a_queue_stands_and_grows_after_it() {
        let mut path = Path::new();
        (0..3).for_each(|_| path.round(Duration::ZERO, 0));
        (0..3).for_each(|_| path.round(Duration::from_millis(40), 0));
        let stands = path.packets();
        (0..5).for_each(|_| path.round(Duration::from_millis(40), 0));
        assert_eq!(path.packets(), stands);
        (0..3).for_each(|_| path.round(Duration::ZERO, 0));
        assert!(path.packets() > 2 * stands);
    }

    #[test]
    fn a_hundredth_lost_is_no_congestion_and_a_twentieth_is() {
        let mut path = Path::new();
        for _ in 0..12 {
            path.round(Duration::ZERO, path.packets() / 100);
        }
        assert!(path.packets() > 2000, "{}", path.packets());
        let before = path.packets();
        for _ in 0..3 {
            path.round(Duration::ZERO, path.packets() / 20);
        }
        assert!(path.packets() < before * 8 / 10, "{before}, {}", path.packets());
    }

    #[test]
    fn a_loss_out_of_a_queue_is_congestion_and_heals_as_cubic_does() {
        let mut path = Path::new();
        (0..6).for_each(|_| path.round(Duration::ZERO, 0));
        (0..3).for_each(|_| path.round(Duration::from_millis(40), 0));
        let before = path.packets();
        path.round(Duration::from_millis(40), 1);
        assert_eq!(path.packets(), before * 7 / 10);
        assert_eq!(path.cubic.threshold(), Some(path.cubic.window()));
        // Packets sent before show nothing new.
        path.cubic.lost(Sent { at: path.now - RTT, now: path.now }, 50_000);
        assert_eq!(path.packets(), before * 7 / 10);
        // It has recovered after the cube root of the missing share over C, in seconds.
        #[expect(clippy::cast_precision_loss, reason = "some packets")]
        let back = (before as f64 * 0.3 / 0.4).cbrt();
        let begun = path.now;
        while path.packets() < before * 99 / 100 {
            path.round(Duration::ZERO, 0);
        }
        let took = (path.now - begun).as_secs_f64();
        assert!((back * 0.5..back * 1.3).contains(&took), "{took} s, {back} s");
    }

    #[test]
    fn nothing_that_gets_through_starts_over() {
        let mut path = Path::new();
        (0..6).for_each(|_| path.round(Duration::ZERO, 0));
        path.cubic.collapse(Sent { at: path.now, now: path.now });
        assert_eq!(path.packets(), MIN_WINDOW);
        path.cubic.set_mtu(8000);
        assert_eq!(path.cubic.window(), MIN_WINDOW * 8000);
        // An ECN mark is congestion without a loss.
        let mut path = Path::new();
        path.cubic.lost(Sent { at: path.now, now: path.now }, 0);
        assert_eq!(path.packets(), FIRST_WINDOW * 7 / 10);
    }
}
