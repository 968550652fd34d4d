//! The output of the operator's commands, read by the programs it is for.

mod monitoring;
mod systemd;
mod verbs;
