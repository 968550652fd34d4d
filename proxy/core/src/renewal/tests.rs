//! Two years of renewals, and what an issuer refuses.

#![expect(clippy::disallowed_methods, reason = "an origin for virtual time")]

use std::time::{Duration, Instant};

use meshport_config::{
    AuthorityKey, Credential, MAX_CLOCK_SKEW_S, Mandate, NodeId, NodeKey, RecordKey, Revocation,
    Revocations, Revoked, Subject, Terms, UnixSeconds,
};
use proptest::prelude::*;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use super::*;
use crate::believed::DOUBT;
use crate::testing::WALL;

const HOUR_S: u64 = 3600;
const DAY_S: u64 = 24 * HOUR_S;
const LIFETIME_S: u64 = 30 * DAY_S;
/// Issuers are the first nodes.
const ISSUERS: usize = 3;
const NODES: usize = 30;
const ROLES: &str = "node,origin:kube-apiserver,issuer";

fn authority() -> AuthorityKey {
    AuthorityKey::from_bytes([9; 32])
}

/// Randomness of a seed for keys, whose traits are of another release of the crate.
struct Keys(ChaCha8Rng);

impl rand_core::RngCore for Keys {
    fn next_u32(&mut self) -> u32 {
        self.0.next_u32()
    }

    fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    fn fill_bytes(&mut self, bytes: &mut [u8]) {
        self.0.fill_bytes(bytes);
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), rand_core::Error> {
        self.0.fill_bytes(bytes);
        Ok(())
    }
}

impl rand_core::CryptoRng for Keys {}

fn key(number: usize) -> NodeKey {
    NodeKey::from_bytes([u8::try_from(number).expect("few nodes") + 1; 32])
}

/// The credential that the authority signs for a node.
fn signed(number: usize, roles: &str, from: UnixSeconds, life_s: u64) -> Credential {
    let subject = Subject {
        node: key(number).public(),
        record_key: RecordKey::from_bytes([7; 32]).public(),
        name: format!("node-{number}").parse().expect("a name"),
        site: "fra".parse().expect("a name"),
        roles: roles.parse().expect("roles"),
        succession: None,
    };
    let until = from.saturating_add(life_s);
    let issued = Credential::issue_by_authority(&authority(), subject, from, until);
    issued.expect("good").countersign(&key(number)).expect("its key")
}

fn mandate(number: usize, roles: &str, from: UnixSeconds, days: u64, keys: &mut Keys) -> Mandate {
    let terms = Terms {
        issuer: key(number).public(),
        roles: roles.parse().expect("roles"),
        site: None,
        lifetime_s: LIFETIME_S,
        from,
        until: from.saturating_add(days * DAY_S),
    };
    Mandate::create(&authority(), &terms, keys).expect("good")
}

/// A node of the simulated mesh.
struct Node {
    own: Credential,
    base: Credential,
    former: Option<Credential>,
    seeker: Seeker,
    renewals: u32,
}

