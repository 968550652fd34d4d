//! One direction of a network path, as a pure function of its seed and of the times and sizes sent.
//!
//! A [`Link`] owns the state that makes a path more than a delay: the burst it may be in, the queue
//! before its bottleneck, and the last arrival. [`Link::send`] takes the time and the size of a
//! datagram and returns its arrival time, that of a copy, or the reason for its loss. It never
//! holds the datagram itself.
//!
//! Invariants: nothing arrives earlier than `latency` after it was sent; the same seed, settings
//! and calls give the same verdicts on every machine (the arithmetic is integer or plain IEEE 754,
//! no library function that may round differently elsewhere); a link with `overtaking` 0 keeps
//! order. Memory is constant; the emulated queue is bounded by [`Rate::queue_bytes`].
//!
use std::time::Duration;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

mod presets;
#[cfg(test)]
mod tests;

pub use presets::PRESETS;

/// [`Jitter::Exponential`] is cut off at this many times its mean, so that a delay has an upper
/// bound. An untruncated draw is longer once in 3,000.
pub const EXPONENTIAL_CUT_OFF: u32 = 8;

/// The quality of a path in one direction.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkConfig {
    /// Whether the link carries anything at all.
    pub up: bool,
    /// Propagation delay in this direction: half of an undisturbed round trip. Nothing arrives
    /// earlier.
    pub latency: Duration,
    /// Added to `latency`, drawn again for each datagram.
    pub jitter: Jitter,
    /// Which datagrams are lost.
    pub loss: Loss,
    /// Share of datagrams that do not wait behind earlier ones, in `0.0..=1.0`. At 0 the link is
    /// strictly ordered, as a chain of FIFO queues is; at 1 jitter alone determines the order. On
    /// an ordered link jitter adds up when datagrams follow each other closely: each waits for the
    /// slowest before it.
    pub overtaking: f64,
    /// Share of datagrams that arrive twice, in `0.0..=1.0`.
    pub duplication: f64,
    /// The bottleneck, if there is one worth modelling.
    pub rate: Option<Rate>,
    /// The largest datagram that passes, in bytes as the caller counts them (the shaper counts
    /// IP and UDP headers). Larger ones vanish, as they do on a path that drops fragments.
    pub mtu: usize,
}

/// The distribution of the delay above [`LinkConfig::latency`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Jitter {
    /// Every datagram takes exactly the latency.
    None,
    /// Uniform between zero and `max`.
    Uniform {
        /// The longest extra delay.
        max: Duration,
    },
    /// Exponential with this mean, cut off at [`EXPONENTIAL_CUT_OFF`] means: most datagrams are
    /// hardly late, a few are very late, which is typical of queueing delay on shared paths.
    Exponential {
        /// The mean before the cut-off.
        mean: Duration,
    },
}

/// Loss by the Gilbert-Elliott model in continuous time: a chain of two states that stays in each
/// for an exponentially distributed time, with a loss probability in each.
///
/// Source: E. N. Gilbert, "Capacity of a burst-noise channel", 1960; E. O. Elliott, "Estimates of
/// error rates for codes on burst-noise channels", 1963. There the chain moves once per symbol,
/// which is a time on a channel that always sends. A path does not: a chain that moved once per
/// datagram would hold a quiet path in a burst for minutes and end that of a busy one within
/// microseconds. Measurements show times: losses on the Internet depend on each other for a second
/// or less (M. Yajnik et al., "Measurement and modelling of the temporal dependence in packet
/// loss", INFOCOM 1999). A length in datagrams, sent one each `gap`, is about that many times
/// `gap`.
///
/// Values outside `0.0..=1.0` act as the nearest bound; not-a-number acts as 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Loss {
    /// The long-run share of time in bursts.
    pub in_bursts: f64,
    /// How long a burst lasts on average. At 0 each datagram is in one with that probability,
    /// whatever happened before.
    pub burst: Duration,
    /// Loss probability outside a burst.
    pub outside: f64,
    /// Loss probability inside a burst.
    pub inside: f64,
}

impl Loss {
    /// Nothing is lost.
    pub const NONE: Self = Self::independent(0.0);

    /// Each datagram is lost with probability `share`, whatever happened before it.
    pub const fn independent(share: f64) -> Self {
        Self { in_bursts: 0.0, burst: Duration::ZERO, outside: share, inside: share }
    }

    /// A long-run share of `share` is lost, in times of `burst` on average in which everything is.
    pub const fn bursty(share: f64, burst: Duration) -> Self {
        Self { in_bursts: share, burst, outside: 0.0, inside: 1.0 }
    }

