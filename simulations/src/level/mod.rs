//! What the levels have in common, whatever their nodes are made of.

pub(crate) mod clients;