/// A mesh in which time advances in steps of an hour.
struct World {
    rng: ChaCha8Rng,
    /// Ids of the issuers.
    ids: [NodeId; ISSUERS],
    nodes: Vec<Node>,
    issuers: Vec<Option<Issuer>>,
    /// The hour until which a node reaches no others.
    apart_until: Vec<u64>,
    /// The hour until which an issuer is down.
    down_until: [u64; ISSUERS],
    revoked: Revocations,
    begun: Instant,
    hour: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut keys = Keys(ChaCha8Rng::seed_from_u64(seed ^ 0x6d61_6e64));
        let begun = Instant::now();
        let roles = |number| if number < ISSUERS { ROLES } else { "node" };
        let node = |number| {
            let own = signed(number, roles(number), WALL, LIFETIME_S);
            let (base, seeker) = (own.clone(), Seeker::new(&own, begun));
            Node { own, base, former: None, seeker, renewals: 0 }
        };
        let issuer = |number| Some(Issuer::new(mandate(number, ROLES, WALL, 365, &mut keys)));
        Self {
            rng: ChaCha8Rng::seed_from_u64(seed),
            ids: std::array::from_fn(|number| key(number).public()),
            nodes: (0..NODES).map(node).collect(),
            issuers: (0..ISSUERS).map(issuer).collect(),
            apart_until: vec![0; NODES],
            down_until: [0; ISSUERS],
            revoked: Revocations::default(),
            begun,
            hour: 0,
        }
    }

    fn true_time(&self) -> UnixSeconds {
        WALL.saturating_add(self.hour * HOUR_S)
    }

    fn now(&self) -> Instant {
        self.begun + Duration::from_secs(self.hour * HOUR_S)
    }

    /// A clock that drifts by up to two seconds an hour either way: ten hours in two years.
    fn clock(&self, number: usize) -> UnixSeconds {
        let hours = i64::try_from(self.hour).expect("two years");
        let ahead_s = hours * (i64::try_from(number * 3 % 5).expect("small") - 2);
        UnixSeconds(self.true_time().0.saturating_add_signed(ahead_s))
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.rng.next_u64() % bound
    }

    /// Links and issuers fail, for hours or days.
    fn disturb(&mut self) {
        for number in 0..NODES {
            if self.below(24 * 60) == 0 {
                self.apart_until[number] = self.hour + 1 + self.below(5 * 24);
            }
        }
        for issuer in 0..ISSUERS {
            if self.below(24 * 45) == 0 {
                self.down_until[issuer] = self.hour + 1 + self.below(6 * 24);
            }
        }
    }

    fn reaches(&self, number: usize, issuer: usize) -> bool {
        number == issuer
            || self.apart_until[number] <= self.hour
                && self.apart_until[issuer] <= self.hour
                && self.down_until[issuer] <= self.hour
    }

    /// One node does everything that is due at this hour.
    fn turn(&mut self, number: usize) {
        let (now, wall) = (self.now(), self.clock(number));
        loop {
            let up: Vec<NodeId> = (0..ISSUERS)
                .filter(|issuer| self.issuers[*issuer].is_some() && self.reaches(number, *issuer))
                .map(|issuer| self.ids[issuer])
                .collect();
            let Some(who) = self.nodes[number].seeker.poll(|| up, now, wall) else { return };
            let outcome = self.ask(number, who);
            let (stored, outcome) = match outcome {
                Ok(next) => (Some(next), Ok(())),
                Err(setback) => (None, Err(setback)),
            };
            let node = &mut self.nodes[number];
            node.seeker.handle_answer(who, outcome, now);
            if let Some(next) = stored {
                let former = std::mem::replace(&mut node.own, next);
                if !former.is_renewal() {
                    node.base = former.clone();
                }
                node.former = Some(former);
                node.renewals += 1;
                let own = node.own.clone();
                node.seeker.follow(&own, now);
            }
        }
    }

    fn ask(&mut self, number: usize, who: NodeId) -> Result<Credential, Setback> {
        let issuer = self.ids.iter().position(|it| *it == who).expect("one of them");
        if !self.reaches(number, issuer) {
            return Err(Setback::Silent("no answer".into()));
        }
        let (now, wall) = (self.now(), self.clock(issuer));
        let signer = self.issuers[issuer].as_mut().ok_or(Refusal::NoMandate)?;
        let node = &self.nodes[number];
        let base = node.own.is_renewal().then_some(&node.base);
        let issued = signer.judge(
            Asked { present: &node.own, known: None, base },
            &self.revoked,
            now,
            wall,
        )?;
        check_issued(&node.own, &issued)?;
        let next = issued.countersign(&key(number)).expect("its key");
        next.verify(&authority().public(), self.clock(number))
            .map_err(|error| Setback::Unfit(error.to_string()))?;
        Ok(next)
    }

    /// As the daemon does when the issuer of its credential is revoked.
    fn fall_back(&mut self) {
        let now = self.now();
        for node in &mut self.nodes {
            if self.revoked.covering(&node.own).is_some()
                && let Some(former) = node.former.take()
            {
                node.own = former;
                let own = node.own.clone();
                node.seeker.follow(&own, now);
                node.seeker.hurry(now);
            }
        }
    }

    /// Other nodes accept every credential, by the true time.
    fn nobody_falls_out(&self) {
        let time = self.true_time();
        for (number, node) in self.nodes.iter().enumerate() {
            let day = self.hour / 24;
            assert!(
                time < node.own.expires_at,
                "day {day}: node {number} has fallen out: {:?}",
                node.seeker.failing()
            );
            let is_taken_back = self.revoked.covering(&node.own).is_some();
            assert!(!is_taken_back, "day {day}: node {number} has what was taken back");
            assert!(node.own.roles == node.base.roles, "day {day}: node {number} has other roles");
        }
    }
}