    /// The long-run share of lost datagrams.
    pub fn mean(&self) -> f64 {
        self.in_bursts * self.inside + (1.0 - self.in_bursts) * self.outside
    }

    /// How probable it is to be in a burst, so long after it was so or not.
    fn in_burst_after(&self, was_in_burst: bool, after: Duration) -> f64 {
        let share = self.in_bursts.clamp(0.0, 1.0);
        // Time constant with which knowledge of the state fades.
        let memory = self.burst.as_secs_f64() * (1.0 - share);
        let known = if memory > 0.0 { decay(after.as_secs_f64() / memory) } else { 0.0 };
        share + (f64::from(u8::from(was_in_burst)) - share) * known
    }
}

/// A bottleneck with a bounded drop-tail queue before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Bits per second; 0 counts as 1.
    pub bits_per_second: u64,
    /// The bytes that may wait. A datagram that finds the queue empty always enters it.
    pub queue_bytes: u64,
}

impl Rate {
    /// A bottleneck whose queue holds what it sends in `queue`.
    pub fn new(bits_per_second: u64, queue: Duration) -> Self {
        let rate = Self { bits_per_second, queue_bytes: 0 };
        Self { queue_bytes: rate.bytes_within(queue), ..rate }
    }

    fn bytes_within(&self, time: Duration) -> u64 {
        let bits = time.as_nanos().saturating_mul(u128::from(self.bits_per_second.max(1)));
        u64::try_from(bits / 8_000_000_000).unwrap_or(u64::MAX)
    }

    fn time_for(&self, bytes: u64) -> Duration {
        let nanos = u128::from(bytes) * 8_000_000_000 / u128::from(self.bits_per_second.max(1));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

impl Default for LinkConfig {
    /// A perfect link: no delay, no loss, no limit.
    fn default() -> Self {
        Self {
            up: true,
            latency: Duration::ZERO,
            jitter: Jitter::None,
            loss: Loss::NONE,
            overtaking: 0.0,
            duplication: 0.0,
            rate: None,
            mtu: usize::MAX,
        }
    }
}

impl LinkConfig {
    /// A perfect link except for its latency. `latency` is one way.
    pub fn delay(latency: Duration) -> Self {
        Self { latency, ..Self::default() }
    }
}

/// The fate of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It arrives.
    Deliver(Deliveries),
    /// It vanishes.
    Drop(DropReason),
}

/// When a datagram arrives, in time since the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deliveries {
    /// The arrival.
    pub at: Duration,
    /// The arrival of a second copy, never before the first.
    pub duplicate_at: Option<Duration>,
}

/// Why a datagram vanishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// The link is down.
    Down,
    /// It is larger than the MTU.
    TooBig,
    /// The queue before the bottleneck is full.
    QueueFull,
    /// It was lost in transit.
    Lost,
}

/// One direction of one path. See the module's documentation.
#[derive(Clone, Debug)]
pub struct Link {
    config: LinkConfig,
    /// Decides about loss, never about time: its draws do not depend on the delay settings, so the
    /// same datagrams are lost if only a latency changes.
    fate: ChaCha8Rng,
    /// Decides about time.
    delay: ChaCha8Rng,
    in_burst: bool,
    /// The time of that state.
    looked_at: Duration,
    busy_until: Duration,
    last_arrival: Duration,
}

impl Link {
    /// A link with an empty queue, outside a burst.
    pub fn new(config: LinkConfig, seed: u64) -> Self {
        let fate = ChaCha8Rng::seed_from_u64(seed);
        let mut delay = fate.clone();
        delay.set_stream(1);
        Self {
            config,
            fate,
            delay,
            in_burst: false,
            looked_at: Duration::ZERO,
            busy_until: Duration::ZERO,
            last_arrival: Duration::ZERO,
        }
    }

    /// The settings in force.
    pub fn config(&self) -> &LinkConfig {
        &self.config
    }

    /// Changes the settings for future datagrams. The queue, the burst and the random numbers
    /// continue.
    pub fn set_config(&mut self, config: LinkConfig) {
        self.config = config;
    }

    /// Takes the link down or up; datagrams in transit still arrive.
    pub fn set_up(&mut self, up: bool) {
        self.config.up = up;
    }

    /// Whether one datagram may have to wait for another: before a bottleneck, or to keep order.
    pub fn makes_wait(&self) -> bool {
        self.config.rate.is_some() || self.config.overtaking < 1.0
    }

