//! What the operator's verbs write, read by the programs it is for: kubectl and systemd.
//!
//! The daemon in between runs as another user, without capabilities and with the variables of the
//! generated unit and pod.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use meshport_tests::process::{Process, meshport, run, run_ok};
use meshport_tests::wait;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::Value;
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(20);
/// The user of the generated pods.
const USER: &str = "65532";
/// What the apiserver's certificate names; 127.0.0.1 is not among it.
const NAMES: [&str; 2] = ["10.99.0.11", "kubernetes.default.svc"];
/// Of ten; what is left is mostly that it has a network.
const MAX_EXPOSURE: f64 = 1.5;
const SOURCE: &str = "\
# kept
apiVersion: v1
kind: Config
clusters:
- cluster:
    certificate-authority: ca.crt
    server: https://10.99.0.11:6443
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
";

fn text(path: &Path) -> String {
    path.to_str().expect("text").to_owned()
}

fn cli(arguments: &[&str]) -> String {
    run_ok(&text(meshport()), arguments)
}

/// One node that is an origin, with an apiserver stand-in, and a kubeconfig that leads elsewhere.
struct Node {
    folder: TempDir,
    _apiserver: Process,
    _daemon: Process,
}

impl Node {
    fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        let open = fs::Permissions::from_mode(0o755);
        fs::set_permissions(folder.path(), open).expect("others may pass");
        certificates(folder.path());
        fs::write(path("config"), SOURCE).expect("written");
        let apiserver = Process::start(
            "stand-in",
            Command::new(meshport())
                .args(["stand-in", "--name", "cp-1", "--certificate"])
                .arg(path("tls.crt"))
                .arg("--key")
                .arg(path("tls.key"))
                .arg("--port-file")
                .arg(path("port")),
            &path("apiserver.log"),
        );
        let port = || fs::read_to_string(path("port")).ok();
        let port = wait::until("the apiserver listens", PATIENCE, port);
        let settings = format!(
            "site = \"fra\"\n[mesh]\nlisten = \"127.0.0.1:0\"\n[admin]\nhttp = \"127.0.0.1:0\"\n\
             [service.kube-apiserver]\nlisten = [\"127.0.0.1:0\"]\norigin = \"127.0.0.1:{}\"\n",
            port.trim()
        );
        for folder in ["etc/meshport", "var", "run/meshport"] {
            fs::create_dir_all(path(folder)).expect("a folder");
        }
        fs::write(path("etc/meshport/meshport.toml"), settings).expect("written");
        let state = text(&path("var/meshport"));
        let roles = "node,origin:kube-apiserver";
        cli(&["init", "--site", "fra", "--name", "cp-1", "--role", roles, "--state-dir", &state]);
        run_ok("chown", &["-R", &format!("{USER}:{USER}"), &state, &text(&path("run/meshport"))]);
        // The checkout may be closed to other users.
        fs::copy(meshport(), path("meshport")).expect("copied");
        let daemon = Process::start(
            "meshport",
            Command::new("setpriv")
                .args(["--reuid", USER, "--regid", USER, "--clear-groups", "--no-new-privs"])
                .args(["--inh-caps=-all", "--bounding-set=-all"])
                .arg(path("meshport"))
                .arg("run")
                .env_clear()
                .env("XDG_CONFIG_HOME", path("etc"))
                .env("XDG_STATE_HOME", path("var"))
                .env("XDG_RUNTIME_DIR", path("run")),
            &path("daemon.log"),
        );
        let node = Self { folder, _apiserver: apiserver, _daemon: daemon };
        cli(&["wait", "--timeout", "20s", "--socket", &node.socket()]);
        node
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn socket(&self) -> String {
        text(&self.path("run/meshport/meshport.sock"))
    }

    /// `meshport kubeconfig` from the source with these flags; what it prints.
    fn kubeconfig(&self, flags: &[&str]) -> String {
        let (source, socket) = (text(&self.path("config")), self.socket());
        cli(&[&["kubeconfig", "--from", &source, "--socket", &socket], flags].concat())
    }

