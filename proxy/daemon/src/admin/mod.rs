//! The admin interface of a running daemon: requests and replies, client, and the parts of servers
//! of local HTTP. `server` answers.
//!
//! The daemon answers over HTTP/1.1 on a unix socket, whose file mode decides who may ask, and, for
//! requests that reveal no secret and change nothing, on a loopback TCP port for scrapers and
//! browsers. Each listener has its own bounds on connections, time and size, so a stuck scraper
//! never locks out an operator.

pub mod api;
pub mod certificates;
pub mod client;
pub mod credentials;
pub mod explain;
pub mod inquire;
pub mod local_server;
pub mod loopback;
pub mod metrics;
pub mod offers;
pub(crate) mod pace;
pub mod page;
pub(crate) mod ping;
pub mod queries;
pub mod reply;
pub mod request;
pub(crate) mod slots;
pub mod stats;
pub mod view;
pub mod wayback;

pub use client::AdminClient;
