//! An attacker holds a leaked invite and an admitted node, and issues newer credentials for
//! existing nodes: fewer roles, another site, an early expiry, a different node. They are sent to
//! every node continuously, in every way that the protocol has, and no node accepts them.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use meshport_config::{
    AuthorityKey, Credential, Delegation, DelegationKey, Grant, Issued, NodeId, Role, Roles,
    SiteName, Subject, Succession, UnixSeconds,
};
use meshport_core::wire::{Answer, Header};
use meshport_discovery::Count;
use meshport_mesh::MeshCount;
use meshport_mesh::{Identity, Incoming, Mesh, MeshConfig, UdpOuter, ports};
use meshport_tests::identity::Identity as Saved;
use meshport_tests::process::{meshport, run_ok};
use meshport_tests::wait;
use meshport_tests::world::{NodePlan, World};
use serde_json::Value;
use tokio::runtime::Builder;
use tokio::sync::mpsc::{Receiver, Sender, channel};

const SETTLE: Duration = Duration::from_secs(60);
/// How long the forged credentials are sent next to requests: news reaches all nodes within a
/// second.
const TOLD_FOR: Duration = Duration::from_secs(15);
/// Interval between rounds of all of them, within the limits for one peer.
const AGAIN: Duration = Duration::from_millis(250);
const PATIENCE: Duration = Duration::from_secs(10);
const HOUR_S: u64 = 3600;

/// The nodes that run daemons.
const HONEST: [&str; 3] = ["cp-a", "worker-b", "worker-c"];
/// A service for nodes of one site; the forged credential of a node elsewhere names that site.
const SERVICE: &str = "vault";
/// The first bytes of a hello, and of a gossip datagram with items and with rumours (`wire.rs`).
const HELLO: [u8; 2] = [1, 1];
const GOSSIP: [[u8; 2]; 2] = [[1, 5], [1, 6]];
/// Bytes of a node's own signature, at the end of its credential.
const END: usize = 64;

/// An admitted node without a daemon: the test decides what it sends.
struct Thief {
    orders: Option<Sender<Order>>,
    thread: Option<JoinHandle<()>>,
}

enum Order {
    /// Says these from now on, again and again.
    Tell(Vec<Datagram>),
    /// Opens a stream with this header, and gives its first answer.
    Open(NodeId, Vec<u8>, mpsc::SyncSender<Option<Answer>>),
}

struct Datagram {
    to: NodeId,
    port: u16,
    payload: Vec<u8>,
}

impl Thief {
    fn start(saved: Saved, at: SocketAddr, peers: BTreeMap<NodeId, SocketAddr>) -> Self {
        let (orders, inbox) = channel(1);
        let now = saved.credential.issued_at;
        let thread = thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let identity =
                    Identity { key: saved.key, credential: saved.credential, secret: saved.secret };
                let socket = Arc::new(UdpOuter::bind(at).expect("the address is its own"));
                let config = MeshConfig::default();
                let (mesh, incoming) = Mesh::start(identity, config, socket, [7; 32], move || now)
                    .expect("a good identity");
                for (node, at) in &peers {
                    mesh.set_peer(*node, &[*at], None);
                    mesh.connect(node);
                }
                obey(&mesh, incoming, inbox).await;
            });
        });
        Self { orders: Some(orders), thread: Some(thread) }
    }

    fn order(&self, order: Order) {
        let sent = self.orders.as_ref().is_some_and(|orders| orders.blocking_send(order).is_ok());
        assert!(sent, "its thread has ended");
    }

    /// The answer of a node to a stream with this header.
    fn opens(&self, to: NodeId, header: &Header) -> Option<Answer> {
        let (sender, answer) = mpsc::sync_channel(1);
        self.order(Order::Open(to, header.encode(), sender));
        answer.recv_timeout(PATIENCE * 2).expect("its thread runs")
    }
}

impl Drop for Thief {
    fn drop(&mut self) {
        self.orders = None;
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(thread::panicking() || !matches!(ended, Some(Err(_))), "the thief failed");
    }
}

