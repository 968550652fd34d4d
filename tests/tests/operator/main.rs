//! The output of the operator's commands, read by the programs that use it, and the instructions of
//! the pages, executed.

mod gateway;
mod monitoring;
mod pages;
mod systemd;
mod verbs;
