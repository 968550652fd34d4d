use std::any::Any;
use std::collections::VecDeque;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::Mutex;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{HOST, HeaderValue};
use hyper::{Method, StatusCode};
use meshport_config::ServiceName;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::oneshot;

use super::*;
use crate::admin::api::{
    DrainReport, DrainRequest, EdgeStatus, MemberCounts, NodeRef, PeerRow, PingReport, PingRequest,
    ProcessStatus, ServiceStatus, Status,
};
use crate::admin::client::AdminClient;
use crate::admin::credentials::SecretStatus;
use crate::admin::metrics::{MEMBERS, Sample, Value};
use crate::admin::queries::{PeersRequest, ReloadRequest, RoutesRequest, StatusRequest};
use crate::admin::request;
use crate::admin::request::Kind;
use crate::clock;
use crate::driver::answers::{Answer, Lacking, Samples, rows};
use crate::driver::handle::Handle;

mod gone;

/// Less than a silent client may take.
const AT_ONCE: Duration = MAX_HEAD_TIME.saturating_sub(Duration::from_millis(500));

fn me() -> NodeRef {
    NodeRef {
        node: meshport_config::NodeId::from_bytes([7; 32]),
        name: "worker-7".parse().expect("a node name"),
        site: "fra".parse().expect("a site name"),
    }
}

fn status() -> Status {
    Status {
        process: ProcessStatus {
            version: "0.1.0".into(),
            uptime_s: 1,
            mesh_listen: "[::]:51820".parse().expect("an address"),
            admin_http: None,
            needs_restart: Vec::new(),
            failed_upgrade: None,
            is_leaving: false,
            now_s: None,
        },
        me: me(),
        roles: "node".parse().expect("roles"),
        credential_expires_at: meshport_config::UnixSeconds(9),
        members: MemberCounts::default(),
        absent: Vec::new(),
        secret: SecretStatus::default(),
        former_key: None,
        renewal: Default::default(),
        reach: None,
        way_back: None,
        services: Vec::new(),
        edge: EdgeStatus::default(),
        warnings: Vec::new(),
        findings: Vec::new(),
    }
}

fn samples() -> Vec<Sample> {
    vec![Sample { metric: &MEMBERS, labels: vec!["alive".into()], value: Value::Number(3.0) }]
}

/// A daemon that answers some requests, and refuses the others.
#[derive(Debug, Clone)]
struct Fake;

impl Ask for Fake {
    async fn ask<Q: Answer>(&self, question: Q) -> Result<Q::Reply, Error> {
        let question: Box<dyn Any + Send> = Box::new(question);
        let reply = reply(&*question)?;
        Ok(*reply.downcast().expect("the reply to this question"))
    }
}

fn reply(question: &(dyn Any + Send)) -> Result<Box<dyn Any>, Error> {
    let refused = || Err(Error::Refused("not here".into()));
    Ok(match question {
        it if it.is::<StatusRequest>() => Box::new(status()),
        it if it.is::<Lacking>() => Box::new(vec![ServiceName::kube_apiserver()]),
        it if it.is::<RoutesRequest>() => Box::new(Vec::<ServiceStatus>::new()),
        it if it.is::<ReloadRequest>() => return Err(Error::Unfit("a broken file".into())),
        it if it.is::<PeersRequest>() => Box::new(Vec::<PeerRow>::new()),
        it if it.is::<Samples>() => Box::new(samples()),
        it => match (it.downcast_ref::<DrainRequest>(), it.downcast_ref::<PingRequest>()) {
            (Some(drain), _) => Box::new(drained(drain)),
            (_, Some(ping)) => Box::new(pinged(ping)?),
            (None, None) => return refused(),
        },
    })
}

fn drained(request: &DrainRequest) -> DrainReport {
    let DrainRequest { service, draining } = request.clone();
    let state = if draining { "draining" } else { "ready" }.to_owned();
    DrainReport { service, changed: true, state, sessions: 2 }
}

fn pinged(request: &PingRequest) -> Result<PingReport, Error> {
    match request.target.as_str() {
        "worker-7" => Ok(PingReport { who: me(), sent: 1, rtt_ms: vec![Some(0.4)], lacks: None }),
        other => Err(Error::Usage(format!("no node is called {other}"))),
    }
}

/// A server in its own folder, and a daemon with one task that answers every request.
struct Fixture {
    socket: PathBuf,
    http: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    server: tokio::task::JoinHandle<()>,
    _folder: tempfile::TempDir,
}

