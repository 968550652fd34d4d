//! Sends one UDP datagram and prints the first answer, for tests that need to do so from inside a
//! network namespace: `meshport-probe FROM TO WAIT_MS`, the payload and the answer in hexadecimal on
//! standard input and output. Exits with 1 when there was no answer in time.

use std::io::{self, Read};
use std::net::{SocketAddr, UdpSocket};
use std::process::ExitCode;
use std::time::Duration;

#[expect(clippy::print_stdout, clippy::print_stderr, reason = "a command-line tool")]
fn main() -> ExitCode {
    match probe() {
        Ok(answer) => {
            println!("{}", data_encoding::HEXLOWER.encode(&answer));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("meshport-probe: {error}");
            ExitCode::FAILURE
        }
    }
}

fn probe() -> io::Result<Vec<u8>> {
    let mut arguments = std::env::args().skip(1);
    let mut argument = || arguments.next().unwrap_or_default();
    let from: SocketAddr = argument().parse().map_err(io::Error::other)?;
    let to: SocketAddr = argument().parse().map_err(io::Error::other)?;
    let wait_ms: u64 = argument().parse().map_err(io::Error::other)?;
    let mut text = String::new();
    io::stdin().read_to_string(&mut text)?;
    let payload = data_encoding::HEXLOWER_PERMISSIVE
        .decode(text.trim().as_bytes())
        .map_err(io::Error::other)?;

    let socket = UdpSocket::bind(from)?;
    socket.set_read_timeout(Some(Duration::from_millis(wait_ms.max(1))))?;
    socket.send_to(&payload, to)?;
    let mut answer = vec![0; 65_535];
    let (length, _) = socket.recv_from(&mut answer)?;
    answer.truncate(length);
    Ok(answer)
}