/// Two years with clocks up to ten hours off, nodes that are cut off for up to five days, issuers
/// that are down for up to six, one that is permanently lost and replaced two months later, and one
/// that is stolen.
fn two_years(seed: u64) {
    let mut world = World::new(seed);
    let mut keys = Keys(ChaCha8Rng::seed_from_u64(seed ^ 0x6b65_7973));
    for hour in 0..2 * 365 * 24 {
        world.hour = hour;
        world.disturb();
        match hour {
            // Lost with its disk; a machine that takes its place gets a new mandate.
            4_800 => world.issuers[2] = None,
            6_240 => {
                let new = mandate(2, ROLES, world.true_time(), 365, &mut keys);
                world.issuers[2] = Some(Issuer::new(new));
            }
            // The operator follows the warning two months before the end.
            7_300 | 15_000 => {
                for issuer in 0..ISSUERS {
                    let new = mandate(issuer, ROLES, world.true_time(), 365, &mut keys);
                    if world.issuers[issuer].is_some() {
                        world.issuers[issuer] = Some(Issuer::new(new));
                    }
                }
            }
            10_000 => {
                let time = world.true_time();
                let stolen = world.issuers[1].take().expect("it has one");
                for turn in stolen.mandate().since(time) {
                    let what = Revoked::Invite(turn.key);
                    world.revoked.add(Revocation::issue(&authority(), what, time));
                }
                world.fall_back();
            }
            _ => {}
        }
        for number in 0..NODES {
            world.turn(number);
        }
        world.nobody_falls_out();
    }
    let renewals: Vec<u32> = world.nodes.iter().map(|node| node.renewals).collect();
    // 730 days, a renewal each 18 to 20 days and at most 12 a lifetime.
    assert!(renewals.iter().all(|it| (30..=60).contains(it)), "seed {seed}: {renewals:?}");
}

#[test]
fn nobody_falls_out_in_two_years() {
    for seed in 1..=3 {
        two_years(seed);
    }
}

#[test]
fn an_issuer_signs_nothing_wider_and_nothing_for_others() {
    let mut keys = Keys(ChaCha8Rng::seed_from_u64(1));
    let now = Instant::now();
    let mut issuer = Issuer::new(mandate(0, "node", WALL, 365, &mut keys));
    let none = Revocations::default();
    let mut judge = |present: &Credential, base: Option<&Credential>, at: UnixSeconds| {
        issuer
            .judge(Asked { present, known: None, base }, &none, now, at)
            .map(|it| it.content().expires_at)
    };
    let late = WALL.saturating_add(25 * DAY_S);
    let worker = signed(5, "node", WALL, LIFETIME_S);
    let origin = signed(6, "node,origin:kube-apiserver", WALL, LIFETIME_S);
    assert_eq!(judge(&origin, None, late), Err(Refusal::Outside));
    let ended = worker.expires_at.saturating_add(MAX_CLOCK_SKEW_S);
    assert_eq!(judge(&worker, None, ended), Err(Refusal::Ended));
    let long = signed(7, "node", WALL, 365 * DAY_S);
    assert_eq!(judge(&long, None, late), Err(Refusal::NothingGained));
    assert!(judge(&worker, None, late).is_ok_and(|until| until > worker.expires_at));
    // The same again, since the answer may be lost.
    assert!(judge(&worker, None, late.saturating_add(60)).is_ok());
}