    /// Sends a datagram of `bytes` bytes. `now` is the time since the start; it must not go back
    /// where the link [`makes_wait`](Self::makes_wait).
    pub fn send(&mut self, now: Duration, bytes: usize) -> Verdict {
        if !self.config.up {
            return Verdict::Drop(DropReason::Down);
        }
        if bytes > self.config.mtu {
            return Verdict::Drop(DropReason::TooBig);
        }
        let Some(departure) = self.enqueue(now, bytes as u64) else {
            return Verdict::Drop(DropReason::QueueFull);
        };
        let lost = self.draw_loss(departure);
        let overtakes = chance(&mut self.fate, self.config.overtaking);
        let duplicated = chance(&mut self.fate, self.config.duplication);
        if lost {
            return Verdict::Drop(DropReason::Lost);
        }
        let at = self.arrival(departure, overtakes);
        let duplicate_at = duplicated.then(|| self.arrival(departure, overtakes).max(at));
        self.last_arrival = self.last_arrival.max(duplicate_at.unwrap_or(at));
        Verdict::Deliver(Deliveries { at, duplicate_at })
    }

    /// When the last bit leaves the bottleneck, or `None` if the queue has no room.
    fn enqueue(&mut self, now: Duration, bytes: u64) -> Option<Duration> {
        let Some(rate) = self.config.rate else { return Some(now) };
        let waiting = rate.bytes_within(self.busy_until.saturating_sub(now));
        if waiting > 0 && waiting.saturating_add(bytes) > rate.queue_bytes {
            return None;
        }
        self.busy_until = self.busy_until.max(now).saturating_add(rate.time_for(bytes));
        Some(self.busy_until)
    }

    /// Moves the Gilbert-Elliott chain to this time. It does not go back: a datagram that is
    /// decided late gets the state of later datagrams.
    fn draw_loss(&mut self, now: Duration) -> bool {
        let loss = self.config.loss;
        let after = now.saturating_sub(self.looked_at);
        self.looked_at = self.looked_at.max(now);
        let probability = loss.in_burst_after(self.in_burst, after);
        self.in_burst = chance(&mut self.fate, probability);
        chance(&mut self.fate, if self.in_burst { loss.inside } else { loss.outside })
    }

    fn arrival(&mut self, departure: Duration, overtakes: bool) -> Duration {
        let jitter = match self.config.jitter {
            Jitter::None => Duration::ZERO,
            Jitter::Uniform { max } => scale(max, self.delay.random::<f64>()),
            Jitter::Exponential { mean } => scale(mean, exponential(&mut self.delay)),
        };
        let at = departure.saturating_add(self.config.latency).saturating_add(jitter);
        if overtakes { at } else { at.max(self.last_arrival) }
    }
}

/// One draw, whatever the probability is, so that settings do not shift later draws.
fn chance(rng: &mut ChaCha8Rng, probability: f64) -> bool {
    rng.random::<f64>() < probability
}

/// `exp(-x)` for an `x` of at least 0, within 1e-12 of itself; 0 where that is below 1e-27.
///
/// By multiplications and divisions alone, because `exp` may round differently on another machine:
/// the series of `exp(-x / 128)`, and that to the 128th power.
fn decay(x: f64) -> f64 {
    const HALVINGS: i32 = 7;
    const TERMS: i32 = 14;
    if x.is_nan() || x >= 64.0 {
        return 0.0;
    }
    let small = x / f64::from(1 << HALVINGS);
    let series = (1..=TERMS).rev().fold(1.0, |sum, term| 1.0 - small / f64::from(term) * sum);
    (0..HALVINGS).fold(series, |power, _| power * power)
}

/// `factor` is finite and in `0.0..=EXPONENTIAL_CUT_OFF`.
fn scale(duration: Duration, factor: f64) -> Duration {
    Duration::try_from_secs_f64(duration.as_secs_f64() * factor).unwrap_or(duration)
}

/// An exponential variate with mean 1, cut off at [`EXPONENTIAL_CUT_OFF`].
///
/// Drawn with comparisons alone, because `ln` may round differently on another machine. Source:
/// J. von Neumann, "Various techniques used in connection with random digits", 1951: a falling run
/// of uniform draws that starts at `first` has odd length with probability `exp(-first)`.
fn exponential(rng: &mut ChaCha8Rng) -> f64 {
    for whole in 0..EXPONENTIAL_CUT_OFF {
        let first = rng.random::<f64>();
        let mut last = first;
        let mut odd = true;
        loop {
            let next = rng.random::<f64>();
            if next >= last {
                break;
            }
            last = next;
            odd = !odd;
        }
        if odd {
            return f64::from(whole) + first;
        }
    }
    f64::from(EXPONENTIAL_CUT_OFF)
}