impl Fixture {
    async fn start() -> Self {
        Self::with(Fake).await
    }

    async fn with(ask: impl Ask) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("admin.sock");
        let loopback = "127.0.0.1:0".parse().expect("an address");
        let server = AdminServer::bind(&socket, Some(loopback)).await.expect("it binds");
        let AdminHttp::Open(http) = server.facts().http() else { panic!("it has a port") };
        let (stop, stopped) = oneshot::channel();
        let server = tokio::spawn(server.serve(ask, async move {
            let _ = stopped.await;
        }));
        Self { socket, http, stop: Some(stop), server, _folder: folder }
    }

    async fn stop(mut self) -> PathBuf {
        drop(self.stop.take());
        self.server.await.expect("it ends");
        self.socket
    }

    async fn over_tcp(&self, request: &str) -> String {
        let stream = TcpStream::connect(self.http).await.expect("it accepts");
        exchange(stream, request).await
    }

    async fn over_unix(&self, request: &str) -> String {
        let stream = UnixStream::connect(&self.socket).await.expect("it accepts");
        exchange(stream, request).await
    }
}

async fn exchange(mut stream: impl AsyncRead + AsyncWrite + Unpin, request: &str) -> String {
    // A server that refuses early may close before it has read everything.
    let _ = stream.write_all(request.as_bytes()).await;
    let mut answer = Vec::new();
    let _ = timeout(Duration::from_secs(20), stream.read_to_end(&mut answer)).await;
    String::from_utf8_lossy(&answer).into_owned()
}

fn get(path: &str, host: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")
}

#[tokio::test]
async fn every_question_has_an_answer_on_the_socket() {
    let fixture = Fixture::start().await;
    let client = AdminClient::new(&fixture.socket);
    assert_eq!(client.ask(&StatusRequest).await.expect("a status").me, me());
    assert!(client.ask(&RoutesRequest).await.expect("routes").is_empty());
    assert!(client.ask(&PeersRequest).await.expect("peers").is_empty());
    let request = PingRequest { target: "worker-7".into(), count: 1 };
    assert_eq!(client.ask(&request).await.expect("a report").rtt_ms, [Some(0.4)]);
    let unknown = PingRequest { target: "nobody".into(), count: 1 };
    let error = client.ask(&unknown).await.expect_err("there is no such node");
    assert_eq!(error.exit_code(), 2, "it is misuse, and no refusal of the daemon");
    assert_eq!(error.to_string(), "no node is called nobody");
    let long = PingRequest { target: "x".repeat(request::MAX_BODY_BYTES), count: 1 };
    let error = client.ask(&long).await.expect_err("it is too long").to_string();
    assert!(error.contains("over 4096 bytes") && error.ends_with("upgrade it first"), "{error}");
}

#[tokio::test]
async fn the_loopback_port_answers_local_names_only() {
    let fixture = Fixture::start().await;
    let health = fixture.over_tcp(&get("/healthz", "localhost")).await;
    assert!(health.starts_with("HTTP/1.1 200 OK") && health.ends_with("ok\n"), "{health}");
    let metrics = fixture.over_tcp(&get("/metrics", "127.0.0.1:7446")).await;
    assert!(metrics.contains("text/plain; version=0.0.4; charset=utf-8\r\n"), "{metrics}");
    assert!(metrics.ends_with("meshport_members{liveness=\"alive\"} 3\n"), "{metrics}");
    let asks = "Connection: close\r\nAccept: application/openmetrics-text;version=1.0.0";
    let open = get("/metrics", "localhost").replace("Connection: close", asks);
    let open = fixture.over_tcp(&open).await;
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8\r\n";
    assert!(open.contains(kind) && open.ends_with(" 3\n# EOF\n"), "{open}");
    for host in ["evil.example", "127.0.0.1.evil.example:7446", "192.0.2.1"] {
        let refused = fixture.over_tcp(&get("/status", host)).await;
        assert!(refused.starts_with("HTTP/1.1 421 "), "{refused}");
        assert!(refused.contains("{\"error\":") && !refused.contains("worker-7"), "{refused}");
    }
    let ping =
        "POST /ping HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
    let refused = fixture.over_tcp(ping).await;
    assert!(refused.starts_with("HTTP/1.1 404 "), "only the socket may cause traffic: {refused}");
}

