//! The cluster's own secrets that pass through meshport's hands: those of health probes, of the
//! reading of the cluster's list, and of the kubeconfigs that verbs read.

use std::fs;
use std::io::{self, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;

use data_encoding::{BASE64, BASE64URL_NOPAD};
use meshport_demo::apiserver::{Authority, Leaf};
use meshport_tests::http::Request;
use meshport_tests::process::{Process, meshport};
use meshport_tests::wait;
use meshport_tests::world::{NodePlan, World};
use rand_core::{OsRng, RngCore};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use tempfile::TempDir;

use super::{SECRET_BYTES, SETTLE, Secret, Seen};

/// Offset of the P-256 private key in its PKCS #8 document, and the two bytes before it.
const SCALAR_AT: usize = 36;
const SCALAR_TAG: [u8; 2] = [0x04, 0x20];
/// A token and a key for health probes, and for the user of the kubeconfig.
pub(super) const CLUSTERS: usize = 2 * 2;

/// The files of a cluster that an operator has.
pub(super) struct Cluster {
    folder: TempDir,
    authority: PathBuf,
    kubeconfig: String,
    pub(super) secrets: Vec<Secret>,
}

impl Cluster {
    /// For a world that has an apiserver.
    pub(super) fn new(world: &World) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let pki = world.path("pki");
        let issuer = Authority::in_folder(&pki).expect("the apiservers have one");
        let [health, user] =
            ["health", "user"].map(|name| issuer.issue_client(name).expect("a valid name"));
        let at = |name: &str| folder.path().join(name);
        health.write(&at("health.crt"), &at("health.key")).expect("written");
        let [token, users] = [(); 2].map(|()| token());
        fs::write(at("health.token"), &token).expect("written");
        let authority = pki.join("ca.crt");
        let kubeconfig = kubeconfig(&authority, &user, &users);
        fs::write(at("kubeconfig"), &kubeconfig).expect("written");
        let of_token = |home: &str, text: &str| Secret {
            home: home.to_owned(),
            bytes: text.as_bytes().to_vec(),
            text: text.to_owned(),
        };
        let secrets = vec![
            of_token("the token of probes", &token),
            of_token("the token of a kubeconfig", &users),
            of_leaf("the key of probes", &health),
            of_leaf("the key of a kubeconfig", &user),
        ];
        Self { folder, authority, kubeconfig, secrets }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// The kubeconfig that reaches the cluster today.
    pub(super) fn source(&self) -> String {
        self.path("kubeconfig")
    }

    /// Settings of an origin's health.
    pub(super) fn health(&self) -> String {
        format!(
            "health.ca-file = {:?}\nhealth.bearer-token-file = {:?}\n\
             health.client-cert-file = {:?}\nhealth.client-key-file = {:?}\n",
            self.authority,
            self.path("health.token"),
            self.path("health.crt"),
            self.path("health.key")
        )
    }

    /// Settings of a node that reads the cluster's list.
    pub(super) fn list(&self) -> String {
        format!("cluster-kubeconfig = {:?}\n", self.source())
    }

    /// Waits until both nodes have used their credentials.
    #[track_caller]
    pub(super) fn is_used(world: &mut World) {
        // The stand-in knows the certificate but has no such list.
        wait::until("the worker has asked for the cluster's list", 2 * SETTLE, || {
            let said = world.node_mut("worker").process().output();
            said.contains("the apiserver answers 404").then_some(())
        });
        let said = world.node_mut("cp").process().output();
        assert!(!said.contains("probing without the token"), "the probes had no token");
    }

    /// Damages each file, and lets each of its readers report it.
    pub(super) fn damage(&self, world: &World, seen: &mut Seen) {
        let config = world.path("cp.toml").display().to_string();
        let damaged = self.path("damaged");
        // An error in the token's line before it and after it, another type of value, a truncated
        // file.
        for (whole, broken) in
            [("token: ", "token: \"x"), ("token: ", "token: ["), ("users:", "u:")]
        {
            fs::write(&damaged, self.kubeconfig.replace(whole, broken)).expect("written");
            let verb = ["kubeconfig", "--from", &damaged, "--config", &config];
            seen.run(&verb);
        }
        let end = self.kubeconfig.rfind("token: ").expect("it has one") + SECRET_BYTES;
        fs::write(&damaged, &self.kubeconfig[..end]).expect("written");
        seen.run(&["kubeconfig", "--from", &damaged, "--merge", &damaged, "--config", &config]);
        let key = self.path("health.key");
        let text = fs::read_to_string(&key).expect("it is there");
        let (first, rest) = text.split_at(text.len() / 2);
        for broken in [format!("{first}!{rest}"), first.to_owned(), text.replace("KEY", "X")] {
            fs::write(&key, broken).expect("written");
            let mut command = Command::new(meshport());
            command.args(["run", "--config", &config]);
            let mut daemon = Process::start("damaged", &mut command, &world.path("damaged.log"));
            wait::until("it says what is wrong with the key", SETTLE, || {
                daemon.output().contains("cannot be used for health probes").then_some(())
            });
            daemon.signal("TERM");
            daemon.ended(SETTLE);
            seen.run(&["check", "--config", &config]);
        }
    }
}

fn token() -> String {
    let mut bytes = [0; SECRET_BYTES];
    OsRng.fill_bytes(&mut bytes);
    BASE64URL_NOPAD.encode(&bytes)
}

/// The user's line is the last one.
fn kubeconfig(authority: &Path, user: &Leaf, token: &str) -> String {
    let authority = authority.display();
    let certificate = BASE64.encode(user.certificate_pem().as_bytes());
    let key = BASE64.encode(user.key_pem().as_bytes());
    format!(
        "\
apiVersion: v1
kind: Config
clusters:
- cluster:
    server: https://10.99.0.11:6443
    tls-server-name: kubernetes
    certificate-authority: {authority}
  name: prod
contexts:
- context: {{cluster: prod, user: me}}
  name: prod
current-context: prod
users:
- name: me
  user:
    client-certificate-data: {certificate}
    client-key-data: {key}
    token: {token}
"
    )
}

/// The number that is the key, and the line of its PEM that has the most of it.
fn of_leaf(home: &str, leaf: &Leaf) -> Secret {
    let lines: Vec<&str> = leaf.key_pem().lines().collect();
    let body = lines[1..lines.len() - 1].concat();
    let document = BASE64.decode(body.as_bytes()).expect("PEM");
    assert_eq!(document[SCALAR_AT - 2..SCALAR_AT], SCALAR_TAG, "another kind of key");
    let bytes = document[SCALAR_AT..SCALAR_AT + SECRET_BYTES].to_vec();
    Secret { home: home.to_owned(), bytes, text: lines[2].to_owned() }
}

/// A list of one apiserver, and one of two.
const SLICE: &str = r#"{"endpoints":[{"addresses":["10.0.0.1"]}],"ports":[{"port":6443}]}"#;
const ENDPOINTS: &str = r#"{"subsets":[{"addresses":[{"ip":"10.0.0.1"},{"ip":"10.0.0.2"}],
    "ports":[{"port":6443}]}]}"#;

