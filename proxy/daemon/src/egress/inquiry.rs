//! Answers members' queries.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use meshport_config::NodeId;
use meshport_core::inquiry::{Call, CallToken, Question, Testimony};
use meshport_core::wire::Answer as Code;
use meshport_discovery::Entry;
use meshport_mesh::{Stream, calls};
use tokio::net::UdpSocket;
use tokio::sync::Semaphore;
use tokio::time::interval;

use crate::clock;
use crate::driver::Driver;
use crate::driver::answers::{Answer, Ask, Asker};
use crate::exchange::reply;

/// Maximum addresses called back per requester: its tunnel's source address, and some that it
/// announces.
const MAX_CALLED: usize = 4;
/// A call-back is repeated, since one datagram may be lost...
const REPETITIONS: u32 = 3;
/// ...at this interval.
const GAP: Duration = Duration::from_millis(100);
/// Concurrent queries; more are refused, so that they do not slow sessions.
const MAX_UNDER_WAY: usize = 8;

static UNDER_WAY: Semaphore = Semaphore::const_new(MAX_UNDER_WAY);

/// A query to the driver: the answer for a member.
#[derive(Debug, Clone, Copy)]
pub(super) struct Testify {
    pub(super) asker: NodeId,
    /// Whether the asker requests a call-back.
    pub(super) wants_call: bool,
}

/// The answer, and the address to call.
#[derive(Debug)]
pub(super) struct Witness {
    pub(super) testimony: Testimony,
    /// Only addresses from the requester's tunnel or its signed record.
    pub(super) call_to: Vec<SocketAddr>,
}

impl Answer for Testify {
    type Reply = Witness;

    fn answer(self, driver: &mut Driver, to: Asker<Witness>) {
        let _ = to.send(Ok(driver.testify(&self)));
    }
}

impl Driver {
    fn testify(&mut self, question: &Testify) -> Witness {
        let Testify { asker, wants_call } = question;
        let seen = self.mesh.endpoint(asker);
        let discovery = self.core.discovery();
        let announced = discovery.directory().get(asker).map_or(&[][..], Entry::endpoints);
        let mut call_to: Vec<SocketAddr> = Vec::new();
        if *wants_call {
            for at in seen.iter().chain(announced) {
                if call_to.len() < MAX_CALLED && !call_to.contains(at) {
                    call_to.push(*at);
                }
            }
        }
        let is_narrow = discovery.paths().get(asker).is_some_and(|path| path.narrow);
        let call = match call_to.len() {
            0 if *wants_call => Call::NoAddress,
            0 => Call::NotAsked,
            _ if !self.state.calls.take(*asker, clock::now()) => {
                call_to.clear();
                Call::TooOften
            }
            count => Call::Sent(u8::try_from(count).unwrap_or(u8::MAX)),
        };
        let testimony = Testimony {
            version: env!("CARGO_PKG_VERSION").into(),
            // The clock is what the question is about, believed or not.
            wall_s: clock::since_1970().as_secs(),
            sees_you_at: seen,
            mtu: self.mesh.path_mtu(asker),
            is_narrow,
            call,
            settings: self.state.process.agreeing.clone(),
        };
        Witness { testimony, call_to }
    }
}

/// Answers a member's query and calls it back if requested.
pub(super) async fn answer<A: Ask>(
    ask: &A,
    asker: NodeId,
    question: Question,
    stream: Stream,
) -> Code {
    let Ok(_place) = UNDER_WAY.try_acquire() else {
        return reply(stream, Err(Code::Overloaded)).await;
    };
    let testify = Testify { asker, wants_call: question.call.is_some() };
    let Ok(Witness { testimony, call_to }) = ask.ask(testify).await else {
        return reply(stream, Err(Code::Leaving)).await;
    };
    let called = async {
        if let Some(token) = question.call {
            call_back(&call_to, &token).await;
        }
    };
    tokio::join!(reply(stream, Ok(testimony.encode())), called).0
}

/// Sends the token from sockets that the asker has never sent to. A failed send counts as a lost
/// datagram.
async fn call_back(to: &[SocketAddr], token: &CallToken) {
    let datagram = calls::datagram(token);
    let v4 = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).await.ok();
    let v6 = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).await.ok();
    let mut ticks = interval(GAP);
    for _ in 0..REPETITIONS {
        ticks.tick().await;
        for at in to {
            let socket = if at.is_ipv4() { &v4 } else { &v6 };
            if let Some(socket) = socket {
                let _ = socket.send_to(&datagram, at).await;
            }
        }
    }
}
