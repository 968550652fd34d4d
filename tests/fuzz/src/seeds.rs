//! Inputs that real encoders write, one list per target, as a start for the fuzzer.

use meshport_config::fuzzing::invite_payload;
use meshport_config::{
    DelegationKey, Invite, InviteParams, Mandate, MeshSecret, NodeKey, ProxyHeader, RecordKey,
    Revocation, Revoked, Seed, Settings, Terms, reference,
};
use meshport_core::expose::header::{self, Ends};
use meshport_core::inquiry::{Call, Question, Setting, Testimony};
use meshport_core::remote_view;
use meshport_core::renewal::{Refusal, Reply, Request};
use meshport_core::wire::Header;
use meshport_state::NextIdentity;
use rand_core::{CryptoRng, Error, RngCore};
use std::time::Duration;

use crate::authority::{DAY, NOW, authority, credential, grant};
use crate::start;
use crate::state::FILES;

/// The inputs that a corpus of this target begins with; none for a name that is no target's.
pub fn seeds(target: &str) -> Vec<Vec<u8>> {
    match target {
        "outer" => outer(),
        "inner" => inner(),
        "handshake" => handshake(),
        "stream" => stream(),
        "checks" => checks(),
        "hello" => hellos(),
        "proxy" => proxies(),
        "vip" => crate::vip::seeds(),
        "gossip" => gossip(),
        "discovery" => discovery(),
        "credential" => credentials(),
        "invite" => invites(),
        "config" => configs(),
        "admin" => requests(),
        "state" => files(),
        "world" => worlds(),
        _ => Vec::new(),
    }
}

/// Bytes preceded by their length, as a script reads them.
fn measured(bytes: &[u8]) -> Vec<u8> {
    let length = u16::try_from(bytes.len()).expect("a datagram");
    [&length.to_be_bytes()[..], bytes].concat()
}

fn outer() -> Vec<Vec<u8>> {
    let hello = [&[1, 1, 0, 0, 0, 0, 0, 0, 0, 9, 0], &measured(&credential(&[1]).to_bytes())[..]];
    let hello = measured(&hello.concat());
    let successor = credential(&[3]).to_bytes();
    let successor = [&[1, 1, 0, 0, 0, 0, 0, 0, 0, 9, 0][..], &measured(&successor)].concat();
    let mut seeds = vec![
        // A datagram; a recorded one changed, cut and repeated; a while; a question.
        [&[0][..], &measured(&[4, 0, 0, 0, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0, 9]), &[8]].concat(),
        vec![1, 0, 0, 0, 20, 0x10, 2, 0, 1, 0, 3, 2, 0, 2, 0, 0, 3, 1, 0, 8],
        // Sessions of a stranger, and its credential; of a node without the secret.
        [&[6, 0][..], &hello, &[3, 0, 100, 6, 2], &measured(b"gossip"), &[8]].concat(),
        vec![7, 5, 7, 30, 3, 1, 0, 7, 1, 8],
        // Inner packets of the member itself: gossip, control, streams, and an unknown kind.
        [&[5, 2][..], &measured(b"news"), &[5, 1], &measured(b"quic"), &[8]].concat(),
        [&[5, 0][..], &hello, &[5, 0], &measured(&[1, 2, 0, 0, 0, 0, 0, 0, 0, 9])].concat(),
        [&[4][..], &measured(&[0x60, 0, 0, 0, 0, 8, 58, 64]), &[5, 0], &measured(b"\x01\x03no")]
            .concat(),
        // A node that succeeds another one.
        [&[6, 0][..], &measured(&successor), &[3, 0, 100, 8, 5, 0], &measured(&successor)].concat(),
        // A session that grows old, is renewed and ends.
        vec![3, 110, 0, 8, 3, 40, 0, 8, 3, 200, 0, 3, 200, 0, 8],
    ];
    for kind in 1..=4_u8 {
        let mut datagram = vec![kind, 0, 0, 0];
        datagram.resize([148, 92, 64, 80][usize::from(kind) - 1], 7);
        seeds.push([&[0][..], &measured(&datagram), &[8]].concat());
    }
    seeds
}

