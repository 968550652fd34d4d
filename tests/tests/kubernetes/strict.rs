//! A cluster that rejects anonymous requests and whose certificates do not name 127.0.0.1;
//! meshport's files must contain nothing about it.

#![expect(clippy::print_stdout, reason = "figures for the reader of a test run")]

use std::fs;
use std::path::Path;

use meshport_tests::kubernetes::{
    ADMIN_TOKEN, Cluster, Kubectl, Plan, START_LIMIT, WORKER, origin,
};
use meshport_tests::wait;

/// Text that is written into the cluster and must not appear outside it.
const PAYLOAD: &str = "payload-1f6c9e-of-a-secret";

/// Every file below a folder.
fn files(folder: &Path) -> Vec<std::path::PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut found = Vec::new();
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|part| part == text.as_bytes())
}

/// The longest line of a PEM file's body: no other file has it.
fn body(pem: &str) -> String {
    let lines = pem.lines().filter(|line| !line.starts_with('-'));
    lines.max_by_key(|line| line.len()).expect("a PEM file has a body").to_owned()
}

#[test]
#[ignore = "needs root and tests/kubernetes/build; ./tests/run kubernetes-smoke"]
fn a_strict_cluster_is_reached_and_leaves_no_trace() {
    let mut plan = Plan { anonymous: false, loopback_in_certificates: false, ..Plan::default() };
    // `@PKI@` is replaced before the daemons start, when the folder's name is known.
    plan.settings = "health.ca-file = \"@PKI@/ca.crt\"\n\
                     health.bearer-token-file = \"@PKI@/health.token\"\n\
                     health.server-name = \"kubernetes\"\n\n[log]\nlevel = \"trace\"\n"
        .to_owned();
    let mut cluster = Cluster::new(plan);
    let home = cluster.path("home-strict");
    let config = |name: &str| cluster.path("pki").join(format!("{name}.conf"));

    // A kubeconfig that names one apiserver directly, and the one that meshport derives from it.
    let direct = cluster.kubectl_to(WORKER, "straight", "https://10.77.0.11:6443");
    assert!(direct.run(&["get", "ns"]).status.success());
    let source = config("straight").to_string_lossy().into_owned();
    let printed = cluster.meshport(WORKER, &["kubeconfig", "--from", &source]).output();
    let printed = printed.expect("meshport runs");
    assert!(printed.status.success(), "{}", String::from_utf8_lossy(&printed.stderr));
    fs::write(config("printed"), &printed.stdout).expect("the folder can be written");
    let both = std::env::join_paths([config("printed"), config("straight")]).expect("paths");
    // Not the source's address, which only cp-1's certificate names, but a name in all
    // certificates.
    let text = fs::read_to_string(config("printed")).expect("text");
    assert!(text.contains("tls-server-name: kubernetes.default.svc"), "{text}");
    let through = Kubectl::new(cluster.host(WORKER), home.clone(), both.clone().into());
    assert!(through.ok(&["config", "current-context"]).contains("meshport"));
    through.ok(&["get", "ns"]);
    through.newest().ok(&["get", "ns"]);

    let secret = format!("--from-literal=key={PAYLOAD}");
    through.ok(&["create", "secret", "generic", "told", &secret]);
    cluster.kill_apiserver(1);
    for kubectl in [&through, &through.newest()] {
        assert!(kubectl.ok(&["get", "secret", "told", "-o", "yaml"]).contains("key:"));
    }
    cluster.chooses(WORKER, &origin(2));
    cluster.start_apiserver(1, &[]);
    cluster.chooses(WORKER, &origin(1));

    // The comparison: 127.0.0.1 is in no certificate.
    let refused = cluster.kubectl(WORKER).call(&["get", "ns"]);
    assert!(!refused.succeeded && refused.said.contains("127.0.0.1"), "{refused:?}");

    nothing_is_told(&mut cluster);
}

/// Searches everything that meshport has written at its most verbose log level.
fn nothing_is_told(cluster: &mut Cluster) {
    let read = |name: &str| fs::read_to_string(cluster.pki.path(name)).expect("text");
    let mut secrets = vec![ADMIN_TOKEN.to_owned(), PAYLOAD.to_owned()];
    // As kubectl sends it: base64.
    secrets.push("cGF5bG9hZC0xZjZjOWUtb2YtYS1zZWNyZX".to_owned());
    secrets.extend(["cp-1.key", "sa.key", "controllers.key"].map(|file| body(&read(file))));
    let names = [WORKER, 1, 2, 3].map(|at| cluster.node_name(at));
    let mut looked = 0;
    let mut bytes_seen = 0;
    for name in names {
        let mut all = files(&cluster.path(&format!("state-{name}")));
        all.push(cluster.path(&format!("{name}.log")));
        for file in all {
            // Sockets cannot be read.
            let Ok(bytes) = fs::read(&file) else { continue };
            looked += 1;
            bytes_seen += bytes.len();
            for secret in &secrets {
                assert!(!contains(&bytes, secret), "{} holds a secret", file.display());
            }
        }
    }
    println!("{looked} files with {bytes_seen} bytes of meshport hold none of them");
    assert!(looked > 20 && bytes_seen > 100_000, "what was looked at is not all there is");
    // Proves that the search works: the token is in the cluster's own file.
    assert!(contains(read("tokens.csv").as_bytes(), ADMIN_TOKEN));
    let at_etcd = files(&cluster.path("etcd"))
        .into_iter()
        .any(|file| fs::read(file).is_ok_and(|bytes| contains(&bytes, PAYLOAD)));
    assert!(at_etcd, "the payload is not even where it belongs");
    wait::until("all are well again", START_LIMIT, || {
        (cluster.ready(WORKER).len() == 3).then_some(())
    });
}
