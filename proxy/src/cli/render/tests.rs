//! Answers for the tests of the renders, and the text they become.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use meshport_config::UnixSeconds;

use super::*;
use meshport_daemon::admin::api::{
    AbsentMember, Chosen, EdgeStatus, ExposedStatus, MemberCounts, NodeRef, OfferedStatus,
    Offering, OriginRef, OriginStatus, PeerRow, ProcessStatus, ServiceStatus, Status,
};
use meshport_daemon::admin::credentials::SecretStatus;

fn who(name: &str, site: &str, number: u8) -> NodeRef {
    NodeRef {
        node: meshport_config::NodeId::from_bytes([number; 32]),
        name: name.parse().expect("a node name"),
        site: site.parse().expect("a site name"),
    }
}

fn origin_ref(name: &str, site: &str, number: u8) -> OriginRef {
    let NodeRef { node, name, site } = who(name, site, number);
    OriginRef { node: Some(node), name: name.to_string(), site: Some(site), relay: None }
}

fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

fn origin(name: &str, site: &str, number: u8) -> OriginStatus {
    OriginStatus {
        who: origin_ref(name, site, number),
        state: "ready".into(),
        state_since_s: 7_500,
        path: "direct".into(),
        rtt_ms: Some(35.04),
        loss_percent: Some(0),
        sessions: 0,
        usable: true,
        chosen: false,
        shares: false,
        lacks: String::new(),
    }
}

pub(crate) fn service() -> ServiceStatus {
    let first =
        OriginStatus { rtt_ms: Some(0.42), sessions: 12, chosen: true, ..origin("cp-1", "fra", 1) };
    let second = OriginStatus { loss_percent: Some(2), ..origin("cp-2", "ams", 2) };
    let third = OriginStatus {
        state: "unready".into(),
        state_since_s: 12,
        rtt_ms: None,
        path: "dead".into(),
        loss_percent: Some(100),
        usable: false,
        lacks: "path lost 12 s ago".into(),
        ..origin("cp-3", "nyc", 3)
    };
    ServiceStatus {
        name: "kube-apiserver".parse().expect("a service name"),
        listen: vec![address("127.0.0.1:7445"), address("[::1]:7445")],
        lost: Vec::new(),
        policy: "nearest".into(),
        chosen: Some(Chosen {
            who: origin_ref("cp-1", "fra", 1),
            why: "nearest ready".into(),
            since_s: 7_500,
        }),
        origins: vec![first, second, third],
        offering: None,
        sessions_open: 12,
        sessions_total: 3_104,
        sessions_failed: 0,
    }
}

pub(crate) fn sample() -> Status {
    Status {
        process: ProcessStatus {
            version: "0.1.0".into(),
            uptime_s: 273_600,
            mesh_listen: address("[::]:51820"),
            admin_http: Some(address("127.0.0.1:7446")),
            needs_restart: Vec::new(),
            failed_upgrade: None,
            is_leaving: false,
            now_s: None,
        },
        me: who("worker-7", "fra", 9),
        roles: "node".parse().expect("roles"),
        credential_expires_at: UnixSeconds(1_000_000 + 341 * 86_400),
        members: MemberCounts { alive: 17, down: 1, left: 0, releases: BTreeMap::new() },
        absent: vec![AbsentMember {
            who: who("cp-3", "nyc", 3),
            liveness: "down".into(),
            since_s: 192,
        }],
        secret: SecretStatus::default(),
        former_key: None,
        renewal: Default::default(),
        reach: None,
        way_back: None,
        services: vec![service()],
        edge: EdgeStatus::default(),
        warnings: vec!["the seed seed.example.com:51820 does not resolve".into()],
        findings: Vec::new(),
    }
}

#[test]
fn releases_are_counted_while_members_run_several() {
    let mut sample = sample();
    sample.members.releases = BTreeMap::from([("0.1.0".into(), 17)]);
    assert!(!status(&sample, 1_000_000, None).contains("members run"));
    sample.members.releases =
        BTreeMap::from([("0.0.10".into(), 2), ("0.1.0".into(), 14), ("unknown".into(), 1)]);
    let text = status(&sample, 1_000_000, None);
    assert!(text.contains("members run 0.1.0 (14), 0.0.10 (2), unknown (1)\n"), "{text}");
}