fn checks() -> Vec<Vec<u8>> {
    let texts = [
        "[+]ping ok\n[-]etcd failed: reason withheld\n[+]log ok\nreadyz check failed\n",
        "[-]poststarthook/rbac/bootstrap-roles failed: reason withheld\n",
        "[-]a failed\n[-]b failed\n[-]c failed\n[-]d failed\n[-]e failed\n[-]a failed\n",
    ];
    texts.map(|text| text.as_bytes().to_vec()).to_vec()
}

/// Hellos by hand, behind the lengths of their pieces: with a name, without, cut, and no hello.
fn hellos() -> Vec<Vec<u8>> {
    let extension = |kind: u8, body: &[u8]| {
        let length = u8::try_from(body.len()).expect("short");
        [&[0, kind, 0, length][..], body].concat()
    };
    let name = b"api.prod.example.com";
    let length = u8::try_from(name.len()).expect("short");
    let sni = [&[0, length + 3, 0, 0, length][..], name].concat();
    let signatures = extension(13, &[0, 4, 4, 3, 8, 4]);
    let hello = |extensions: &[u8]| {
        let begin = [&[3, 3][..], &[7; 32], &[0, 0, 2, 0x13, 1, 1, 0, 0]].concat();
        let length = u8::try_from(extensions.len()).expect("short");
        let body = [&begin[..], &[length], extensions].concat();
        let length = u8::try_from(body.len()).expect("short");
        [&[22, 3, 1, 0, length + 4, 1, 0, 0, length][..], &body].concat()
    };
    let named = hello(&[extension(0, &sni), signatures.clone()].concat());
    let pieces = |lengths: [u8; 4], bytes: &[u8]| [&lengths[..], bytes].concat();
    vec![
        pieces([255; 4], &named),
        pieces([1, 5, 40, 9], &named),
        pieces([0; 4], &hello(&signatures)),
        pieces([3; 4], &named[..named.len() / 2]),
        pieces([9; 4], &[&named[..], &[23, 3, 3, 0, 1, 9]].concat()),
        pieces([9; 4], b"GET / HTTP/1.1\r\n\r\n"),
        pieces([9; 4], &[22, 3, 1, 0, 4, 2, 0, 0, 0]),
    ]
}

fn proxies() -> Vec<Vec<u8>> {
    let ends = |client: &str, local: &str| Ends {
        client: client.parse().expect("an address"),
        local: local.parse().expect("an address"),
    };
    let pairs = [
        ends("192.0.2.1:56324", "198.51.100.7:443"),
        ends("[2001:db8::1]:1", "[::1]:65535"),
        ends("192.0.2.1:1", "[2001:db8::1]:2"),
    ];
    let each = |version| pairs.map(|ends| header::write(version, ends));
    let written = [ProxyHeader::V1, ProxyHeader::V2].into_iter().flat_map(each);
    let long = [&header::write(ProxyHeader::V2, pairs[0])[..16], &[7; 40]].concat();
    written.chain([b"PROXY UNKNOWN ffff::1 1 2\r\n\x16".to_vec(), long]).collect()
}

fn inner() -> Vec<Vec<u8>> {
    let refused = [&[0, 1, 3][..], b"it has expired"].concat();
    let hello =
        [&[0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 9, 1][..], &measured(&credential(&[1]).to_bytes())];
    let flow = [2, 0, 7, 0, 1, 2, 0x1c, 0xe8];
    vec![
        refused,
        hello.concat(),
        vec![0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 9],
        [&flow[..], b"payload"].concat(),
        [&flow[..], b"of odd length"].concat(),
        vec![3, 0, 41, 129, 1, 2],
        vec![3, 0, 6, 4, 1, 2],
        // A header by hand: UDP with a checksum of zero.
        [&[1, 0x60, 0, 0, 0, 0, 8, 17, 64][..], &[0xfd; 32], &[1, 2, 3, 4, 0, 8, 0, 0]].concat(),
    ]
}

