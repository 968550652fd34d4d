//! The pure decisions of a node.