#[tokio::test]
async fn a_page_of_another_site_reads_nothing() {
    let fixture = Fixture::start().await;
    let ask = |path: &str, site: &str| {
        let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
        format!("{head}Sec-Fetch-Site: {site}\r\n\r\n")
    };
    for path in ["/", "/status", "/view", "/metrics", "/nothing"] {
        for site in ["cross-site", "same-site", "anything"] {
            let refused = fixture.over_tcp(&ask(path, site)).await;
            assert!(refused.starts_with("HTTP/1.1 403 "), "{path} {site}: {refused}");
            assert!(!refused.contains("worker-7") && !refused.contains("<html"), "{refused}");
        }
    }
    for site in ["same-origin", "none"] {
        let status = fixture.over_tcp(&ask("/status", site)).await;
        assert!(status.starts_with("HTTP/1.1 200 ") && status.contains("worker-7"), "{status}");
    }
}

#[tokio::test]
async fn the_page_comes_with_a_policy_and_everything_else_with_a_stricter_one() {
    let fixture = Fixture::start().await;
    let page = fixture.over_tcp(&get("/", "localhost")).await;
    assert!(page.starts_with("HTTP/1.1 200 ") && page.contains("<!doctype html>"), "{page}");
    assert!(page.contains("content-security-policy: default-src 'none'; script-src 'sha256-"));
    let status = fixture.over_tcp(&get("/status", "localhost")).await;
    assert!(status.contains("content-security-policy: default-src 'none'; frame-anc"), "{status}");
    for answer in [page, status] {
        for header in ["x-content-type-options: nosniff", "cache-control: no-store"] {
            assert!(answer.contains(header), "{header}: {answer}");
        }
        assert!(answer.contains("frame-ancestors 'none'"), "{answer}");
    }
    let rebound = fixture.over_tcp(&get("/", "evil.example")).await;
    assert!(rebound.starts_with("HTTP/1.1 421 ") && !rebound.contains("<html"), "{rebound}");
    let posted = "POST / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let posted = fixture.over_tcp(posted).await;
    assert!(posted.starts_with("HTTP/1.1 405 "), "{posted}");
}