/// The daemon doubts a jump of the clock ahead for a while, which the clock of this program shows
/// at once.
#[test]
fn a_credential_has_expired_once_it_has_for_the_daemon() {
    let mut sample = sample();
    sample.process.now_s = Some(1_000_000);
    let text = status(&sample, 1_000_000 + 400 * 86_400, None);
    assert!(text.contains("credential expires in 341d"), "{text}");
    sample.process.now_s = Some(1_000_000 + 341 * 86_400);
    assert!(status(&sample, 1_000_000, None).contains("credential has expired"));
}

#[test]
fn an_overlap_of_secrets_is_said() {
    let mut sample = sample();
    sample.secret = SecretStatus {
        number: 3,
        rotated_at: Some(UnixSeconds(990_000)),
        former_ends_at: Some(UnixSeconds(1_000_000 + 86_400)),
        lagging: 2,
        lagging_names: vec!["a".into(), "b".into()],
    };
    let text = status(&sample, 1_000_000, None);
    let line = "mesh secret 3, the previous one works for 1d; 2 members may lack the new one\n";
    assert!(text.contains(line), "{text}");
}

#[test]
fn an_exposed_listener_is_shown_with_what_it_refused() {
    let mut sample = sample();
    sample.edge.exposed = vec![ExposedStatus {
        name: "ci".parse().expect("a name"),
        listen: vec![address("203.0.113.5:6443")],
        closed: Vec::new(),
        lost: Vec::new(),
        services: vec!["kube-apiserver".parse().expect("a service name")],
        sessions_open: 1,
        sessions_total: 340,
        refused: [("not-allowed", 3), ("over-rate", 1)].map(|(it, n)| (it.into(), n)).into(),
    }];
    let text = status(&sample, 1_000_000, None);
    let block = "\nexposed ci at 203.0.113.5:6443, to kube-apiserver\n  \
                 1 connection open, 340 sessions since start\n  \
                 refused: 3 not-allowed, 1 over-rate\n";
    assert!(text.contains(block), "{text}");
    sample.edge.exposed[0].closed = sample.edge.exposed[0].listen.clone();
    let text = status(&sample, 1_000_000, None);
    assert!(text.contains("  closed, since no origin answers: 203.0.113.5:6443\n"), "{text}");
}

#[test]
fn an_offered_service_is_shown_with_its_instances() {
    let mut sample = sample();
    let offered = |name: &str, instances: &[&str]| OfferedStatus {
        name: name.parse().expect("a service name"),
        instances: instances.iter().map(|it| (*it).to_owned()).collect(),
        allow: vec!["site:fra".into()],
        ends_in_s: 42,
    };
    sample.edge.offered = vec![offered("db", &[]), offered("web", &["10.1.0.1:80", "10.1.0.2:80"])];
    let text = status(&sample, 1_000_000, None);
    let blocks = "\noffered db, to site:fra, for 42s unless renewed\n  no instance is ready\n\
                  \noffered web, to site:fra, for 42s unless renewed\n  \
                  2 instances: 10.1.0.1:80, 10.1.0.2:80\n";
    assert!(text.contains(blocks), "{text}");
}

/// Control planes of one site are about as near.
#[test]
fn origins_that_share_new_sessions_are_named() {
    let mut sample = service();
    for (place, rtt_ms) in [(0, 0.42), (1, 0.40)] {
        sample.origins[place].shares = true;
        sample.origins[place].rtt_ms = Some(rtt_ms);
    }
    let said = routes(&[sample.clone()], None);
    assert!(said.contains("nearest ready; shares new sessions with cp-2\n"), "{said}");
    assert!(said.contains("shares new sessions\n") && !said.contains("nearer by"), "{said}");
    let shown = |service: ServiceStatus| {
        status(&Status { services: vec![service], ..self::sample() }, 1_000_000, None)
    };
    let text = shown(sample.clone());
    let uses = "nearest ready, for 2h 5m; shares new sessions with cp-2\n";
    assert!(text.contains(uses) && text.contains("\n  +  cp-2 "), "{text}");
    // The reason of the choice says it.
    let spread = ServiceStatus { policy: "spread".into(), ..sample.clone() };
    assert!(!shown(spread).contains("shares new sessions"));
    let more = (4..9).map(|number| OriginStatus {
        shares: true,
        ..origin(&format!("cp-{number}"), "fra", number)
    });
    sample.origins.extend(more);
    let text = shown(sample);
    assert!(text.contains("with cp-2, cp-4, cp-5, cp-6 and 2 more\n"), "{text}");
}

