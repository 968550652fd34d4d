//! The command line of meshport: each verb turns its arguments into a query to the daemon, a file
//! of the state folder, or the daemon itself.

pub mod cli;