async fn obey(mesh: &Mesh, mut incoming: Incoming, mut orders: Receiver<Order>) {
    let (mut tick, mut told) = (tokio::time::interval(AGAIN), Vec::new());
    loop {
        tokio::select! {
            order = orders.recv() => match order {
                Some(Order::Tell(datagrams)) => told = datagrams,
                Some(Order::Open(to, header, answer)) => {
                    // The test may have stopped waiting.
                    let _ = answer.send(open(mesh, to, header).await);
                }
                None => return mesh.close().await,
            },
            _ = tick.tick() => {
                for Datagram { to, port, payload } in &told {
                    // A restarted node is absent for a moment.
                    let _ = mesh.send_datagram(*to, *port, payload);
                }
            }
            Some(_) = incoming.events.recv() => {}
        }
    }
}

async fn open(mesh: &Mesh, to: NodeId, header: Vec<u8>) -> Option<Answer> {
    let asked = async {
        let mut stream = mesh.open_stream(to).await.ok()?;
        stream.send.write_chunk(header.into()).await.ok()?;
        let mut chunks = [Default::default()];
        stream.recv.read_chunks(&mut chunks).await.ok()??;
        Answer::from_code(*chunks[0].first()?)
    };
    tokio::time::timeout(PATIENCE, asked).await.ok()?
}

/// A key that may issue anything, as in a generous invite.
struct Leaked {
    delegation: Delegation,
    key: DelegationKey,
    now: UnixSeconds,
}

impl Leaked {
    /// A forger with the authority's key in this node's folder, for one site.
    fn by(world: &World, node: &str, site: &str, now: UnixSeconds) -> Self {
        let text = fs::read_to_string(world.at(node).state().join("authority.key"));
        let authority: AuthorityKey = text.expect("it was made here").parse().expect("a key");
        let key = DelegationKey::from_bytes([0x5a; 32]);
        let grant = Grant {
            roles: "node,relay,origin:kube-apiserver,origin:vault".parse().expect("roles"),
            site: Some(site.parse().expect("a site")),
            name: None,
            not_before: now,
            join_until: now.saturating_add(HOUR_S),
            credential_ttl_s: HOUR_S,
        };
        let delegation = Delegation::issue(&authority, key.public(), grant).expect("an invite");
        Self { delegation, key, now }
    }

    /// Issues a credential for another node.
    fn issue(&self, of: &Credential, change: impl FnOnce(&mut Subject), life_s: u64) -> Issued {
        let mut subject = Subject {
            node: of.node,
            record_key: of.record_key,
            name: of.name.clone(),
            site: self.delegation.grant.site.clone().expect("it names one"),
            roles: of.roles.clone(),
            succession: None,
        };
        change(&mut subject);
        // Later than any node's, and within the allowed clock difference.
        let from = self.now.saturating_add(60);
        let until = from.saturating_add(life_s);
        Credential::issue_by_delegation(&self.delegation, &self.key, subject, from, until)
            .expect("within the invite")
    }
}

struct Stage {
    world: World,
    thief: Thief,
    leaked: Leaked,
    nodes: BTreeMap<&'static str, Credential>,
    own: Saved,
}

impl Stage {
    fn new() -> Self {
        let mut world = World::new();
        let address = world.apiserver("cp-a");
        let offer = format!(
            "\n[service.{SERVICE}]\nlisten = []\norigin = \"{address}\"\nallow = [\"site:a\"]\n"
        );
        let origin = NodePlan::new("cp-a", "a").origin(address).role(&format!("origin:{SERVICE}"));
        world.node(&origin.settings(&offer));
        world.node(&NodePlan::new("worker-b", "a"));
        world.node(&NodePlan::new("worker-c", "c"));
        world.meet();
        for node in ["worker-b", "worker-c"] {
            world.chooses(node, "cp-a", SETTLE);
        }
        world.make(&NodePlan::new("thief", "d").role("relay"));
        let nodes = HONEST.map(|name| (name, Saved::read(world.at(name).state()).credential));
        let nodes = BTreeMap::from(nodes);
        let public = |name| world.shaper().public_addr(name).expect("it has one");
        let peers = nodes.iter().map(|(name, of)| (of.node, public(name))).collect();
        let saved = || Saved::read(world.at("thief").state());
        let thief = Thief::start(saved(), world.at("thief").udp, peers);
        let own = saved();
        let leaked = Leaked::by(&world, "cp-a", "a", own.credential.issued_at);
        let stage = Self { world, thief, leaked, nodes, own };
        for name in HONEST {
            wait::until(&format!("{name} lets the thief in"), SETTLE, || {
                stage.rows(name).contains_key("thief").then_some(())
            });
        }
        stage
    }

