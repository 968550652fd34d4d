//! The output of the operator's commands, read by the programs it is for, and the pages that tell
//! an operator what to do, done.

mod gateway;
mod monitoring;
mod pages;
mod systemd;
mod verbs;
