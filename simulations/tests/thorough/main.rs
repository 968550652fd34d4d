//! Long tests: every limit, fault, pair of faults and planted bug, and real daemons for comparison.
//!
//! The program must be optimised: `./tests/run sim` and `lab` name one in `MESHPORT_SIM`.

use std::path::PathBuf;

mod bars;
mod faults;
mod lab;
mod pairs;
mod planted;
mod planted_full;
mod single_faults;

/// The program: that of this build, or the one `MESHPORT_SIM` names.
fn program() -> PathBuf {
    let named = std::env::var_os("MESHPORT_SIM");
    named.map_or_else(|| env!("CARGO_BIN_EXE_meshport-sim").into(), PathBuf::from)
}

/// Whether all is played at its whole size and with every seed, as suite hunt does, or what the
/// checks of each change have time for.
fn plays_all() -> bool {
    std::env::var_os("MESHPORT_SIM_ALL").is_some()
}