#[test]
fn status_at_a_glance() {
    assert_eq!(
        status(&sample(), 1_000_000, None),
        "\
worker-7 in site fra (node), up 3d 4h, meshport 0.1.0
mesh on [::]:51820: 17 alive, 1 down; credential expires in 341d

kube-apiserver at 127.0.0.1:7445 and [::1]:7445, policy nearest
  uses cp-1 in fra, 0.42 ms: nearest ready, for 2h 5m
  12 sessions open, 3104 since start, 0 found no origin
     ORIGIN  SITE  STATE        RTT  PATH              SESSIONS    AGE  PROBLEM
  *  cp-1    fra   ready    0.42 ms  direct                  12  2h 5m
     cp-2    ams   ready    35.0 ms  direct, 2 % loss         0  2h 5m
     cp-3    nyc   unready        -  dead                     0    12s  path lost 12 s ago

Absent
  MEMBER  SITE  STATE  FOR
  cp-3    nyc   down   3m 12s

Warnings
  - the seed seed.example.com:51820 does not resolve
"
    );
}

#[test]
fn status_fits_a_narrow_terminal() {
    for width in [48, 60, 80, 100] {
        let page = status(&sample(), 1_000_000, Some(width));
        let widest = page.lines().map(|line| line.chars().count()).max().unwrap_or(0);
        assert!(widest <= width, "{widest} of {width} columns:\n{page}");
        assert!(page.contains("cp-3") && page.contains("unready"), "{page}");
    }
}

#[test]
fn status_of_a_node_without_an_origin() {
    let mut lonely = sample();
    lonely.absent.clear();
    lonely.warnings.clear();
    lonely.credential_expires_at = UnixSeconds(5);
    let service = &mut lonely.services[0];
    service.chosen = None;
    service.origins.clear();
    service.listen.clear();
    service.offering = Some(Offering {
        address: "127.0.0.1:6443".into(),
        state: "refusing".into(),
        since_s: 3,
        detail: "connection\nrefused".into(),
        sessions: 1,
    });
    assert_eq!(
        status(&lonely, 1_000_000, None),
        "\
worker-7 in site fra (node), up 3d 4h, meshport 0.1.0
mesh on [::]:51820: 17 alive, 1 down; credential has expired

kube-apiserver, offered only
  offers 127.0.0.1:6443: refusing for 3s (connection?refused), 1 session of other nodes
"
    );
}

#[test]
fn routes_in_the_order_they_are_tried() {
    assert_eq!(
        routes(&[service()], None),
        "\
kube-apiserver at 127.0.0.1:7445 and [::1]:7445, policy nearest
  TRY  ORIGIN  SITE  STATE        RTT  PATH              WHY
    1  cp-1    fra   ready    0.42 ms  direct            nearest ready
    2  cp-2    ams   ready    35.0 ms  direct, 2 % loss  farther by 34.6 ms
    -  cp-3    nyc   unready        -  dead              path lost 12 s ago
"
    );
    assert_eq!(routes(&[], None), "no service is used or offered here\n");
}