    /// All credentials that a node lists, by name.
    fn rows(&self, at: &str) -> BTreeMap<String, Value> {
        let state = self.world.at(at).state().to_string_lossy().into_owned();
        let words = ["credentials", "--json", "--within", "1s", "--state-dir", &state];
        let listed = run_ok(&meshport().to_string_lossy(), &words);
        let rows: Vec<Value> = serde_json::from_str(&listed).expect("a list");
        let named = rows.into_iter().map(|mut row| {
            // A node itself reports which secret it has, some time after it was met.
            row.as_object_mut().expect("a row").remove("secret_number");
            row["own"] = Value::Null;
            (row["name"].as_str().unwrap_or_default().to_owned(), row)
        });
        named.collect()
    }

    /// The credentials of the honest, as all of them list those.
    fn all_rows(&self) -> Vec<Value> {
        let of = |at| {
            let rows = self.rows(at);
            HONEST.map(|name| rows.get(name).cloned().unwrap_or_default())
        };
        HONEST.into_iter().flat_map(of).collect()
    }

    fn rejected(&self, at: &str) -> f64 {
        self.world.at(at).metrics().count(Count::RejectedCredentials)
    }

    fn refused(&self, at: &str) -> f64 {
        self.world.at(at).metrics().count(MeshCount::CredentialsRefused)
    }

    /// Every forged credential, as bytes: of each that the thief issues, with four wrong ends.
    fn forged(&self) -> Vec<(NodeId, Vec<u8>)> {
        let (origin, worker) = (&self.nodes["cp-a"], &self.nodes["worker-c"]);
        let issue = |of, change: &dyn Fn(&mut Subject), life_s| {
            (of, self.leaked.issue(of, |subject| change(subject), life_s).to_bytes())
        };
        let mut made = Vec::new();
        for (of, issued) in [
            issue(origin, &|it| it.roles = Roles::from(Role::Node), HOUR_S),
            issue(origin, &|it| it.record_key = self.own.credential.record_key, HOUR_S),
            issue(origin, &|_| {}, 1),
            issue(worker, &|it| it.roles = "node,relay".parse().expect("roles"), HOUR_S),
        ] {
            let end = |credential: &Credential| {
                let bytes = credential.to_bytes();
                bytes[bytes.len() - END..].to_vec()
            };
            let ends = [end(of), end(&self.own.credential), vec![0; END], Vec::new()];
            made.extend(ends.map(|end| (of.node, [&*issued, &*end].concat())));
        }
        // The thief itself as the origin's successor, without the origin's consent.
        let me = self.own.node();
        let mut agreed =
            Succession::agree(&self.own.key, &self.own.node(), &origin.mesh, self.leaked.now);
        agreed.former = origin.node;
        let subject = |it: &mut Subject| it.succession = Some(agreed.clone());
        let issued = self.leaked.issue(&self.own.credential, subject, HOUR_S);
        let place = issued.countersign(&self.own.key).expect("it is for the thief");
        made.push((me, place.to_bytes()));
        made
    }

    /// The forged credentials as messages to all nodes: as gossip, and as a node's own.
    fn datagrams(&self, forged: &[(NodeId, Vec<u8>)]) -> Vec<Datagram> {
        let mut all = Vec::new();
        for to in self.nodes.values().map(|credential| credential.node) {
            for (of, credential) in forged {
                for kind in GOSSIP {
                    let payload = gossip(kind, of, credential);
                    all.push(Datagram { to, port: ports::GOSSIP, payload });
                }
                let length = u16::try_from(credential.len()).expect("it is bounded");
                let mut payload = [&HELLO[..], &7_u64.to_be_bytes(), &[1]].concat();
                payload.extend(length.to_be_bytes());
                payload.extend(credential);
                all.push(Datagram { to, port: ports::CONTROL, payload });
            }
        }
        all
    }