#[tokio::test]
async fn what_does_not_fit_is_refused_in_words() {
    let fixture = Fixture::start().await;
    let missing = fixture.over_unix(&get("/nothing", "localhost")).await;
    assert!(missing.starts_with("HTTP/1.1 404 ") && missing.contains("/routes"), "{missing}");
    let wrong = fixture.over_unix("DELETE /status HTTP/1.1\r\nConnection: close\r\n\r\n").await;
    assert!(wrong.starts_with("HTTP/1.1 405 ") && wrong.contains("allow: GET, HEAD"), "{wrong}");
    let post = |body: &str| {
        let length = body.len();
        format!(
            "POST /ping HTTP/1.1\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        )
    };
    let garbage = fixture.over_unix(&post("{")).await;
    assert!(garbage.starts_with("HTTP/1.1 400 "), "{garbage}");
    let greedy = fixture.over_unix(&post("{\"target\":\"worker-7\",\"count\":101}")).await;
    assert!(greedy.starts_with("HTTP/1.1 400 ") && greedy.contains("1 to 100"), "{greedy}");
    let huge = fixture.over_unix(&post(&"x".repeat(request::MAX_BODY_BYTES + 1))).await;
    assert!(huge.starts_with("HTTP/1.1 413 "), "{huge}");
    let long = format!("GET /status HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(2 * MAX_HEAD_BYTES));
    let long = fixture.over_unix(&long).await;
    assert!(long.starts_with("HTTP/1.1 431 "), "{long}");
}

#[tokio::test]
async fn silent_clients_do_not_keep_others_out_for_a_moment() {
    // More than all slots, and with the probes less than one user may open at once.
    const SILENT: usize = 80;
    let fixture = Fixture::start().await;
    let mut silent = Vec::new();
    for _ in 0..SILENT {
        let mut stream = TcpStream::connect(fixture.http).await.expect("the queue has room");
        // The first ones are cut by now.
        let _ = stream.write_all(b"GET /status HT").await;
        silent.push(stream);
    }
    for _ in 0..6 {
        let probe = get("/livez", "localhost");
        let probe = timeout(AT_ONCE, fixture.over_tcp(&probe)).await;
        let answer = probe.expect("no silent client has to be waited for");
        assert!(answer.ends_with("ok\n"), "{answer}");
    }
    // As many on the socket, where those on the port do not count.
    for _ in 0..SILENT {
        silent.push(TcpStream::connect(fixture.http).await.expect("the queue has room"));
    }
    let mut held = Vec::new();
    for _ in 0..SILENT {
        held.push(UnixStream::connect(&fixture.socket).await.expect("the queue has room"));
    }
    let client = AdminClient::new(&fixture.socket);
    let status = timeout(AT_ONCE, client.ask(&StatusRequest)).await.expect("at once");
    assert_eq!(status.expect("it is not held up").me, me());
}

#[tokio::test]
async fn clients_that_read_nothing_do_not_keep_others_out() {
    let fixture = Fixture::start().await;
    let mut deaf = Vec::new();
    for _ in 0..100 {
        let mut stream = TcpStream::connect(fixture.http).await.expect("the queue has room");
        let request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(20);
        let _ = stream.write_all(request.as_bytes()).await;
        deaf.push(stream);
    }
    let health = timeout(AT_ONCE, fixture.over_tcp(&get("/healthz", "localhost"))).await;
    assert!(health.expect("at once").ends_with("ok\n"));
}

/// A listener whose queue holds these connections.
struct Queue(Mutex<VecDeque<(DuplexStream, ClientId)>>);

impl Listener for Queue {
    const KIND: ListenerKind = ListenerKind::Loopback;
    type Stream = DuplexStream;

    async fn next(&self) -> io::Result<(DuplexStream, ClientId)> {
        let next = self.0.lock().expect("no panic").pop_front();
        match next {
            Some(next) => Ok(next),
            None => std::future::pending().await,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_queue_full_of_one_users_connections_is_reset_and_others_are_served() {
    const LOUD: u32 = 1001;
    const QUEUED: usize = 4096;
    /// Answered at once, unlike a request that must wait for its turn.
    const BROKEN: &str = "nothing\r\n\r\n";
    let (mut queue, mut flood) = (VecDeque::new(), Vec::new());
    for who in std::iter::repeat_n(LOUD, QUEUED).chain([0, 1002]) {
        let (mut client, server) = duplex(4096);
        let request = if who == LOUD { BROKEN } else { &get("/livez", "localhost") };
        client.write_all(request.as_bytes()).await.expect("there is room");
        queue.push_back((server, ClientId::User(who)));
        flood.push(client);
    }
    let (_stop, stopping) = watch::channel(false);
    let facts = Arc::new(AdminFacts::default());
    tokio::spawn(accept(Queue(Mutex::new(queue)), Fake, facts.clone(), stopping));
    for probe in flood.split_off(QUEUED) {
        assert!(exchange(probe, "").await.ends_with("ok\n"));
    }
    let mut served = 0;
    for client in flood {
        served += usize::from(exchange(client, "").await.starts_with("HTTP/1.1 400 "));
    }
    assert_eq!(served, 200);
    assert_eq!(facts.refused()[AdminCount::OverPace], QUEUED as u64 - 200);
}

/// More than what has been saved.
#[tokio::test]
async fn requests_of_one_user_are_paced_and_none_is_refused() {
    const CONNECTIONS: usize = 8;
    const EACH: usize = 40;
    let fixture = Fixture::start().await;
    let keep = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(EACH - 1);
    let many = keep + &get("/metrics", "localhost");
    let begin = clock::now();
    let mut flood = JoinSet::new();
    for _ in 0..CONNECTIONS {
        let stream = TcpStream::connect(fixture.http).await.expect("the queue has room");
        let many = many.clone();
        flood.spawn(async move { exchange(stream, &many).await });
    }
    let health = timeout(AT_ONCE, fixture.over_tcp(&get("/livez", "localhost"))).await;
    assert!(health.expect("at once").ends_with("ok\n"));
    let answers = flood.join_all().await;
    let good: usize = answers.iter().map(|it| it.matches("HTTP/1.1 200 OK").count()).sum();
    assert_eq!(good, CONNECTIONS * EACH);
    // Each uses up 10 ms, and 2 s were saved.
    let took = clock::now() - begin;
    assert!(took >= Duration::from_secs(1), "{took:?}");
}

#[tokio::test]
async fn alive_is_not_ready() {
    let fixture = Fixture::start().await;
    for path in ["/healthz", "/livez"] {
        let alive = fixture.over_tcp(&get(path, "localhost")).await;
        assert!(alive.starts_with("HTTP/1.1 200 OK") && alive.ends_with("ok\n"), "{alive}");
    }
    let ready = fixture.over_tcp(&get("/readyz", "localhost")).await;
    assert!(ready.starts_with("HTTP/1.1 503 ") && ready.contains("kube-apiserver"), "{ready}");
    let client = AdminClient::new(&fixture.socket);
    client.check("/livez").await.expect("it lives");
    let error = client.check("/readyz").await.expect_err("not ready").to_string();
    assert!(error.contains("no healthy origin for kube-apiserver"), "{error}");
    let posted = "POST /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let posted = fixture.over_tcp(posted).await;
    assert!(posted.starts_with("HTTP/1.1 405 "), "{posted}");
}

#[tokio::test]
async fn a_broken_configuration_has_the_exit_code_that_check_gives_it() {
    let fixture = Fixture::start().await;
    let error = AdminClient::new(&fixture.socket).ask(&ReloadRequest).await.expect_err("refused");
    assert_eq!(error.to_string(), "the daemon refused: a broken file");
    assert_eq!(error.exit_code(), 3);
}

#[tokio::test]
async fn a_stopping_daemon_reports_that() {
    let (questions, asked) = tokio::sync::mpsc::channel(1);
    drop(asked);
    let fixture = Fixture::with(Handle::new(questions)).await;
    let error =
        AdminClient::new(&fixture.socket).ask(&StatusRequest).await.expect_err("nobody can answer");
    assert!(matches!(&error, Error::Refused(why) if why.contains("stopping")), "{error}");
    let health = fixture.over_tcp(&get("/healthz", "localhost")).await;
    assert!(health.starts_with("HTTP/1.1 503 "), "{health}");
}

#[tokio::test]
async fn the_socket_is_its_owners_and_goes_with_the_server() {
    let fixture = Fixture::start().await;
    let mode = fs::metadata(&fixture.socket).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let second = AdminServer::bind(&fixture.socket, None).await.expect_err("it is in use");
    assert!(second.to_string().contains("another daemon listens here"), "{second}");
    let socket = fixture.stop().await;
    assert!(!socket.exists());
    let error = AdminClient::new(&socket).ask(&StatusRequest).await.expect_err("nobody is there");
    assert_eq!(error.exit_code(), 6);
    assert!(error.to_string().contains("meshport run"), "{error}");
}

#[tokio::test]
async fn a_stale_socket_is_replaced_and_anything_else_is_not() {
    let folder = tempfile::tempdir().expect("a folder");
    let stale = folder.path().join("stale.sock");
    drop(std::os::unix::net::UnixListener::bind(&stale).expect("it binds"));
    let server = AdminServer::bind(&stale, None).await.expect("nobody answers there");
    assert_eq!(server.facts().http(), AdminHttp::Off);
    let names: Vec<_> = fs::read_dir(folder.path()).expect("a folder").flatten().collect();
    assert_eq!(names.len(), 1, "only the socket itself is left: {names:?}");

    let file = folder.path().join("file");
    fs::write(&file, "precious").expect("it is written");
    let error = AdminServer::bind(&file, None).await.expect_err("it is no socket").to_string();
    assert!(error.contains("is not a socket"), "{error}");
    assert_eq!(fs::read_to_string(&file).expect("it is there"), "precious");

    let long = folder.path().join("x".repeat(100));
    let error = AdminServer::bind(&long, None).await.expect_err("it is too long").to_string();
    assert!(error.contains("too long") && error.contains("admin.socket"), "{error}");
}

/// A server that answers all requests, until the sender is dropped.
async fn serving(
    socket: &Path,
    http: Option<SocketAddr>,
) -> (oneshot::Sender<()>, tokio::task::JoinHandle<()>) {
    let server = AdminServer::bind(socket, http).await.expect("what it lacks can come later");
    let (stop, stopped) = oneshot::channel::<()>();
    let server = tokio::spawn(server.serve(Fake, async {
        let _ = stopped.await;
    }));
    (stop, server)
}

#[tokio::test]
async fn a_folder_that_takes_no_socket_stops_no_daemon_and_is_used_once_it_does() {
    let folder = tempfile::tempdir().expect("a folder");
    let closed = folder.path().join("closed");
    // Even root cannot create anything in a file.
    fs::write(&closed, "").expect("written");
    let socket = closed.join("admin.sock");
    let (stop, server) = serving(&socket, None).await;
    fs::remove_file(&closed).expect("it is there");
    let client = AdminClient::new(&socket);
    let asked = async {
        while client.ask(&StatusRequest).await.is_err() {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(Duration::from_secs(20), asked).await.expect("it answers");
    drop(stop);
    server.await.expect("it ends");
    assert!(!socket.exists(), "it goes with the server");
    // A server that never gets its socket ends as well.
    fs::remove_dir(&closed).expect("it is empty");
    fs::write(&closed, "").expect("written");
    let (stop, server) = serving(&socket, None).await;
    drop(stop);
    server.await.expect("it ends");
}

#[tokio::test]
async fn a_taken_loopback_port_stops_no_daemon_and_is_used_once_it_is_free() {
    let folder = tempfile::tempdir().expect("a folder");
    let holder = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = holder.local_addr().expect("bound");
    let socket = folder.path().join("admin.sock");
    let server = AdminServer::bind(&socket, Some(address)).await.expect("the port can come later");
    let facts = server.facts();
    assert_eq!(facts.http(), AdminHttp::Lost(address, Loss::InUse));
    tokio::spawn(server.serve(Fake, std::future::pending()));
    AdminClient::new(&socket).ask(&StatusRequest).await.expect("the socket is there");
    drop(holder);
    let asked = async {
        loop {
            if let Ok(stream) = TcpStream::connect(address).await {
                return exchange(stream, &get("/livez", "localhost")).await;
            }
            sleep(Duration::from_millis(20)).await;
        }
    };
    let answer = timeout(Duration::from_secs(20), asked).await.expect("it answers");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(facts.http(), AdminHttp::Open(address));
}

#[tokio::test]
async fn only_loopback_may_be_asked_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = Some("0.0.0.0:0".parse().expect("an address"));
    let outcome = AdminServer::bind(&folder.path().join("s"), address).await;
    assert_eq!(outcome.expect_err("anyone could ask").exit_code(), 2);
}

#[tokio::test]
async fn drains_over_the_socket_only() {
    let fixture = Fixture::start().await;
    let client = AdminClient::new(&fixture.socket);
    let service = ServiceName::kube_apiserver();
    let request = DrainRequest { service, draining: true };
    let report = client.ask(&request).await.expect("an answer");
    assert_eq!((report.state.as_str(), report.sessions), ("draining", 2));
    let request = "POST /drain HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
                   Content-Length: 2\r\n\r\n{}";
    let refused = fixture.over_tcp(request).await;
    assert!(refused.starts_with("HTTP/1.1 404"), "{refused}");
    for other in ["/rotate-secret", "/reload", "/certificates"] {
        let refused = fixture.over_tcp(&request.replace("/drain", other)).await;
        assert!(refused.starts_with("HTTP/1.1 404"), "{refused}");
    }
    let asked = fixture.over_unix(&get("/drain", "localhost")).await;
    assert!(asked.starts_with("HTTP/1.1 405"), "{asked}");
    fixture.stop().await;
}

#[tokio::test]
async fn every_request_of_the_table_is_served_by_its_kind() {
    let mut paths = std::collections::BTreeSet::new();
    for row in rows::<Fake>() {
        assert!(paths.insert(row.path), "{} is in the table twice", row.path);
        let ask = async |listener, method| {
            let mut request = Request::new(Full::new(Bytes::new()));
            *request.uri_mut() = row.path.parse().expect("a path");
            *request.method_mut() = method;
            request.headers_mut().insert(HOST, HeaderValue::from_static("localhost"));
            router::answer(&Fake, listener, request).await.status()
        };
        let (served, other) = match row.kind {
            Kind::Query => (Method::GET, Method::POST),
            Kind::Command => (Method::POST, Method::GET),
        };
        let wrong = ask(ListenerKind::Socket, other).await;
        assert_eq!(wrong, StatusCode::METHOD_NOT_ALLOWED, "{}", row.path);
        let unserved = [StatusCode::METHOD_NOT_ALLOWED, StatusCode::NOT_FOUND];
        assert!(
            !unserved.contains(&ask(ListenerKind::Socket, served.clone()).await),
            "{}",
            row.path
        );
        let is_hidden = ask(ListenerKind::Loopback, served).await == StatusCode::NOT_FOUND;
        assert_eq!(is_hidden, row.kind == Kind::Command, "{} on loopback", row.path);
    }
}
