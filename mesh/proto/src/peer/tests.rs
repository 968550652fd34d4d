use meshport_config::{AuthorityKey, MeshSecret, NodeKey};
use proptest::prelude::*;

use super::*;
use crate::tunnel::{Ends, Gate, Terms, Under};

fn peer() -> Peer {
    let own = NodeKey::from_bytes([1; 32]);
    let other = NodeKey::from_bytes([2; 32]).public();
    let mesh = AuthorityKey::from_bytes([3; 32]).public();
    let secret = MeshSecret::from_bytes([4; 32]);
    let under = Under { secret: SecretId::of(&secret), own: own.public(), peer: other };
    let ends = Ends { own: Ipv6Addr::LOCALHOST, peer: Ipv6Addr::LOCALHOST };
    let terms = Terms { under, ends, psk: secret.psk(&own.public(), &other) };
    let tunnel = Tunnel::new(&Gate::new(own.secret(), 100), &terms, 7);
    Peer::new(other, InnerAddr::derive(&mesh, &other), tunnel)
}

/// An event of a peer.
#[derive(Debug, Clone)]
enum Step {
    Wait(u32),
    Send { data: bool, prompt: bool },
    Receive(usize),
    Initiate,
    Answered,
    Responded(u8),
    Confirm(u8),
    Keepalive(Option<u32>),
    Provisional(u32),
    SessionUp,
    Acknowledged,
    Admitted,
    Rotated,
    Serve,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0u32..200_000).prop_map(Step::Wait),
        (any::<bool>(), any::<bool>()).prop_map(|(data, prompt)| Step::Send { data, prompt }),
        (0usize..2000).prop_map(Step::Receive),
        Just(Step::Initiate),
        Just(Step::Answered),
        (0u8..3).prop_map(Step::Responded),
        (0u8..3).prop_map(Step::Confirm),
        proptest::option::of(1000u32..60_000).prop_map(Step::Keepalive),
        (1u32..20_000).prop_map(Step::Provisional),
        Just(Step::SessionUp),
        Just(Step::Acknowledged),
        Just(Step::Admitted),
        Just(Step::Rotated),
        Just(Step::Serve),
    ]
}

/// Acts on a need as the core does, as far as times are concerned. False if the peer would be
/// forgotten.
fn act(peer: &mut Peer, need: Need, now: Instant) -> bool {
    match need {
        Need::Forget => return false,
        Need::Tunnel(schedule::Need::GiveUp) => assert!(peer.schedule.give_up()),
        Need::Tunnel(schedule::Need::Initiate { .. }) => peer.schedule.initiated(now, 0.5),
        Need::Tunnel(schedule::Need::Keepalive) => peer.schedule.keepalive_done(now),
        Need::Tunnel(schedule::Need::Expire) => peer.session_lost(),
        Need::Hello => assert!(peer.admission.showing.take(now)),
        Need::Number => assert!(peer.secret.telling.take(now)),
        Need::SeekOther => peer.here().seeking = None,
    }
    true
}

proptest! {
    /// The timer and the work agree: at the due time there is work, before it there is none, and
    /// the work always moves the due time. Otherwise a node would spin or sleep too long.
    #[test]
    fn due_times_and_needs_agree(steps in proptest::collection::vec(step(), 1..60)) {
        #[expect(clippy::disallowed_methods, reason = "a test needs some instant to count from")]
        let mut now = Instant::now();
        let mut peer = peer();
        peer.configured = true;
        for step in steps {
            match step {
                Step::Wait(ms) => now += Duration::from_millis(u64::from(ms)),
                Step::Send { data, prompt } => {
                    if prompt {
                        peer.schedule.expect_answer();
                    }
                    peer.sent(now, if data { 100 } else { 0 });
                }
                Step::Receive(bytes) => peer.received(now, bytes),
                Step::Initiate => peer.schedule.initiated(now, 0.3),
                Step::Answered => peer.agreed_as_initiator(now, 0.7),
                Step::Responded(low) => peer.answered(SessionId { mark: 0, low }, now),
                Step::Confirm(low) => { peer.confirm(SessionId { mark: 0, low }, now, 0.1); }
                Step::Keepalive(ms) => {
                    let every = ms.map(|ms| Duration::from_millis(u64::from(ms)));
                    peer.schedule.set_persistent(every, now);
                }
                Step::Provisional(ms) => {
                    let until = now + Duration::from_millis(u64::from(ms));
                    peer.admission.provisional_until = Some(until);
                }
                Step::SessionUp => peer.admission.showing.session_up(now),
                Step::Acknowledged => peer.admission.showing.acknowledged(),
                Step::Admitted => peer.admission.admitted = true,
                Step::Rotated => peer.secret.telling.wanted(now),
                Step::Serve => {}
            }
            let mut rounds = 0;
            while let Some(need) = peer.need(now) {
                rounds += 1;
                prop_assert!(rounds <= 16, "{need:?} comes back at once");
                if !act(&mut peer, need, now) {
                    return Ok(());
                }
            }
            let Some(due) = peer.due() else { continue };
            prop_assert!(due > now, "nothing to do, yet due");
            prop_assert_eq!(peer.need(due - Duration::from_nanos(1)), None);
            prop_assert!(peer.need(due).is_some(), "due, yet nothing to do");
        }
    }
}

#[test]
fn a_peer_at_rest_is_small() {
    let bytes = size_of::<Peer>();
    assert!(bytes <= 1024, "{bytes} bytes for each node that is known");
}
