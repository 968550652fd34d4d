use meshport_daemon::health::certificate::Certificate;

use super::*;

static NO_EVIDENCE: Evidence = Evidence { asked: Vec::new(), partial: None, apiservers: false };

const SOURCE: &str = "\
apiVersion: v1
kind: Config
# mine
clusters:
- cluster:
    certificate-authority-data: Q0E=
    server: https://api.example.com:6443
    proxy-url: http://proxy:3128
    future-key: {a: [1]}
  name: prod
contexts:
- context:
    cluster: prod
    namespace: web
    user: me
  name: prod
current-context: prod
users:
- name: me
  user:
    token: s3cret
    exec: {command: login, args: [--x]}
";

fn found() -> Found {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("config");
    std::fs::write(&path, SOURCE).expect("written");
    Source::read(&[path]).expect("a kubeconfig").context(None).expect("a context")
}

fn local() -> SocketAddr {
    "127.0.0.1:7445".parse().expect("an address")
}

fn made() -> NewContext {
    called("meshport")
}

fn called(name: &str) -> NewContext {
    make(&found(), local(), name, &Naming::by(&NO_EVIDENCE)).expect("made")
}

fn named(chosen: &str) -> Naming<'_> {
    Naming { evidence: &NO_EVIDENCE, chosen: Some(chosen) }
}

#[test]
fn the_cluster_is_the_same_at_another_address() {
    let made = made();
    let expected = json!({
        "certificate-authority-data": "Q0E=",
        "server": "https://127.0.0.1:7445",
        "tls-server-name": "api.example.com",
        "future-key": {"a": [1]},
    });
    assert_eq!(Value::Object(made.cluster.clone()), expected);
    let expected = json!({"cluster": "meshport", "namespace": "web", "user": "me"});
    assert_eq!(Value::Object(made.context.clone()), expected);
    assert!(made.notes[0].contains("proxy-url"), "{:?}", made.notes);
    let chosen = make(&found(), local(), "m", &named("kubernetes.default.svc")).expect("made");
    assert_eq!(chosen.cluster["tls-server-name"], "kubernetes.default.svc");
    let ipv6 = make(&found(), "[::1]:7445".parse().expect("an address"), "m", &named("a"));
    assert_eq!(ipv6.expect("made").cluster["server"], "https://[::1]:7445");
}

/// A certificate with these DNS names and IP addresses.
pub(super) fn certificate(names: &[&str]) -> Certificate {
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    let key = rcgen::KeyPair::generate().expect("a key");
    let made = rcgen::CertificateParams::new(names).expect("names").self_signed(&key);
    Certificate::read(made.expect("signed").der()).expect("a certificate")
}

#[test]
fn the_name_is_one_that_every_origin_has() {
    let asked =
        |who: &str, names: &[&str]| name::ShownCertificate::new(who.into(), Ok(certificate(names)));
    let evidence = |asked| Evidence { asked, partial: None, apiservers: true };
    let made = |address: &str, evidence| {
        let mut found = found();
        found.cluster.insert("server".into(), format!("https://{address}:6443").into());
        make(&found, local(), "m", &Naming::by(evidence)).expect("made")
    };
    let both = evidence(vec![
        asked("cp-1", &["kubernetes.default.svc", "10.77.0.11"]),
        asked("cp-2", &["kubernetes.default.svc", "10.77.0.12"]),
    ]);
    let of_one = made("10.77.0.11", &both);
    assert_eq!(of_one.cluster["tls-server-name"], "kubernetes.default.svc");
    assert_eq!(of_one.warnings, Vec::<String>::new());
    // The local address needs no name where all have it.
    let local = evidence(vec![asked("cp-1", &["127.0.0.1"]), asked("cp-2", &["127.0.0.1"])]);
    assert!(!made("10.77.0.11", &local).cluster.contains_key("tls-server-name"));
}

#[test]
fn what_is_printed_names_the_user_and_not_its_secret() {
    let text = print(&found(), &made()).expect("printed");
    assert!(!text.contains("s3cret") && !text.contains("users"), "{text}");
    assert!(text.starts_with("# Context \"prod\" of /"), "{text}");
    let document = Document::parse(&text).expect("a kubeconfig");
    assert_eq!(document.word("current-context"), Some("meshport"));
    assert_eq!(document.entry("contexts", "meshport").expect("there")["context"]["user"], "me");
}

#[test]
fn a_merge_changes_its_own_entries_only_and_repeats_itself() {
    let path = Path::new("config");
    let once = merge(Some(SOURCE), path, &made(), Current::Stays).expect("merged");
    let text = once.text();
    for line in SOURCE.lines() {
        assert!(text.lines().any(|kept| kept == line), "{line} is gone:\n{text}");
    }
    assert_eq!(once.word("current-context"), Some("prod"));
    assert_eq!(missing_user(&once, &made(), path, path), None);
    let again = merge(Some(text), path, &made(), Current::Stays).expect("merged");
    assert_eq!(again.text(), text);

    let used = merge(Some(text), path, &made(), Current::Becomes);
    assert_eq!(used.expect("merged").word("current-context"), Some("meshport"));
    let new = merge(None, path, &made(), Current::Stays).expect("merged");
    assert_eq!(new.word("current-context"), Some("meshport"));
    let remark = missing_user(&new, &made(), path, Path::new("/src")).expect("it is elsewhere");
    assert!(remark.contains("KUBECONFIG=config:/src"), "{remark}");
}

#[test]
fn somebody_elses_entries_are_not_replaced() {
    let refused = |text: &str| {
        let outcome = merge(Some(text), Path::new("config"), &called("prod"), Current::Stays);
        outcome.map(|_| ()).expect_err("refused").to_string()
    };
    let error = refused(SOURCE);
    assert!(error.contains("already has a cluster prod") && error.contains("--name"), "{error}");
    let error = refused("contexts:\n- name: prod\n  context: {cluster: x}\n");
    assert!(error.contains("already has a context prod"), "{error}");
}

#[test]
fn a_server_without_tls_is_refused() {
    let mut found = found();
    found.cluster.insert("server".into(), "http://10.0.0.1:8080".into());
    let made = make(&found, local(), "m", &Naming::by(&NO_EVIDENCE));
    let error = made.expect_err("the local address needs TLS").to_string();
    assert!(error.contains("has a server that is not an https:// address, http://10"), "{error}");
}

#[test]
fn a_server_behind_a_path_is_refused() {
    let mut found = found();
    found.cluster.insert("server".into(), "https://rancher/k8s/clusters/c-1".into());
    let error = make(&found, local(), "m", &Naming::by(&NO_EVIDENCE)).expect_err("refused");
    assert_eq!(error.exit_code(), 2);
    assert!(error.to_string().contains("the context prod has a server URL with a path"), "{error}");
}

#[test]
fn a_named_source_that_does_not_exist_is_said() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("config");
    let error = source_files(Some(&path)).expect_err("there is none").to_string();
    assert!(error.contains("config does not exist") && !error.contains("--from"), "{error}");
    std::fs::write(&path, SOURCE).expect("written");
    assert_eq!(source_files(Some(&path)).expect("it is there"), [path]);
}

#[test]
fn two_writers_do_not_meet() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("config");
    let lock = Lock::take(&path).expect("free");
    let error = Lock::take(&path).map(|_| ()).expect_err("taken").to_string();
    assert!(error.contains("config.lock"), "{error}");
    drop(lock);
    Lock::take(&path).map(drop).expect("free again");
}