fn handshake() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for side in [0, 1] {
        for kept in [0_u16, 4, 26, 46, 300] {
            let kept = kept.to_be_bytes();
            seeds.push(vec![side, 2, kept[0], kept[1]]);
            let frame = [side, 255, kept[0], kept[1], 1, 1, 0, 19];
            seeds.push([&frame[..], &[7; 16], &[4, 1, 22], &[2, 1, 0, 0], &[3, 1, 0, 0]].concat());
        }
    }
    seeds
}

fn stream() -> Vec<Vec<u8>> {
    let service = || "kube-apiserver".parse().expect("a name");
    let (origin, second) = (NodeKey::from_bytes([4; 32]).public(), Duration::from_secs(1));
    let headers = [
        Header::direct(service(), second),
        Header::relayed(service(), origin, second),
        Header::carried(service(), credential(&[1]), second),
    ];
    let hello = b"\x16\x03\x01client hello";
    let sessions = headers.iter().map(|header| [&header.encode()[..], hello].concat());
    let testimony = Testimony {
        version: "0.1.0".into(),
        wall_s: 1_800_000_000,
        sees_you_at: Some("[2001:db8::7]:51820".parse().expect("an address")),
        mtu: Some(1420),
        is_narrow: false,
        call: Call::Sent(2),
        settings: vec![Setting { key: "discovery.suspicion".into(), value: "5s".into() }],
    };
    let question = Question { call: Some([7; 16]) };
    let request = Request::new(credential(&[1]).to_bytes());
    let relayed = request.through_relay(origin).encode();
    let carried = request.carried(&credential(&[0, 1])).encode();
    let issued = mandate().renew(&credential(&[0, 0, 1]), NOW).expect("within its terms");
    let replies = [Reply(Ok(issued.to_bytes())), Reply(Err(Refusal::Revoked))];
    let messages = [question.encode(), testimony.encode(), request.encode(), relayed, carried];
    let view = remote_view::Request::new(Some(origin), 7).carried(credential(&[1])).encode();
    let shown = remote_view::Reply::to(0, 7, "{}".into()).encode();
    let sessions = sessions.chain(messages).chain(replies.map(|it| it.encode()));
    sessions.chain([view]).chain(shown).collect()
}

fn gossip() -> Vec<Vec<u8>> {
    meshport_discovery::fuzzing::seeds(start()).into_iter().map(|(_, bytes)| bytes).collect()
}

fn discovery() -> Vec<Vec<u8>> {
    let mut seeds = vec![vec![3, 0, 0, 9, 0x20, 4, 7, 208, 3, 1, 0, 30, 1], vec![4, 15, 255]];
    for (name, bytes) in meshport_discovery::fuzzing::seeds(start()) {
        let later = [4, 3, 232];
        match (name, bytes.split_first()) {
            ("record", Some((_, record))) => {
                for wrap in [0, 1, 2, 0x80] {
                    seeds.push([&[2, wrap][..], &measured(record), &later].concat());
                }
            }
            ("said" | "message", Some((_, body))) => {
                let (kind, rest) = body.split_first().expect("a datagram has a kind");
                seeds.push([&[1, *kind][..], &measured(rest), &later].concat());
            }
            _ => {}
        }
    }
    seeds
}

fn revocation(choice: u8) -> Revocation {
    let revoked = match choice {
        0 => Revoked::Node(NodeKey::from_bytes([9; 32]).public()),
        1 => Revoked::Invite(DelegationKey::from_bytes([9; 32]).public()),
        _ => return credential(&[2]).ends_former().expect("it has a former node"),
    };
    Revocation::issue(&authority(), revoked, NOW)
}