    #[track_caller]
    fn goes_on(&self) {
        for node in ["worker-b", "worker-c"] {
            assert_eq!(self.world.get(node, "/version").status, 200, "through {node}");
            assert_eq!(self.world.at(node).chosen().as_deref(), Some("cp-a"), "of {node}");
        }
    }
}

/// A gossip item with only a credential: the first eight bytes of its node, the credential, no
/// record, no membership.
fn gossip(kind: [u8; 2], of: &NodeId, credential: &[u8]) -> Vec<u8> {
    let length = [0x80 | (credential.len() & 0x7f) as u8, (credential.len() >> 7) as u8];
    [&kind[..], &[1], &of.as_bytes()[..8], &[1], &length, credential, &[0, 0]].concat()
}

#[test]
fn what_an_issuer_says_of_nodes_that_exist_changes_none_of_them() {
    let mut stage = Stage::new();
    let before = stage.all_rows();
    let counted = HONEST.map(|name| (name, stage.rejected(name), stage.refused(name)));
    stage.goes_on();
    stage.thief.order(Order::Tell(stage.datagrams(&stage.forged())));
    for (name, rejected, refused) in counted {
        wait::until(&format!("{name} has refused what it was told"), SETTLE, || {
            let more = stage.rejected(name) >= rejected + 40.0 && stage.refused(name) > refused;
            more.then_some(())
        });
    }
    wait::throughout("nobody believes it", TOLD_FOR, || {
        stage.goes_on();
        assert_eq!(stage.all_rows(), before);
        true
    });
    // A node that knows no other yet and receives that before anything else.
    stage.world.kill("worker-c");
    let directory = stage.world.at("worker-c").state().join("directory");
    if directory.exists() {
        fs::remove_file(directory).expect("it is the world's own");
    }
    stage.world.start("worker-c");
    stage.world.meet();
    stage.world.chooses("worker-c", "cp-a", SETTLE);
    wait::until("it knows them as they are", SETTLE, || (stage.all_rows() == before).then_some(()));
    stage.goes_on();
    for name in HONEST {
        let log = stage.world.node_mut(name).process().output();
        assert!(log.contains("is not signed by the node it names"), "{name}: {log}");
    }
}

#[test]
fn a_relay_gets_nothing_by_a_credential_that_its_client_never_signed() {
    let stage = Stage::new();
    let origin = stage.nodes["cp-a"].node;
    let service = || SERVICE.parse().expect("a name");
    let carried = |credential| Header::carried(service(), credential, PATIENCE);
    // A relay is trusted to name the client node: one that may use the service, and one that may
    // not.
    let known = |name: &str| carried(stage.nodes[name].clone());
    assert_eq!(stage.thief.opens(origin, &known("worker-b")), Some(Answer::Connected));
    assert_eq!(stage.thief.opens(origin, &known("worker-c")), Some(Answer::NotAllowed));
    // The list lets site a in, and the leaked invite says it of a node that is elsewhere.
    let worker = &stage.nodes["worker-c"];
    let issued = stage.leaked.issue(worker, |_| {}, HOUR_S).to_bytes();
    let site: SiteName = "a".parse().expect("a site");
    for of in [worker, &stage.own.credential] {
        let end = of.to_bytes();
        let forged = [&*issued, &end[end.len() - END..]].concat();
        let forged = Credential::from_bytes(&forged).expect("it is well formed");
        assert_eq!((forged.node, &forged.site), (worker.node, &site));
        assert_eq!(stage.thief.opens(origin, &carried(forged)), Some(Answer::NotAllowed));
    }
    let refused = |stage: &Stage| {
        let metrics = stage.world.at("cp-a").metrics();
        metrics.sum("meshport_served_streams_total", "answer=\"not-allowed\"")
    };
    assert!(refused(&stage) >= 3.0, "{}", refused(&stage));
    stage.goes_on();
}
