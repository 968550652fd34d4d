//! Properties that must hold for any bytes from outside: one plain function per target.
//!
//! A target takes any bytes and panics when a property does not hold: not only when a decoder
//! panics itself, but also when a value is written and then reads differently, when two readings of
//! one format disagree, or when an honest party is harmed. `corpus/NAME` holds inputs of the target
//! NAME: some that real encoders wrote (the binary of this package writes them again), some that
//! once broke something. `tests/corpus.rs` replays all of them; `harness` runs the targets under
//! cargo-fuzz.
//!
//! Nothing here is part of the product: the crates below expose private items through their feature
//! `fuzzing`, which the daemon is never built with.

mod admin;
mod authority;
mod seeds;
mod state;
mod statements;
mod vip;
mod wire;
mod world;

use std::sync::LazyLock;
use std::time::Instant;

pub use admin::admin;
pub use seeds::seeds;
pub use state::state;
pub use statements::{config, credential, invite};
pub use vip::vip;
pub use wire::{checks, discovery, gossip, handshake, hello, inner, outer, proxy, stream};
pub use world::world;

/// A name, its input in a sentence, and the function.
pub type Target = (&'static str, &'static str, fn(&[u8]));

/// All targets, in the order in which they process a packet.
pub const TARGETS: [Target; 16] = [
    ("outer", "datagrams at the UDP socket: handshakes, cookies, data, admission", outer),
    ("inner", "packets inside a tunnel, and control messages", inner),
    ("handshake", "the handshake of QUIC without keys", handshake),
    ("stream", "the header of a proxied stream, questions and renewals of members", stream),
    ("checks", "what a failing apiserver answers", checks),
    ("hello", "the TLS hello of a client of an exposed listener", hello),
    ("proxy", "the PROXY header of a balancer", proxy),
    ("vip", "what stations and members say of a virtual address", vip),
    ("gossip", "messages, records and saved directories of discovery", gossip),
    ("discovery", "an admitted member that sends and signs anything", discovery),
    ("credential", "credentials and revocations, as bytes and text", credential),
    ("invite", "invites, mandates and seeds", invite),
    ("config", "the settings file", config),
    ("admin", "requests at the admin socket and the loopback port", admin),
    ("state", "the files of the state folder", state),
    ("world", "a small mesh in virtual time, and all that happens to it", world),
];

/// Start of virtual time: one instant per process, so that a run can be repeated within it.
fn start() -> Instant {
    static START: LazyLock<Instant> = LazyLock::new(|| {
        #[expect(clippy::disallowed_methods, reason = "an arbitrary origin for virtual time")]
        Instant::now()
    });
    *START
}
