use std::sync::Arc;

use data_encoding::BASE64;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::tcp::Host;

/// How long anything on this machine may take.
const SOON: Duration = Duration::from_secs(20);

const NODE: &str = r#"{"kind":"Node","metadata":{"name":"worker-7","resourceVersion":"42",
    "labels":{"a":"b"}},"spec":{"podCIDR":"10.244.7.0/24","podCIDRs":["10.244.7.0/24",
    "fd00:10:244:7::/64"],"taints":[]},"status":{"addresses":[{"type":"ExternalIP",
    "address":"203.0.113.7"},{"type":"InternalIP","address":"10.0.0.7"},{"type":"Hostname",
    "address":"worker-7.example.com"}],"daemonEndpoints":{"kubeletEndpoint":{"Port":10251}},
    "images":[{"names":["x"],"sizeBytes":7}]}}"#;

#[test]
fn a_node_object_is_read_for_what_matters() {
    let object: Object = serde_json::from_str(NODE).expect("a node");
    let node = NodeObject::from(object);
    assert_eq!(node.name, "worker-7");
    assert_eq!(node.names, ["worker-7.example.com"]);
    let addresses: Vec<String> = node.addresses.iter().map(ToString::to_string).collect();
    assert_eq!(addresses, ["10.0.0.7", "203.0.113.7"]);
    let pods: Vec<String> = node.pod_cidrs.iter().map(ToString::to_string).collect();
    assert_eq!(pods, ["10.244.7.0/24", "fd00:10:244:7::/64"]);
    assert_eq!(node.kubelet_port, 10_251);
}

