//! The virtual machine of simulated processes: its clocks, its idle time and its random numbers.
//!
//! Nothing above the C library changes: `std`, tokio, quinn, boringtun and the daemon run
//! unmodified. The simulator replaces the three functions of the C library that read the time,
//! wait, and draw random numbers; the replacements call this module. A thread that has called
//! [`begin`] is a virtual machine; every other thread sees the real one.
//!
//! Virtual time stands still while code runs. When the runtime is idle and waits, time jumps to the
//! next event of the [`EventSource`] or to the runtime's own deadline, whichever comes first. So a
//! run depends only on its seed, however busy the real machine is.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::Error;

/// The monotonic clock at the start: large enough to represent earlier times.
const MONOTONIC_START: Duration = Duration::from_secs(1_000_000);
/// The wall clock at the start, in seconds since 1970.
pub const WALL_START_S: u64 = 1_800_000_000;

/// What happens while the runtime waits.
pub trait EventSource {
    /// When the next event happens.
    fn next(&self) -> Option<Duration>;
    /// Processes everything due at `now`.
    fn happen(&mut self, now: Duration);
}

/// The random number generator of a machine.
type Dice = RefCell<Option<ChaCha8Rng>>;

thread_local! {
    /// Nanoseconds since the start; none on a real machine. May be read at any time, even while the
    /// other two are being changed.
    static NOW: Cell<Option<u64>> = const { Cell::new(None) };
    static EVENTS: RefCell<Option<Box<dyn EventSource>>> = const { RefCell::new(None) };
    static DICE: Dice = const { RefCell::new(None) };
}

/// The clock to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    /// Never goes back; its epoch is arbitrary.
    Monotonic,
    /// Since 1970.
    Wall,
}

/// Turns this thread into a simulated machine until the value is dropped.
///
/// # Errors
/// [`Error::Machine`] if the program does not route the C library's functions to this module; only
/// `meshport-sim` does.
pub fn begin(seed: u64) -> Result<Machine, Error> {
    DICE.set(Some(ChaCha8Rng::seed_from_u64(seed)));
    NOW.set(Some(0));
    let machine = Machine { _private: () };
    #[expect(clippy::disallowed_methods, reason = "shows that the clock is the simulated one")]
    let clock = || Instant::now();
    let before = clock();
    NOW.set(Some(1));
    let moved = clock().duration_since(before);
    NOW.set(Some(0));
    if moved != Duration::from_nanos(1) {
        let what = "the full level runs in the program meshport-sim only";
        return Err(Error::Machine(what.into()));
    }
    Ok(machine)
}

/// A simulated machine. Dropping it returns the thread to the real one.
#[derive(Debug)]
pub struct Machine {
    _private: (),
}

impl Drop for Machine {
    fn drop(&mut self) {
        NOW.set(None);
        EVENTS.set(None);
        DICE.set(None);
    }
}

/// Sets what happens while the runtime waits.
pub fn set_events(events: Box<dyn EventSource>) {
    EVENTS.set(Some(events));
}

/// Time since the start.
///
/// # Panics
/// On a thread that has not called [`begin`].
pub fn now() -> Duration {
    Duration::from_nanos(NOW.get().expect("the machine has begun"))
}

/// The reading of a clock; none on a real machine.
pub fn read(clock: Clock) -> Option<Duration> {
    let start = match clock {
        Clock::Monotonic => MONOTONIC_START,
        Clock::Wall => Duration::from_secs(WALL_START_S),
    };
    NOW.get().map(|now| start + Duration::from_nanos(now))
}

/// Whether this thread is a simulated machine.
pub fn is_simulated() -> bool {
    NOW.get().is_some()
}

/// Advances time: the runtime is idle and waits for this long, or without a deadline if none.
///
/// # Panics
/// If it would wait forever with nothing pending.
pub fn pass(patience: Option<Duration>) {
    let now = now();
    let until = patience.map(|patience| now + patience);
    // Taken out while it acts: tasks that it wakes may call this module to read the clock.
    let mut events = EVENTS.take();
    let next = events.as_ref().and_then(|events| events.next()).map(|next| next.max(now));
    let arrives = next.filter(|next| until.is_none_or(|until| *next <= until));
    let then = arrives.or(until).expect("the root of a run has a timer");
    NOW.set(Some(u64::try_from(then.as_nanos()).expect("a run is shorter than 500 years")));
    if let (Some(events), Some(_)) = (&mut events, arrives) {
        events.happen(then);
    }
    EVENTS.set(events);
}

/// Fills `bytes` with random numbers from the seed; false on a real machine.
pub fn fill(bytes: &mut [u8]) -> bool {
    if !is_simulated() {
        return false;
    }
    DICE.with_borrow_mut(|dice| match dice {
        Some(dice) => {
            dice.fill_bytes(bytes);
            true
        }
        None => false,
    })
}
