//! The simulator as a user runs it and as a library: its verbs, scenarios and their results.

use std::path::PathBuf;

mod cli;
mod clocks;
mod followed;
mod full;
mod keys;
mod lies;
mod live;
mod nat;
mod scenarios;
mod schema;
mod serve;
mod wayback;

/// The program: that of this build, or the one `MESHPORT_SIM` names.
fn program() -> PathBuf {
    let named = std::env::var_os("MESHPORT_SIM");
    named.map_or_else(|| env!("CARGO_BIN_EXE_meshport-sim").into(), PathBuf::from)
}
