//! What the operator's verbs write, read by the programs it is for.

mod monitoring;
mod systemd;
mod verbs;
