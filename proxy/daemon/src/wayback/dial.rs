//! Connects to a target on the machine that dials it.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use meshport_core::wayback::Refusal;
use tokio::time::timeout;

use crate::clock;
use crate::tcp::{Host, Tcp};

/// Limit for one address of a target while others remain.
const DIAL_LIMIT: Duration = Duration::from_secs(2);

/// Connects to the first of these addresses that answers, within `patience`.
///
/// # Errors
/// The error of the last address that answered.
pub(crate) async fn dial(
    host: &Host,
    addresses: &[SocketAddr],
    patience: Duration,
) -> Result<Tcp, Refusal> {
    let until = clock::now() + patience;
    let mut last = Refusal::Failed;
    for (at, address) in addresses.iter().enumerate() {
        let left = until.saturating_duration_since(clock::now());
        let is_last = at + 1 == addresses.len();
        let limit = if is_last { left } else { left.min(DIAL_LIMIT) };
        match timeout(limit, host.connect(&address.to_string())).await {
            Ok(Ok(tcp)) => {
                tcp.set_nodelay();
                return Ok(tcp);
            }
            Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
                last = Refusal::Connection;
            }
            Ok(Err(_)) => {}
            Err(_elapsed) => last = Refusal::Timeout,
        }
    }
    Err(last)
}
