//! Questions to a running daemon: their types, their server and their client.

pub mod api;
