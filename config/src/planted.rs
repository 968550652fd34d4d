//! Deliberate bugs, to test that the simulator's rules find them.
//!
//! They exist only with the feature `planted-bugs`, with which the daemon does not compile; without
//! it [`is_planted`] is `false` and costs nothing. A bug is planted per thread, since tests run in
//! parallel.

/// A bug that the simulator must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// The last arrived record of a node is kept, not the newest.
    MergeLaw,
    /// A relay forwards streams without a hop left.
    RelayLoop,
    /// The preferred origin is kept for a while although others are healthier.
    RouteChoice,
    /// Sessions return ten times as fast as they should.
    RebalancingRate,
    /// A node that is considered down does not continue in a new life.
    Refutation,
    /// The preferred origin is kept however much nearer another one is.
    Nearness,
    /// An origin whose instance was ready once reports it as ready forever.
    Health,
    /// Revocations from peers are ignored.
    Revocation,
    /// Directories count as equal whatever they contain.
    Comparison,
    /// Sessions that should be reset stay open.
    Reset,
    /// Attempts of later rounds have the same timeouts as those of the first.
    Patience,
    /// A handshake without an answer is not repeated.
    HandshakeRetry,
    /// A relay dials its own kubelet for a stream to another node's.
    OtherNode,
}

impl Bug {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::MergeLaw,
        Self::RelayLoop,
        Self::RouteChoice,
        Self::RebalancingRate,
        Self::Refutation,
        Self::Nearness,
        Self::Health,
        Self::Revocation,
        Self::Comparison,
        Self::Reset,
        Self::Patience,
        Self::HandshakeRetry,
        Self::OtherNode,
    ];
}

#[cfg(feature = "planted-bugs")]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

/// Plants a bug in this thread, or removes it.
#[cfg(feature = "planted-bugs")]
pub fn plant(bug: Option<Bug>) {
    PLANTED.set(bug);
}

/// Whether a bug is planted in this thread.
#[cfg(feature = "planted-bugs")]
pub fn is_planted(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}

/// Whether a bug is planted in this thread: none ever is without the feature.
#[cfg(not(feature = "planted-bugs"))]
pub const fn is_planted(_: Bug) -> bool {
    false
}