#[test]
fn peers_known_and_unknown() {
    let known = PeerRow {
        lacks: None,
        way_back: None,
        node: who("cp-1", "fra", 1).node,
        name: Some("cp-1".parse().expect("a node name")),
        site: Some("fra".parse().expect("a site name")),
        roles: Some("node".parse().expect("roles")),
        invite: None,
        authority: None,
        liveness: "alive".into(),
        endpoint: Some(address("203.0.113.5:51820")),
        handshake_age_s: Some(71),
        rtt_ms: Some(0.42),
        rx_bytes: 1_500_000,
        tx_bytes: 900,
    };
    let unknown = PeerRow {
        lacks: Some("both behind NAT: no direct path".into()),
        way_back: None,
        node: who("x", "y", 2).node,
        name: None,
        site: None,
        roles: None,
        invite: None,
        authority: None,
        liveness: "unknown".into(),
        endpoint: None,
        handshake_age_s: None,
        rtt_ms: None,
        rx_bytes: 0,
        tx_bytes: 148,
    };
    let lacks =
        "its NAT and this node's are both symmetric: no direct path without a forwarded port";
    let long = PeerRow { lacks: Some(lacks.into()), ..unknown.clone() };
    let text = peers(&[long], Some(80));
    assert!(text.contains("forwarded port\n"), "{text}");
    assert!(text.lines().all(|line| line.len() <= 80), "{text}");
    assert_eq!(
        peers(&[known, unknown], None),
        "\
NAME  SITE  LIVENESS  ENDPOINT               RTT  HANDSHAKE  RECEIVED   SENT  NODE      ROLES
cp-1  fra   alive     203.0.113.5:51820  0.42 ms     1m 11s   1.4 MiB  900 B  AQEBAQEB  node
-     -     unknown   -                        -          -       0 B  148 B  AgICAgIC  -
AgICAgIC: both behind NAT: no direct path
"
    );
    assert_eq!(peers(&[], None), "no other node is known yet\n");
}

#[test]
fn peers_of_a_node_with_a_way_back_show_it() {
    let row = |number, name: &str, liveness: &str, way_back: Option<&str>| PeerRow {
        lacks: None,
        way_back: way_back.map(Into::into),
        node: who(name, "fra", number).node,
        name: Some(name.parse().expect("a node name")),
        site: Some("fra".parse().expect("a site name")),
        roles: Some("node".parse().expect("roles")),
        invite: None,
        authority: None,
        liveness: liveness.into(),
        endpoint: None,
        handshake_age_s: None,
        rtt_ms: None,
        rx_bytes: 0,
        tx_bytes: 0,
    };
    let shown = peers(
        &[
            row(1, "worker-1", "alive", Some("direct")),
            row(2, "worker-2", "alive", Some("through relay-1")),
            row(3, "worker-3", "down", Some("down")),
            row(4, "relay-1", "alive", None),
        ],
        None,
    );
    let column = shown.find("WAY BACK").expect("the column is there");
    let ways = shown.lines().map(|line| line[column..column + 17].trim());
    let ways: Vec<&str> = ways.collect();
    assert_eq!(ways, ["WAY BACK", "direct", "through relay-1", "down", ""], "{shown}");
}

#[test]
fn a_ping_ends_with_what_it_measured() {
    let who = who("cp-1", "fra", 1);
    let probes = [Some(0.4), None, Some(0.6)];
    let summary = PingSummary::of(&probes);
    assert_eq!(ping_header(&who), "ping cp-1 in fra (AQEBAQEB) through the mesh\n");
    assert_eq!(ping_line(&who, 1, probes[0]), "answer 1 from cp-1: 0.40 ms\n");
    assert_eq!(ping_line(&who, 2, probes[1]), "no answer 2 from cp-1\n");
    assert_eq!(
        ping_summary(&who, &summary),
        "cp-1: 3 sent, 2 answered, 33 % lost; min 0.40 ms, avg 0.50 ms, max 0.60 ms\n"
    );
    let silent = PingSummary::of(&[None]);
    assert_eq!(ping_summary(&who, &silent), "cp-1: 1 sent, 0 answered, 100 % lost\n");
}

#[test]
fn what_is_wrong_has_a_colour() {
    let style = Style { width: None, colour: true };
    let page = status(&sample(), 1_000_000, style);
    for (text, code) in [("unready", 33), ("dead", 31), ("direct, 2 % loss", 33), ("down", 31)] {
        assert!(page.contains(&format!("\u{1b}[{code}m{text}\u{1b}[0m")), "{text}: {page}");
    }
    let painted = page.lines().filter(|line| line.contains("\u{1b}["));
    assert_eq!(painted.count(), 4, "{page}");
    let plain = page.replace("\u{1b}[31m", "").replace("\u{1b}[33m", "").replace("\u{1b}[0m", "");
    assert_eq!(plain, status(&sample(), 1_000_000, None));
    assert!(routes(&[service()], style).contains("\u{1b}[31mpath lost 12 s ago"));
}