fn credentials() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for choices in [[0, 0, 0], [1, 0, 1], [1, 0, 3], [2, 0, 0], [3, 0, 1]] {
        let good = credential(&choices);
        let bytes = good.to_bytes();
        seeds.push([&[0][..], &bytes].concat());
        // The part that its issuer alone has signed.
        seeds.push([&[0][..], &bytes[..bytes.len() - 64]].concat());
        seeds.push([&[2][..], good.to_text().as_bytes()].concat());
        seeds.push([&[3, 0, 9, 3][..], &choices].concat());
    }
    for choice in [0, 1, 2] {
        seeds.push([&[1][..], &revocation(choice).to_bytes()].concat());
        seeds.push([&[2][..], revocation(choice).to_text().as_bytes()].concat());
    }
    seeds
}

fn seed() -> Seed {
    let endpoints = ["203.0.113.5:51820", "[2001:db8::1]:51820", "seed.example.com:51820"];
    let endpoints = endpoints.map(|endpoint| endpoint.parse().expect("an endpoint"));
    Seed::new(NodeKey::from_bytes([5; 32]).public(), endpoints.to_vec()).expect("three endpoints")
}

fn invites() -> Vec<Vec<u8>> {
    let mut seeds = vec![[&[2][..], seed().to_string().as_bytes()].concat()];
    for count in [0, 1, 2] {
        let params = InviteParams {
            grant: grant("node,origin:kube-apiserver"),
            mesh_secret: MeshSecret::from_bytes([6; 32]),
            seeds: vec![seed(); count],
        };
        let invite = Invite::create(&authority(), params, &mut Counting(count as u64));
        let line = invite.expect("an invite").to_text().expect("it is within its bounds");
        seeds.push([&[0][..], line.as_bytes()].concat());
        seeds.push([&[1][..], &invite_payload(&line)].concat());
    }
    let line = mandate().to_text().expect("it is within its bounds");
    seeds.push([&[3, 0, 0, 1, 1, 0, 0][..], line.as_bytes()].concat());
    seeds
}

/// A mandate of the corpus's authority, in force at its time.
fn mandate() -> Mandate {
    let terms = Terms {
        issuer: NodeKey::from_bytes([4; 32]).public(),
        roles: "node,origin:kube-apiserver".parse().expect("roles"),
        site: None,
        lifetime_s: 30 * DAY,
        from: NOW,
        until: NOW.saturating_add(60 * DAY),
    };
    Mandate::create(&authority(), &terms, &mut Counting(9)).expect("a mandate")
}

/// Not random at all: the same corpus each time.
struct Counting(u64);

impl CryptoRng for Counting {}

impl RngCore for Counting {
    fn next_u32(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 32) as u32
    }

    fn next_u64(&mut self) -> u64 {
        u64::from(self.next_u32()) << 32 | u64::from(self.next_u32())
    }

    fn fill_bytes(&mut self, bytes: &mut [u8]) {
        bytes.iter_mut().for_each(|byte| *byte = self.next_u32() as u8);
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Error> {
        self.fill_bytes(bytes);
        Ok(())
    }
}

fn configs() -> Vec<Vec<u8>> {
    let site = || "fra".parse().expect("a site");
    let seeds = format!("site = \"fra\"\n[mesh]\nseeds = [\"{}\"]\nkeepalive = \"25s\"\n", seed());
    let services = "site = \"fra\"\n[services.git]\nlisten = \"127.0.0.1:2222\"\n\
                    instance = \"127.0.0.1:22\"\nallow = [\"role:node\", \"site:fra\"]\n\
                    [services.git.health]\nmode = \"tcp\"\ninterval = \"1s\"\n";
    vec![
        b"site = \"fra\"\n".to_vec(),
        Settings::defaults(site()).to_toml().into_bytes(),
        reference().into_bytes(),
        seeds.into_bytes(),
        services.as_bytes().to_vec(),
        b"[discovery]\nprobe-interval = \"1s\"\n[admin]\nhttp = \"127.0.0.1:7446\"\n".to_vec(),
    ]
}