    fn kubectl(&self, files: &[&Path], arguments: &[&str]) -> Output {
        let listed = std::env::join_paths(files).expect("paths");
        let mut kubectl = Command::new("kubectl");
        kubectl.arg("--cache-dir").arg(self.path("cache")).args(arguments);
        kubectl.env("KUBECONFIG", listed).env("HOME", self.folder.path());
        kubectl.output().expect("kubectl can be run")
    }
}

/// `ca.crt`, and `tls.crt` with `tls.key` for [`NAMES`] alone.
fn certificates(folder: &Path) {
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = params.self_signed(&key).expect("an authority");
    fs::write(folder.join("ca.crt"), authority.pem()).expect("written");
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate().expect("a key");
    let leaf = CertificateParams::new(NAMES.map(str::to_owned)).expect("names");
    let leaf = leaf.signed_by(&key, &issuer).expect("a certificate");
    fs::write(folder.join("tls.crt"), leaf.pem()).expect("written");
    fs::write(folder.join("tls.key"), key.serialize_pem()).expect("written");
}

fn said(output: &Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr);
    format!("{}{error}", String::from_utf8_lossy(&output.stdout))
}

#[track_caller]
fn assert_answered(output: &Output) {
    assert!(output.status.success() && said(output).contains("gitVersion"), "{}", said(output));
}

#[test]
#[ignore = "needs kubectl, root and setpriv; ./tests/run operator"]
fn kubectl_goes_through_the_printed_context() {
    let node = Node::start();
    let (source, printed) = (node.path("config"), node.path("printed"));
    let version = ["get", "--raw", "/version"];
    fs::write(&printed, node.kubeconfig(&[])).expect("written");
    assert_answered(&node.kubectl(&[&printed, &source], &version));
    let view = said(&node.kubectl(&[&printed, &source], &["config", "view", "--minify"]));
    for word in ["tls-server-name: 10.99.0.11", "namespace: web", "name: me", "ca.crt"] {
        assert!(view.contains(word), "{word} is missing:\n{view}");
    }
    let by_name = ["--tls-server-name", "kubernetes.default.svc"];
    fs::write(&printed, node.kubeconfig(&by_name)).expect("written");
    assert_answered(&node.kubectl(&[&printed, &source], &version));

    // The comparison: the same without the name, which no certificate of the server has.
    let named = fs::read_to_string(&printed).expect("text");
    let unnamed: Vec<&str> = named.lines().filter(|it| !it.contains("tls-server-name")).collect();
    fs::write(&printed, unnamed.join("\n") + "\n").expect("written");
    let refused = node.kubectl(&[&printed, &source], &version);
    assert!(!refused.status.success() && said(&refused).contains("127.0.0.1"), "{refused:?}");
}

#[test]
#[ignore = "needs kubectl, root and setpriv; ./tests/run operator"]
fn kubectl_goes_through_the_merged_context() {
    let node = Node::start();
    let config = node.path("config");
    node.kubeconfig(&["--merge", &text(&config), "--use"]);
    let merged = fs::read_to_string(&config).expect("text");
    for line in SOURCE.lines().filter(|line| !line.starts_with("current-context")) {
        assert!(merged.lines().any(|kept| kept == line), "{line} is gone:\n{merged}");
    }
    assert_answered(&node.kubectl(&[&config], &["get", "--raw", "/version"]));
    let names = said(&node.kubectl(&[&config], &["config", "get-contexts", "-o", "name"]));
    assert_eq!(names, "meshport\nprod\n");
    // kubectl writes the file itself, and this program after it; again nothing is lost.
    let output = node.kubectl(&[&config], &["config", "set-context", "third", "--user", "me"]);
    assert!(output.status.success(), "{}", said(&output));
    node.kubeconfig(&["--context", "prod", "--merge", &text(&config)]);
    let names = said(&node.kubectl(&[&config], &["config", "get-contexts", "-o", "name"]));
    assert_eq!(names, "meshport\nprod\nthird\n");
    assert_answered(&node.kubectl(&[&config], &["get", "--raw", "/version"]));
}

