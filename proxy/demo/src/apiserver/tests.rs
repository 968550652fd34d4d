use std::io;
use std::os::unix::fs::PermissionsExt as _;

use hyper::StatusCode;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;
use crate::client::{Client, ClientError, Stage};

const PATIENCE: Duration = Duration::from_secs(10);
/// Long enough to be sure that nothing is about to come.
const SILENCE: Duration = Duration::from_millis(150);

struct World {
    authority: Authority,
    stand_in: StandIn,
}

fn start(name: &str, adjust: impl FnOnce(&mut StandInConfig)) -> World {
    let authority = Authority::generate().unwrap();
    let mut config = StandInConfig::new(authority.issue_server(name).unwrap());
    config.watch_interval = Duration::from_millis(10);
    adjust(&mut config);
    World { authority, stand_in: StandIn::start(config).unwrap() }
}

impl World {
    fn client(&self) -> Client {
        let client = Client::new(self.stand_in.addr(), self.authority.certificate_pem()).unwrap();
        client.with_timeout(PATIENCE)
    }
}

async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let waiting = async {
        while !done() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, waiting).await.is_ok(), "never happened: {what}");
}

fn json(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).unwrap()
}

#[tokio::test]
async fn it_answers_what_clients_and_probes_ask() {
    let world = start("fra", |_| {});
    let client = world.client();
    for path in ["/readyz", "/livez", "/healthz"] {
        let answer = client.get(path).await.unwrap();
        assert_eq!((answer.status, &answer.body[..]), (StatusCode::OK, &b"ok"[..]), "{path}");
    }
    let version = json(&client.get("/version").await.unwrap().body);
    assert!(version["gitVersion"].as_str().unwrap().contains("stand-in"), "{version}");
    assert_eq!(client.get("/nothing").await.unwrap().status, StatusCode::NOT_FOUND);
    assert_eq!(client.get("/bytes/many").await.unwrap().status, StatusCode::BAD_REQUEST);
    assert_eq!(client.get("/bytes/100000").await.unwrap().body, vec![0; 100_000]);
    assert_eq!(client.whoami().await.unwrap().origin, "fra");

    world.stand_in.set_ready(false);
    let answer = client.get("/readyz").await.unwrap();
    assert_eq!(answer.status, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(client.get("/livez").await.unwrap().status, StatusCode::OK);
    assert_eq!(client.whoami().await.unwrap().origin, "fra");
    world.stand_in.set_ready(true);
    assert_eq!(client.get("/readyz").await.unwrap().status, StatusCode::OK);
}

/// What a client with this certificate is answered.
async fn answer_to(world: &World, leaf: &Leaf) -> io::Result<String> {
    let (chain, key) = leaf.to_rustls().unwrap();
    let config = rustls::ClientConfig::builder_with_provider(Arc::new(
        rustls::crypto::ring::default_provider(),
    ))
    .with_safe_default_protocol_versions()
    .unwrap()
    .with_root_certificates(authority::roots(world.authority.certificate_pem()).unwrap())
    .with_client_auth_cert(chain, key)
    .unwrap();
    let tcp = TcpStream::connect(world.stand_in.addr()).await?;
    let name = "kubernetes".try_into().unwrap();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let mut stream = connector.connect(name, tcp).await?;
    stream.write_all(b"GET /version HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

#[tokio::test]
async fn client_certificates_of_its_authority_are_verified() {
    let authority = Authority::generate().unwrap();
    let trusted = authority.certificate_pem().to_owned();
    let world = start("fra", |config| config.client_ca = Some(trusted));
    let own = authority.issue_client("worker").unwrap();
    assert!(answer_to(&world, &own).await.unwrap().starts_with("HTTP/1.1 200"));
    let foreign = Authority::generate().unwrap().issue_client("worker").unwrap();
    answer_to(&world, &foreign).await.unwrap_err();
    assert_eq!(world.client().whoami().await.unwrap().origin, "fra");
}

#[tokio::test]
async fn refused_connections_leave_open_ones_alone_and_the_port_comes_back() {
    let world = start("fra", |_| {});
    let mut watch = world.client().watch().await.unwrap();
    for _ in 0..3 {
        world.stand_in.refuse().await;
        let refused = TcpStream::connect(world.stand_in.addr()).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        assert!(watch.next().await.unwrap().is_some());
        world.stand_in.resume().unwrap();
        world.stand_in.resume().unwrap();
        world.client().whoami().await.unwrap();
    }
    let (first, second) = (watch.next().await.unwrap().unwrap(), watch.next().await.unwrap());
    let (first, second) = (json(&first), json(&second.unwrap()));
    assert_eq!(first["sequence"].as_u64().unwrap() + 1, second["sequence"].as_u64().unwrap());
}

#[tokio::test]
async fn a_killed_one_cuts_everything_and_can_be_restarted() {
    let world = start("fra", |_| {});
    let mut watch = world.client().watch().await.unwrap();
    world.stand_in.kill().await;
    let cut = async { while watch.next().await.is_ok_and(|line| line.is_some()) {} };
    tokio::time::timeout(PATIENCE, cut).await.expect("the watch is cut");
    assert!(matches!(world.client().whoami().await, Err(ClientError::Connect(_))));
    until("nothing is open", || world.stand_in.open_connections() == 0).await;
    world.stand_in.resume().unwrap();
    world.client().whoami().await.unwrap();
}

#[tokio::test]
async fn a_hung_one_accepts_but_never_answers_until_it_continues() {
    let world = start("fra", |_| {});
    let mut watch = world.client().watch().await.unwrap();
    watch.next().await.unwrap();
    world.stand_in.hang();
    let impatient = world.client().with_timeout(SILENCE);
    // The first may be accepted by the stand-in, the second by the kernel alone.
    for _ in 0..2 {
        let error = impatient.whoami().await.unwrap_err();
        let stage = Stage::Handshaking;
        assert!(
            matches!(error, ClientError::Timeout { stage: found, .. } if found == stage),
            "{error}"
        );
    }
    // Data in transit may still arrive, but it ends.
    let silent = async { while tokio::time::timeout(SILENCE, watch.next()).await.is_ok() {} };
    tokio::time::timeout(PATIENCE, silent).await.expect("the watch falls silent");

    let patient = world.client();
    let waiting = tokio::spawn(async move { patient.whoami().await });
    world.stand_in.unhang();
    waiting.await.unwrap().expect("what waited is answered");
    watch.next().await.unwrap().expect("the watch goes on");
}

#[tokio::test]
async fn dropping_it_frees_the_port() {
    let world = start("fra", |_| {});
    let addr = world.stand_in.addr();
    world.stand_in.stop().await;
    std::net::TcpListener::bind(addr).expect("the port is free");
}

#[test]
fn names_that_cannot_be_distinguished_are_refused() {
    let authority = Authority::generate().unwrap();
    let long = "a".repeat(64);
    for name in [
        "",
        "kubernetes",
        "localhost",
        "Fra",
        "fra_1",
        "-fra",
        "fra.",
        "f\u{fc}r",
        "7",
        "fra.7",
        &long,
    ] {
        assert!(matches!(authority.issue_server(name), Err(Error::Usage(_))), "{name:?}");
    }
    for name in ["fra", "cp-1", "cp-1.fra", "7a", "7.fra"] {
        let leaf = authority.issue_server(name).unwrap();
        let (chain, _) = leaf.to_rustls().unwrap();
        assert_eq!(authority::origin_name(&chain[0]).as_deref(), Some(name));
    }
}

#[tokio::test]
async fn certificates_survive_their_files() {
    let folder = tempfile::tempdir().unwrap();
    let (certificate, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    let authority = Authority::generate().unwrap();
    authority.issue_server("fra").unwrap().write(&certificate, &key).unwrap();
    assert_eq!(key.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let leaf = Leaf::read("fra", &certificate, &key).unwrap();
    let stand_in = StandIn::start(StandInConfig::new(leaf)).unwrap();
    let client = Client::new(stand_in.addr(), authority.certificate_pem()).unwrap();
    assert_eq!(client.whoami().await.unwrap().origin, "fra");

    std::fs::write(&key, "no key").unwrap();
    let damaged = StandInConfig::new(Leaf::read("fra", &certificate, &key).unwrap());
    assert!(matches!(StandIn::start(damaged), Err(Error::Usage(_))));
}

#[tokio::test]
async fn a_folder_has_one_authority_for_all_its_users() {
    let folder = tempfile::tempdir().unwrap();
    let pki = folder.path().join("pki");
    let at_once: Vec<_> = (0..4)
        .map(|_| {
            let pki = pki.clone();
            std::thread::spawn(move || Authority::in_folder(&pki).unwrap())
        })
        .collect();
    let authorities: Vec<Authority> = at_once.into_iter().map(|t| t.join().unwrap()).collect();
    let ca = std::fs::read_to_string(pki.join("ca.crt")).unwrap();
    assert_eq!(pki.join("ca.key").metadata().unwrap().permissions().mode() & 0o777, 0o600);
    for (index, authority) in authorities.iter().enumerate() {
        assert_eq!(authority.certificate_pem(), ca);
        let name = format!("cp-{index}");
        let leaf = authority.issue_server(&name).unwrap();
        let stand_in = StandIn::start(StandInConfig::new(leaf)).unwrap();
        assert_eq!(Client::new(stand_in.addr(), &ca).unwrap().whoami().await.unwrap().origin, name);
    }
    std::fs::write(pki.join("ca.key"), "no key").unwrap();
    assert!(matches!(Authority::in_folder(&pki), Err(Error::Usage(_))));
}

#[tokio::test]
async fn a_process_announces_its_port_and_writes_its_authority() {
    let folder = tempfile::tempdir().unwrap();
    let pki = folder.path().join("pki");
    let options = ServeOptions {
        listen: "127.0.0.1:0".parse().unwrap(),
        name: "fra".to_owned(),
        tls: TlsSource::Folder(pki.clone()),
        watch_interval: Duration::from_secs(1),
    };
    let (mut reader, writer) = io::pipe().unwrap();
    let serving = tokio::spawn(async move {
        let mut writer = writer;
        serve_forever(options, &mut writer).await
    });
    let line = tokio::task::spawn_blocking(move || {
        let mut line = String::new();
        io::BufRead::read_line(&mut io::BufReader::new(&mut reader), &mut line).map(|_| line)
    });
    let line = json(line.await.unwrap().unwrap().as_bytes());
    assert_eq!(line["name"], "fra");
    let addr = line["listening"].as_str().unwrap().parse().unwrap();
    let ca = std::fs::read_to_string(pki.join("ca.crt")).unwrap();
    let client = Client::new(addr, &ca).unwrap();
    assert_eq!(client.whoami().await.unwrap().origin, "fra");
    serving.abort();
}
