//! Sends one UDP datagram and prints every answer, for tests that need to do so from inside a
//! network namespace: `meshport-probe FROM TO WAIT_MS`. It reads the payload from standard input
//! and writes each answer as a line to standard output, both in hexadecimal. It exits after WAIT_MS
//! of silence; without any answer, with status 1.

use std::io::{self, Read};
use std::net::{SocketAddr, UdpSocket};
use std::process::ExitCode;
use std::time::Duration;

use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};

/// Maximum number of answers that are read.
const MAX_ANSWERS: usize = 64;
const MAX_DATAGRAM: usize = 65_535;

#[expect(clippy::print_stdout, clippy::print_stderr, reason = "a command-line tool")]
fn main() -> ExitCode {
    match probe() {
        Ok(answers) => {
            for answer in &answers {
                println!("{}", HEXLOWER.encode(answer));
            }
            if answers.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
        }
        Err(error) => {
            eprintln!("meshport-probe: {error}");
            ExitCode::from(2)
        }
    }
}

fn probe() -> io::Result<Vec<Vec<u8>>> {
    let mut arguments = std::env::args().skip(1);
    let mut argument = || arguments.next().unwrap_or_default();
    let from: SocketAddr = argument().parse().map_err(io::Error::other)?;
    let to: SocketAddr = argument().parse().map_err(io::Error::other)?;
    let wait_ms: u64 = argument().parse().map_err(io::Error::other)?;
    let mut text = String::new();
    io::stdin().read_to_string(&mut text)?;
    let payload = HEXLOWER_PERMISSIVE.decode(text.trim().as_bytes()).map_err(io::Error::other)?;

    let socket = UdpSocket::bind(from)?;
    socket.set_read_timeout(Some(Duration::from_millis(wait_ms.max(1))))?;
    socket.send_to(&payload, to)?;
    let mut answers = Vec::new();
    let mut buffer = vec![0; MAX_DATAGRAM];
    while answers.len() < MAX_ANSWERS {
        // A refused or timed-out read is the end of the answers.
        let Ok(length) = socket.recv(&mut buffer) else { break };
        answers.push(buffer[..length].to_vec());
    }
    Ok(answers)
}