/// Whether all of `ours` is in `theirs`, which may say more; the first path that is not.
fn lost(ours: &Value, theirs: &Value, path: &str) -> Option<String> {
    match (ours, theirs) {
        (Value::Object(ours), Value::Object(theirs)) => ours.iter().find_map(|(key, value)| {
            let path = format!("{path}.{key}");
            match theirs.get(key) {
                Some(theirs) => lost(value, theirs, &path),
                None => Some(path),
            }
        }),
        (Value::Array(ours), Value::Array(theirs)) if ours.len() <= theirs.len() => {
            let pairs = ours.iter().zip(theirs).enumerate();
            pairs
                .map(|(at, (ours, theirs))| lost(ours, theirs, &format!("{path}[{at}]")))
                .find_map(|it| it)
        }
        _ => (ours != theirs).then(|| path.to_owned()),
    }
}

#[test]
#[ignore = "needs kubectl; ./tests/run operator"]
fn kubectl_knows_every_field_of_the_pods() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("object.yaml");
    let read = |arguments: &[&str]| -> Value {
        let file = text(&file);
        let printed =
            run_ok("kubectl", &[arguments, &["--local", "-o", "json", "-f", &file]].concat());
        serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{error}: {printed}"))
    };
    for (what, kind) in [("static-pod", "Pod"), ("daemonset", "DaemonSet")] {
        let generated = cli(&["generate", what]);
        let object = generated.split("\n---\n").find(|it| it.contains(&format!("kind: {kind}\n")));
        let object = object.unwrap_or_else(|| panic!("{what} has no {kind}"));
        fs::write(&file, object).expect("written");
        // The first takes the file as it is, the second through the types: what these do not know
        // is gone after them.
        let ours = read(&["annotate", "read=yes", "--overwrite"]);
        let mut typed = read(&["set", "env", "READ=yes"]);
        typed["metadata"]["annotations"] = ours["metadata"]["annotations"].clone();
        assert_eq!(lost(&ours, &typed, kind), None, "kubectl does not know this field");
        let wrong = object.replace("dnsPolicy:", "dnsPolice:");
        fs::write(&file, wrong).expect("written");
        let ours = read(&["annotate", "read=yes", "--overwrite"]);
        let mut typed = read(&["set", "env", "READ=yes"]);
        typed["metadata"]["annotations"] = ours["metadata"]["annotations"].clone();
        assert!(lost(&ours, &typed, kind).is_some(), "the check sees nothing");
    }
}

#[test]
#[ignore = "needs systemd-analyze; ./tests/run operator"]
fn systemd_finds_no_fault_in_the_unit() {
    let folder = tempfile::tempdir().expect("a folder");
    let unit = folder.path().join("meshport.service");
    let generated = cli(&["generate", "systemd", "--binary", &text(meshport())]);
    fs::write(&unit, &generated).expect("written");
    let verified = run("systemd-analyze", &["verify", &text(&unit)]);
    assert!(verified.status.success() && said(&verified).is_empty(), "{}", said(&verified));
    let rated = run("systemd-analyze", &["security", "--offline=true", &text(&unit)]);
    let rated = said(&rated);
    let line = rated.lines().find(|line| line.contains("Overall exposure level"));
    let line = line.unwrap_or_else(|| panic!("no rating:\n{rated}"));
    println!("{}", line.trim());
    let exposure = line.split_whitespace().find_map(|word| word.parse::<f64>().ok());
    assert!(exposure.is_some_and(|exposure| exposure <= MAX_EXPOSURE), "{line}");

    fs::write(&unit, generated.replace("ProtectSystem=", "ProtectSytem=")).expect("written");
    let verified = run("systemd-analyze", &["verify", &text(&unit)]);
    assert!(said(&verified).contains("ProtectSytem"), "the check sees nothing");
}