#[test]
fn a_renewed_credential_is_renewed_only_with_the_one_that_its_node_joined_with() {
    let mut keys = Keys(ChaCha8Rng::seed_from_u64(2));
    let mandate = mandate(0, "node", WALL, 365, &mut keys);
    let now = Instant::now();
    let mut issuer = Issuer::new(mandate.clone());
    let base = signed(5, "node", WALL, LIFETIME_S);
    let late = WALL.saturating_add(25 * DAY_S);
    let present = mandate.renew(&base, late).expect("good").countersign(&key(5)).expect("its key");
    let later = late.saturating_add(25 * DAY_S);
    let none = Revocations::default();
    let mut judge = |base: Option<&Credential>, revoked: &Revocations| {
        issuer.judge(Asked { present: &present, known: None, base }, revoked, now, later).map(drop)
    };
    assert_eq!(judge(None, &none), Err(Refusal::Base));
    assert_eq!(judge(Some(&present), &none), Err(Refusal::Base));
    assert_eq!(judge(Some(&signed(6, "node", WALL, LIFETIME_S)), &none), Err(Refusal::Base));
    let mut revoked = Revocations::default();
    revoked.add(Revocation::issue(&authority(), Revoked::Node(base.node), later));
    assert_eq!(judge(Some(&base), &revoked), Err(Refusal::Revoked));
    assert_eq!(judge(Some(&base), &none), Ok(()));
}

/// It has seen the credential of a node, and asks again and again in its name.
#[test]
fn a_relay_gains_nothing_from_a_request_that_it_makes() {
    let mut keys = Keys(ChaCha8Rng::seed_from_u64(3));
    let (now, none) = (Instant::now(), Revocations::default());
    let mut issuer = Issuer::new(mandate(0, "node,relay", WALL, 365, &mut keys));
    let (present, relay) = (signed(5, "node", WALL, LIFETIME_S), signed(6, "node,relay", WALL, 1));
    let late = WALL.saturating_add(15 * DAY_S);
    let asked = Asked { present: &present, known: None, base: None };
    let given = issuer.judge(asked, &none, now, late).expect("it renews");
    // It is no credential without the node's own key, and none of the relay.
    assert!(given.clone().countersign(&key(6)).is_err());
    assert!(check_issued(&relay, &given).is_err());
    assert_eq!(check_issued(&present, &given), Ok(()));
    // One from before a renewal is of no use.
    let next = given.clone().countersign(&key(5)).expect("its key");
    let former = Asked { known: Some(&next), ..asked };
    assert_eq!(issuer.judge(former, &none, now, late).map(drop), Err(Refusal::Former));
    // The node that asks a day later gets the same.
    let day_later = now + Duration::from_secs(DAY_S);
    let again = issuer.judge(asked, &none, day_later, late.saturating_add(DAY_S));
    assert_eq!(again.map(|it| it.to_bytes()), Ok(given.to_bytes()));
}

/// Nodes refuse what is not valid yet, so an issuer that repeated it would renew nobody.
#[test]
fn an_issuer_whose_clock_was_ahead_signs_again_once_it_is_right() {
    let mut keys = Keys(ChaCha8Rng::seed_from_u64(4));
    let (now, none) = (Instant::now(), Revocations::default());
    let mut issuer = Issuer::new(mandate(0, "node", WALL, 365, &mut keys));
    let present = signed(5, "node", WALL, LIFETIME_S);
    let asked = Asked { present: &present, known: None, base: None };
    let (ahead, right) = (WALL.saturating_add(20 * DAY_S), WALL.saturating_add(15 * DAY_S));
    issuer.judge(asked, &none, now, ahead).expect("its clock is ahead");
    let issued = issuer.judge(asked, &none, now + Duration::from_secs(20), right);
    assert!(issued.expect("its clock is right").content().issued_at <= right);
}

/// It hands out what it was given long ago, to hide that it does not ask any more.
#[test]
fn an_old_answer_of_a_relay_is_refused() {
    let mut keys = Keys(ChaCha8Rng::seed_from_u64(4));
    let mandate = mandate(0, "node", WALL, 365, &mut keys);
    let present = signed(5, "node", WALL, LIFETIME_S);
    let early = WALL.saturating_add(5 * DAY_S);
    let hoarded = mandate.renew(&present, early).expect("good");
    assert_eq!(check_relayed(&present, &hoarded, early), Ok(()));
    let life_s = hoarded.content().expires_at.seconds_since(hoarded.content().issued_at);
    let due = UnixSeconds(hoarded.content().expires_at.0 - life_s / 3);
    assert_eq!(check_issued(&present, &hoarded), Ok(()));
    assert!(matches!(check_relayed(&present, &hoarded, due), Err(Setback::Unfit(_))));
}

