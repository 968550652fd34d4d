//! Nodes that lie.