fn requests() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for path in
        ["status", "routes", "explain", "peers", "credentials", "metrics", "healthz", "nothing"]
    {
        let request = format!("GET /{path} HTTP/1.1\r\nHost: localhost:7446\r\n\r\n");
        seeds.push([&[0][..], request.as_bytes()].concat());
    }
    let node = NodeKey::from_bytes([9; 32]).public();
    let next = next_identity().replace('\n', "\\n");
    for (path, body) in [
        ("ping", "{\"target\":\"worker-7\",\"count\":2}".to_owned()),
        ("drain", "{\"service\":\"kube-apiserver\",\"draining\":true}".to_owned()),
        ("revoke", format!("{{\"revocation\":\"{}\"}}", revocation(0).to_text())),
        ("renew", format!("{{\"credential\":\"{}\"}}", credential(&[1]).to_text())),
        ("rotate-key", format!("{{\"identity\":\"{next}\",\"overlap_s\":600}}")),
        ("rotate-secret", "{\"next\":\"meshport-next-secret-1.AAAA\"}".to_owned()),
        ("ping", format!("{{\"target\":\"{node}\",\"count\":101}}")),
    ] {
        let length = body.len();
        let request =
            format!("POST /{path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n");
        for door in [0, 1] {
            seeds.push([&[door][..], request.as_bytes(), body.as_bytes()].concat());
        }
    }
    let chunked = "POST /ping HTTP/1.1\r\nHost: [::1]\r\nTransfer-Encoding: chunked\r\n\r\n\
                   5\r\n{\"tar\r\n0\r\n\r\nHEAD / HTTP/1.0\r\n\r\n";
    seeds.push([&[1][..], chunked.as_bytes()].concat());
    seeds
}

/// New keys of a node, in the form for the daemon and in that of its state folder.
fn next_identity() -> String {
    let next = NextIdentity {
        node_key: NodeKey::from_bytes([0; 32]),
        record_key: RecordKey::from_bytes([0; 32]),
        credential: credential(&[2]),
    };
    next.check().expect("the credential is for these keys");
    next.to_text().to_string()
}

fn files() -> Vec<Vec<u8>> {
    let secret = MeshSecret::from_bytes([6; 32]);
    let contents: [Vec<u8>; 9] = [
        NodeKey::from_bytes([5; 32]).to_text().as_bytes().to_vec(),
        RecordKey::from_bytes([5; 32]).to_text().as_bytes().to_vec(),
        secret.to_text().as_bytes().to_vec(),
        authority().to_text().as_bytes().to_vec(),
        credential(&[1]).to_text().into_bytes(),
        format!("# made by hand\n{}\n\n{}", seed(), seed()).into_bytes(),
        b"1800000001".to_vec(),
        ([0, 1, 2].map(|it| revocation(it).to_text()).join("\n") + "\nend 3").into_bytes(),
        next_identity().into_bytes(),
    ];
    assert_eq!(contents.len(), FILES.len());
    let numbered = (0_u8..).zip(contents);
    numbered.map(|(file, content)| [&[file][..], &content, b"\n"].concat()).collect()
}

fn worlds() -> Vec<Vec<u8>> {
    // Every kind of event once, a few in each world, of two sites and of three.
    let mut seeds = Vec::new();
    for number in 0..4_u8 {
        let mut bytes = vec![0, number, number % 2, 10 * number, 0, number];
        for site in 0..2 + number % 2 {
            bytes.extend([number, site, number / 2, 20 * site + 50, 40 * site + 130]);
        }
        let kinds = (0..14_u8).filter(|kind| kind % 4 == number);
        bytes.push(u8::try_from(kinds.clone().count()).expect("a few"));
        bytes.extend(kinds.flat_map(|kind| [0, 20 * (kind / 4), kind, kind, 80, kind]));
        seeds.push(bytes);
    }
    seeds
}