/// What 0.0.10 sends has no more fields, and what it would misread has another first byte.
#[test]
fn requests_of_the_release_before_are_read_and_relayed_ones_are_not_taken_for_them() {
    let before = [&[VERSION, 0, 4, 3][..], b"abc"].concat();
    let request = Request::new(b"abc".to_vec());
    assert_eq!(Request::decode(&before), Ok(Some(request.clone())));
    assert_eq!(request.encode(), before);
    let relayed = request.through_relay(key(1).public());
    let carried = relayed.carried(&signed(5, "node", WALL, LIFETIME_S));
    for request in [relayed, carried] {
        assert_eq!(request.encode()[0], RELAYED_VERSION);
    }
}

#[test]
fn a_seeker_asks_the_next_one_and_rests_when_nobody_renews() {
    let own = signed(5, "node", WALL, LIFETIME_S);
    let (mut now, issuers) = (Instant::now(), [1, 2].map(|it| key(it).public()));
    let mut seeker = Seeker::new(&own, now);
    let due = seeker.due_at();
    assert_eq!(seeker.poll(|| issuers.to_vec(), now, due), None, "it has only just started");
    now += DOUBT;
    assert_eq!(seeker.poll(|| issuers.to_vec(), now, WALL), None, "not due");
    now += Duration::from_secs(2 * HOUR_S);
    assert!(due < own.expires_at && due > WALL.saturating_add(LIFETIME_S / 2));
    assert_eq!(seeker.poll(|| issuers.to_vec(), now, due), Some(issuers[0]));
    assert_eq!(seeker.poll(|| issuers.to_vec(), now, due), None, "one at a time");
    // The first is silent, the second refuses.
    now += ASK_LIMIT;
    assert_eq!(seeker.poll(|| issuers.to_vec(), now, due), Some(issuers[1]));
    seeker.handle_answer(issuers[0], Ok(()), now);
    seeker.handle_answer(issuers[1], Err(Refusal::NoMandate.into()), now);
    assert_eq!(seeker.poll(|| issuers.to_vec(), now, due), None);
    let failing = seeker.failing().expect("it fails");
    assert_eq!(failing, (1, &Setback::Refused(Refusal::NoMandate)));
    assert!(seeker.poll_timeout(now) > now, "it rests");
    // A disk that does not answer ends the wait as well.
    now = seeker.poll_timeout(now);
    assert_eq!(seeker.poll(|| issuers.to_vec(), now, due), Some(issuers[0]));
    seeker.handle_answer(issuers[0], Ok(()), now);
    now += STORE_LIMIT;
    assert_eq!(seeker.poll(|| issuers.to_vec(), now, due), None);
    assert!(matches!(seeker.failing(), Some((2, Setback::NotStored(_)))));
}

proptest! {
    #[test]
    fn any_bytes_are_a_request_a_reply_or_an_error(bytes: Vec<u8>) {
        for version in [VERSION, RELAYED_VERSION] {
            let _ = Request::decode(&[&[version][..], &bytes].concat());
        }
        let _ = Reply::decode(&bytes);
    }

    #[test]
    fn requests_and_replies_are_read_as_written(
        base in proptest::collection::vec(any::<u8>(), 0..MAX_CREDENTIAL_BYTES),
    ) {
        let request = Request::new(base.clone());
        let relayed = request.through_relay(key(1).public());
        let carried = relayed.carried(&signed(5, "node", WALL, LIFETIME_S));
        prop_assert_eq!((relayed.hops(), carried.hops()), (Hops::One, Hops::None));
        prop_assert_eq!(carried.issuer, None);
        for request in [request, relayed, carried] {
            prop_assert_eq!(Request::decode(&request.encode()), Ok(Some(request)));
        }
        let reply = Reply(Ok(base));
        prop_assert_eq!(Reply::decode(&reply.encode()), Ok(Some(reply)));
        let reply = Reply(Err(Refusal::Outside));
        prop_assert_eq!(Reply::decode(&reply.encode()), Ok(Some(reply)));
    }
}