#[test]
fn what_a_node_object_lacks_is_left_open() {
    let object: Object = serde_json::from_str(r#"{"metadata":{"name":"a"}}"#).expect("bare");
    assert_eq!(NodeObject::from(object), NodeObject::named("a"));
    assert!(serde_json::from_str::<Object>(r#"{"status":{"addresses":7}}"#).is_err());
}

#[test]
fn attempts_wait_longer_until_a_watch_has_lasted() {
    let mut attempts = Attempts::default();
    let pauses = |attempts: &mut Attempts, failures: usize| -> Vec<u64> {
        let fails = |_| attempts.handle_failure(&ReadError::Late).as_secs();
        (0..failures).map(fails).collect()
    };
    assert_eq!(pauses(&mut attempts, 9), [2, 4, 8, 16, 32, 64, 128, 256, 300]);
    let problem = ReadError::Status(500);
    assert!(attempts.news(&problem).is_some() && attempts.news(&problem).is_none());
    assert_eq!(attempts.news(&ReadError::Gone), None, "it is read again, and nothing is wrong");
    // An apiserver that breaks each watch after its first events.
    attempts.handle_event(Duration::from_secs(7));
    assert_eq!(pauses(&mut attempts, 1), [300]);
    attempts.handle_event(Duration::from_secs(3600));
    assert_eq!(pauses(&mut attempts, 2), [2, 4]);
    assert!(attempts.news(&problem).is_some(), "it is new again");
    assert_eq!(attempts.handle_failure(&ReadError::Gone), MIN_PAUSE);
}

#[tokio::test]
async fn a_watch_adds_changes_and_takes_away() {
    let (commands, _stored) = mpsc::channel(1);
    let source = Source {
        host: Host::Kernel,
        local: "127.0.0.1:9".parse().expect("an address"),
        kubeconfig: "/nowhere".into(),
    };
    let mut reader = Reader::new(source, Whose::All, WayBack::default(), commands);
    let mut version = String::new();
    let event = |kind: &str, node: &str| format!("{{\"type\":\"{kind}\",\"object\":{node}}}");
    let take = |reader: &mut Reader, kind: &str, node: &str, version: &mut String| {
        reader.take(event(kind, node).as_bytes(), version)
    };
    assert!(take(&mut reader, "ADDED", NODE, &mut version).expect("an event"));
    assert!(!take(&mut reader, "MODIFIED", NODE, &mut version).expect("nothing that matters"));
    let moved = NODE.replace("10.0.0.7", "10.0.0.9").replace("\"42\"", "\"43\"");
    assert!(take(&mut reader, "MODIFIED", &moved, &mut version).expect("an event"));
    assert_eq!(version, "43");
    let bookmark = r#"{"kind":"Node","metadata":{"resourceVersion":"50"}}"#;
    assert!(!take(&mut reader, "BOOKMARK", bookmark, &mut version).expect("an event"));
    assert_eq!((version.as_str(), reader.nodes.len()), ("50", 1));
    assert!(take(&mut reader, "DELETED", &moved, &mut version).expect("an event"));
    assert!(reader.nodes.is_empty());
    // Its `status` is not an object.
    let gone = r#"{"kind":"Status","metadata":{},"status":"Failure","code":410}"#;
    let error = take(&mut reader, "ERROR", gone, &mut version).expect_err("it is over");
    assert!(matches!(error, ReadError::Gone), "{error}");
    assert!(take(&mut reader, "ADDED", "7", &mut version).is_err());
    assert!(!take(&mut reader, "LATER", "7", &mut version).expect("ignored"));
}

#[test]
fn parameters_are_escaped() {
    assert_eq!(with("continue", "a/b=&"), "&continue=a%2Fb%3D%26");
    assert_eq!(with("continue", ""), "");
}

/// An apiserver's answer: two pages of a list, then a watch with one event that stays open.
fn answer(request: &str) -> String {
    let plain =
        |body: &str| format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    if request.contains("watch=1") {
        assert!(request.contains("resourceVersion=77"), "{request}");
        let node = NODE.replace("worker-7", "worker-9").replace('\n', " ");
        let event = format!("{{\"type\":\"ADDED\",\"object\":{node}}}\n");
        // In two pieces, since a line may arrive in parts.
        let (one, two) = event.split_at(event.len() / 2);
        let chunk = |piece: &str| format!("{:x}\r\n{piece}\r\n", piece.len());
        let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        return format!("{head}{}{}", chunk(one), chunk(two));
    }
    if request.contains("continue=next%2Fpage") {
        let other = NODE.replace("worker-7", "worker-8");
        let list = format!("{{\"metadata\":{{\"resourceVersion\":\"77\"}},\"items\":[{other}]}}");
        return plain(&list);
    }
    assert!(request.contains("GET /api/v1/nodes?limit=50"), "{request}");
    assert!(request.to_ascii_lowercase().contains("authorization: bearer s3cret"), "{request}");
    let metadata = "{\"resourceVersion\":\"76\",\"continue\":\"next/page\"}";
    plain(&format!("{{\"metadata\":{metadata},\"items\":[{NODE}]}}"))
}

/// An apiserver that gives these answers, and a kubeconfig for it.
async fn apiserver(folder: &std::path::Path) -> Source {
    let key = rcgen::KeyPair::generate().expect("a key");
    let names = vec!["127.0.0.1".to_owned()];
    let certificate = rcgen::CertificateParams::new(names).expect("a name").self_signed(&key);
    let certificate = certificate.expect("signed");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let chain = vec![CertificateDer::from(certificate.der().to_vec())];
    let private = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .expect("they belong together");
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let local = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let mut tls = acceptor.accept(tcp).await?;
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(tls.read_u8().await?);
                }
                let answer = answer(&String::from_utf8_lossy(&head));
                tls.write_all(answer.as_bytes()).await?;
                tls.flush().await?;
                // A watch stays open.
                tls.read_u8().await
            });
        }
    });
    let authority = BASE64.encode(certificate.pem().as_bytes());
    let kubeconfig = folder.join("config");
    let text = format!(
        "current-context: a\nclusters:\n- name: c\n  cluster: {{server: 'https://127.0.0.1:6443', \
         certificate-authority-data: {authority}}}\ncontexts:\n- name: a\n  context: {{cluster: c, \
         user: u}}\nusers:\n- name: u\n  user: {{token: s3cret}}\n"
    );
    std::fs::write(&kubeconfig, text).expect("written");
    Source { host: Host::Kernel, local, kubeconfig }
}

#[tokio::test]
async fn nodes_are_listed_page_by_page_then_watched_and_stored() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = apiserver(folder.path()).await;
    let back = WayBack::default();
    let mut known = back.watch_nodes();
    let (commands, mut stored) = mpsc::channel(4);
    let task = tokio::spawn(follow(source, Whose::All, back.clone(), commands));
    let has = |count: usize| {
        move |nodes: &Option<Arc<Nodes>>| nodes.as_ref().is_some_and(|nodes| nodes.len() >= count)
    };
    timeout(SOON, known.wait_for(has(2))).await.expect("in time").expect("it runs");
    let Some(Command::StoreNodes(bytes)) = timeout(SOON, stored.recv()).await.expect("in time")
    else {
        panic!("they are stored");
    };
    assert_eq!(Nodes::from_bytes(&bytes).map(|nodes| nodes.len()), Some(2));
    timeout(SOON, known.wait_for(has(3))).await.expect("in time").expect("it runs");
    let names: Vec<String> =
        back.nodes().expect("known").iter().map(|node| node.name.clone()).collect();
    assert_eq!(names, ["worker-7", "worker-8", "worker-9"]);
    task.abort();
}