/// An apiserver that has the list of apiservers in one form, or in none.
struct Lister {
    service: &'static str,
    /// The end of the path that it answers, and the answer.
    kind: &'static str,
    list: &'static str,
    /// Its answer to everything else.
    status: u16,
}

const LISTERS: [Lister; 4] = [
    Lister { service: "slices", kind: "endpointslices/kubernetes", list: SLICE, status: 404 },
    Lister { service: "endpoints", kind: "endpoints/kubernetes", list: ENDPOINTS, status: 403 },
    Lister { service: "forbids", kind: "nothing", list: "", status: 403 },
    Lister { service: "has-none", kind: "nothing", list: "", status: 404 },
];

impl Lister {
    /// Serves as long as the process; returns its address.
    fn start(&'static self, tls: Arc<ServerConfig>) -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = listener.local_addr().expect("bound");
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                // A client that gives up is none of its business.
                let _ = self.answer(client, tls.clone());
            }
        });
        address
    }

    fn answer(&self, client: TcpStream, tls: Arc<ServerConfig>) -> io::Result<()> {
        let tls = ServerConnection::new(tls).map_err(io::Error::other)?;
        let mut client = BufReader::new(StreamOwned::new(tls, client));
        let Some(request) = Request::read(&mut client)? else { return Ok(()) };
        let is_it = request.path.ends_with(&format!("/namespaces/default/{}", self.kind));
        let (status, body) = if is_it { (200, self.list) } else { (self.status, "{}") };
        let length = body.len();
        write!(client.get_mut(), "HTTP/1.1 {status} -\r\nContent-Length: {length}\r\n\r\n{body}")?;
        client.get_mut().flush()
    }
}

/// The list is read from the slice, else from the older object; without either, the log has the
/// answer to the last question.
#[test]
fn the_list_of_apiservers_is_read_in_either_form() {
    let mut world = World::new();
    let cluster = Cluster::new(&world);
    let issuer = Authority::in_folder(&world.path("pki")).expect("it is there");
    let leaf = issuer.issue_server("listers").expect("a valid name");
    let certificate = CertificateDer::from_pem_slice(leaf.certificate_pem().as_bytes());
    let key = PrivateKeyDer::from_pem_slice(leaf.key_pem().as_bytes()).expect("PEM");
    let tls = ServerConfig::builder().with_no_client_auth();
    let tls = tls.with_single_cert(vec![certificate.expect("PEM")], key).expect("a pair");
    let tls = Arc::new(tls);
    let services = LISTERS.iter().map(|lister| {
        let (service, address) = (lister.service, lister.start(tls.clone()));
        let list = cluster.list();
        format!(
            "\n[service.{service}]\nlisten = [\"127.0.0.1:0\"]\nfallback = [\"{address}\"]\n{list}"
        )
    });
    let services: String = services.collect();
    world.node(&NodePlan::new("worker", "a").settings(&services));
    wait::until("both lists are read", 2 * SETTLE, || {
        let metrics = world.at("worker").metrics();
        let listed = |service: &str| {
            metrics.sum("meshport_cluster_apiservers", &format!("service=\"{service}\""))
        };
        (listed("slices") == 1.0 && listed("endpoints") == 2.0).then_some(())
    });
    for (service, problem) in [
        ("forbids", "may not get endpointslices or endpoints in the namespace default (403)"),
        ("has-none", "the apiserver answers 404"),
    ] {
        wait::until("the problem is named", 2 * SETTLE, || {
            let said = world.node_mut("worker").process().output();
            let said = said.lines().filter(|line| line.contains("cannot read the cluster's list"));
            let mut said = said.filter(|line| line.contains(&format!("service={service}")));
            said.any(|line| line.contains(problem)).then_some(())
        });
    }
}
