//! Requests at the admin server.

use meshport_config::fuzzing::Script;
use meshport_daemon::fuzzing::{Asked, admin_connection};

/// A connection of any bytes. Every answer begins as HTTP does, the daemon is asked no more often
/// than there are requests, and by the loopback port nothing is ever asked that changes something.
pub fn admin(data: &[u8]) {
    let mut script = Script::new(data);
    let by_socket = script.byte() & 1 == 1;
    let bytes = script.all();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime.expect("a runtime needs no more than memory");
    let (answer, asked) = runtime.block_on(admin_connection(by_socket, bytes));
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1."), "no answer of HTTP");
    let Asked { questions, commands } = asked;
    // The shortest request is "GET /x HTTP/1.1" and two line ends.
    assert!(
        questions + commands <= bytes.len() / 16 + 1,
        "asked more often than there are requests"
    );
    assert!(by_socket || commands == 0, "a command by the loopback port");
}
