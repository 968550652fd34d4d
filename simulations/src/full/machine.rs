//! The machine that simulated processes believe to run on: its clocks, its idle moments, its
//! random numbers.
//!
//! Nothing above the C library is changed: `std`, tokio, quinn, boringtun and the daemon run as
//! they are. The tool's own program defines the three functions of the C library through which they
//! read time, wait, and draw random numbers, and those ask this module. A thread that has called
//! [`begin`] is such a machine; every other thread sees the real one.
//!
//! Time stops while code runs. It moves only when the runtime has nothing left to do and waits:
//! then it jumps to the next arrival of the [`World`], or to the moment until which the runtime
//! wanted to wait, whichever comes first. So a run depends on its seed alone, however busy the real
//! machine is.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::Error;

/// What the monotonic clock says at the start: any value from which times before the start can be
/// told.
const MONOTONIC_START: Duration = Duration::from_secs(1_000_000);
/// The wall clock at the start, in seconds since 1970.
pub const WALL_START_S: u64 = 1_800_000_000;

/// The world that moves while the runtime waits.
pub trait World {
    /// When the next thing happens.
    fn next(&self) -> Option<Duration>;
    /// It is `now`: everything that is due happens.
    fn happen(&mut self, now: Duration);
}

/// The state of a machine's random numbers.
type Dice = RefCell<Option<ChaCha8Rng>>;

thread_local! {
    /// Nanoseconds since the start; none on a real machine. Read at any time, also in the middle of
    /// the other two's changes.
    static NOW: Cell<Option<u64>> = const { Cell::new(None) };
    static WORLD: RefCell<Option<Box<dyn World>>> = const { RefCell::new(None) };
    static DICE: Dice = const { RefCell::new(None) };
}

/// The clock that is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    /// Never goes back, begins anywhere.
    Monotonic,
    /// Since 1970.
    Wall,
}

/// Turns this thread into a simulated machine, until the value is dropped.
///
/// # Errors
/// [`Error::Machine`] when the program does not route the C library's functions to this module, as
/// only `meshport-sim` does.
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

/// A simulated machine; the thread has the real one back when it is dropped.
#[derive(Debug)]
pub struct Machine {
    _private: (),
}

impl Drop for Machine {
    fn drop(&mut self) {
        NOW.set(None);
        WORLD.set(None);
        DICE.set(None);
    }
}

/// Says what happens while the runtime waits.
pub fn inhabit(world: Box<dyn World>) {
    WORLD.set(Some(world));
}

/// Time since the start.
///
/// # Panics
/// On a thread that has not begun.
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

/// Lets time pass: the runtime has nothing to do, and wants to wait for this long (without end if
/// none).
///
/// # Panics
/// If it would wait without end for nothing.
pub fn pass(patience: Option<Duration>) {
    let now = now();
    let until = patience.map(|patience| now + patience);
    // Out of its place while it acts: what it wakes may come back here to read the clock.
    let mut world = WORLD.take();
    let next = world.as_ref().and_then(|world| world.next()).map(|next| next.max(now));
    let arrives = next.filter(|next| until.is_none_or(|until| *next <= until));
    let then = arrives.or(until).expect("the root of a run has a timer");
    NOW.set(Some(u64::try_from(then.as_nanos()).expect("a run is shorter than 500 years")));
    if let (Some(world), Some(_)) = (&mut world, arrives) {
        world.happen(then);
    }
    WORLD.set(world);
}

/// Fills `bytes` with random numbers of the seed; false on a real machine.
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
