//! The output of the operator's commands, read by the programs it is for: kubectl and systemd.
//!
//! The daemon in between runs as another user, without capabilities and with the variables of the
//! generated unit and pod.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;
use std::time::Duration;

use meshport_tests::process::{Process, meshport, run, run_ok};
use meshport_tests::repository::root;
use meshport_tests::wait;
use meshport_tests::world::{NodePlan, World};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
use serde_json::Value;
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(20);
/// The user of the generated pods.
const USER: &str = "65532";
/// Names in the apiserver's certificate; 127.0.0.1 is not one of them.
const NAMES: [&str; 2] = ["10.99.0.11", "kubernetes.default.svc"];
/// Out of ten: its use of the network, and 0.2 for `NotifyAccess=all`, since the daemon that stores
/// its sockets is not the main process.
const MAX_EXPOSURE: f64 = 1.3;
/// Settings with which the daemon restricts itself.
const RESTRICTS: [&str; 4] =
    ["landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self", "seccomp"];
/// System calls that it may make and the unit does not allow: chown, which only root ever does, and
/// the old way to set a limit.
const ROOTS: [&str; 3] = ["fchown", "fchownat", "setrlimit"];
/// The numbers of the calls on this kind of processor, from the package linux-libc-dev.
const NUMBERS: &str = "/usr/include/x86_64-linux-gnu/asm/unistd_64.h";
/// "Operation not permitted", as the unit has it.
const EPERM: u32 = 1;
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

/// A node that is an origin, with an apiserver stand-in, and a kubeconfig that names another
/// server.
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

    /// `meshport kubeconfig` from the source with these flags; returns its output.
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
    for word in ["tls-server-name: kubernetes.default.svc", "namespace: web", "name: me", "ca.crt"]
    {
        assert!(view.contains(word), "{word} is missing:\n{view}");
    }
    let by_name = ["--tls-server-name", "10.99.0.11"];
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

#[test]
#[ignore = "needs root and setpriv; ./tests/run operator"]
fn a_user_who_may_not_ask_the_daemon_gets_no_guess() {
    let node = Node::start();
    let asked = |arguments: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "4242", "--regid", "4242", "--clear-groups"]);
        command.arg(node.path("meshport")).args(arguments).env_clear();
        command.env("XDG_CONFIG_HOME", node.path("etc")).env("XDG_STATE_HOME", node.path("var"));
        command.env("XDG_RUNTIME_DIR", node.path("run")).output().expect("setpriv can be run")
    };
    let source = text(&node.path("config"));
    for arguments in [&["kubeconfig", "--from", &source][..], &["hosts", "--name", "api.test"]] {
        let output = asked(arguments);
        let said = said(&output);
        assert!(!output.status.success() && said.contains("or as root"), "{arguments:?}: {said}");
    }
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

/// The field of an object with pods that kubectl does not know.
pub(crate) fn unknown_to_kubectl(object: &str) -> Option<String> {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("object.yaml");
    fs::write(&file, object).expect("written");
    let read = |arguments: &[&str]| -> Value {
        let file = text(&file);
        let printed =
            run_ok("kubectl", &[arguments, &["--local", "-o", "json", "-f", &file]].concat());
        serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{error}: {printed}"))
    };
    // The first keeps the file as it is, the second converts it through the types, which drop
    // unknown fields.
    let ours = read(&["annotate", "read=yes", "--overwrite"]);
    let mut typed = read(&["set", "env", "READ=yes"]);
    typed["metadata"]["annotations"] = ours["metadata"]["annotations"].clone();
    lost(&ours, &typed, "object")
}

#[test]
#[ignore = "needs kubectl; ./tests/run operator"]
fn kubectl_knows_every_field_of_the_pods() {
    for (what, kind) in [("static-pod", "Pod"), ("daemonset", "DaemonSet")] {
        let generated = cli(&["generate", what]);
        let object = generated.split("\n---\n").find(|it| it.contains(&format!("kind: {kind}\n")));
        let object = object.unwrap_or_else(|| panic!("{what} has no {kind}"));
        assert_eq!(unknown_to_kubectl(object), None, "kubectl does not know this field");
        let wrong = object.replace("dnsPolicy:", "dnsPolice:");
        assert!(unknown_to_kubectl(&wrong).is_some(), "the check sees nothing");
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

/// Runs a program where, as in the unit, only the named programs may be executed.
const CONFINED: &str = "\
for it in $PATHS; do if [ -e \"$it\" ]; then mount --bind \"$it\" \"$it\" || exit 9; fi; done
mount -o remount,bind,noexec / || exit 9
exec \"$0\" \"$@\"
";

#[test]
#[ignore = "needs systemd-analyze; ./tests/run operator"]
fn the_daemon_can_be_run_where_only_what_the_unit_names_can() {
    let unit = cli(&["generate", "systemd", "--binary", &text(meshport())]);
    let value = |key: &str| {
        let line = unit.lines().find_map(|line| line.strip_prefix(key));
        line.unwrap_or_else(|| panic!("no {key}")).to_owned()
    };
    assert_eq!(value("NoExecPaths="), "/");
    let paths = value("ExecPaths=").replace(" -", " ");
    let confined = |program: &str| {
        let script = format!("PATHS='{paths}'\n{CONFINED}");
        run("unshare", &["--mount", "sh", "-c", &script, program, "--version"])
    };
    let ran = confined(&text(meshport()));
    assert!(ran.status.success() && said(&ran).contains("meshport"), "{}", said(&ran));
    let other = confined("/usr/bin/env");
    assert_eq!(other.status.code(), Some(126), "{}", said(&other));
}

/// The system calls behind a name in the unit, by the groups of this systemd.
fn expanded(word: &str) -> BTreeSet<String> {
    if !word.starts_with('@') {
        return [word.to_owned()].into();
    }
    let group = run_ok("systemd-analyze", &["syscall-filter", word]);
    // Its name comes first.
    let members = group.lines().skip(1).map(str::trim);
    let members = members.filter(|line| !line.is_empty() && !line.starts_with('#'));
    members.flat_map(expanded).collect()
}

/// The calls that the unit allows.
fn allowed_by(unit: &str) -> BTreeSet<String> {
    let mut allowed = BTreeSet::new();
    for words in unit.lines().filter_map(|line| line.strip_prefix("SystemCallFilter=")) {
        let taken = words.strip_prefix('~');
        for word in taken.unwrap_or(words).split_whitespace() {
            let calls = expanded(word);
            match taken {
                Some(_) => allowed.retain(|call| !calls.contains(call)),
                None => allowed.extend(calls),
            }
        }
    }
    allowed
}

/// The calls that the daemon's own filter names.
fn calls_of_the_daemon() -> BTreeSet<String> {
    let path = root().join("proxy/daemon/src/lifecycle/sandbox/calls.rs");
    let source = fs::read_to_string(path).expect("the source");
    let (code, _) = source.split_once("mod tests {").expect("it has tests");
    let end = |rest: &str| rest.find(|c: char| !c.is_alphanumeric() && c != '_');
    let named = code.split("libc::SYS_").skip(1).filter_map(|rest| rest.get(..end(rest)?));
    named.map(str::to_owned).collect()
}

#[test]
#[ignore = "needs systemd-analyze; ./tests/run operator"]
fn the_unit_allows_what_the_daemon_calls() {
    let unit = cli(&["generate", "systemd"]);
    let allowed = allowed_by(&unit);
    let mut needed = calls_of_the_daemon();
    assert!(needed.len() > 100 && needed.contains("accept4"), "{needed:?}");
    needed.extend(RESTRICTS.map(str::to_owned));
    let lacks: Vec<&String> = needed.difference(&allowed).collect();
    assert_eq!(lacks, ROOTS, "the daemon calls what its unit refuses");
    assert!(!allowed.contains("mount") && !allowed.contains("ptrace"), "that is no filter");
}

/// Starts the daemon of `cp`, under a filter like that of systemd if one is given; returns its
/// output about the sandbox, and all output until it serves.
fn sandbox_of(world: &mut World, filter: Option<&BpfProgram>) -> (String, String) {
    let log = world.path("cp.log");
    let so_far = fs::read_to_string(&log).unwrap_or_default().len();
    thread::scope(|scope| {
        // In a separate thread: a filter is permanent, and the daemon inherits it.
        let started = scope.spawn(|| {
            if let Some(filter) = filter {
                seccompiler::apply_filter(filter).expect("a filter is taken");
            }
            world.spawn("cp");
        });
        started.join().expect("it is started");
    });
    world.chooses("cp", "cp", PATIENCE);
    assert_eq!(world.get("cp", "/version").status, 200);
    let said = fs::read_to_string(&log).expect("a log")[so_far..].to_owned();
    let process = world.node_mut("cp").process();
    process.signal("TERM");
    assert!(process.ended(PATIENCE).success());
    let line = said.lines().find(|line| line.contains("sandbox enabled"));
    let (_, what) = line.and_then(|line| line.split_once("files=")).expect("it says so");
    // Its user has capabilities or not; the unit's has none.
    let (what, _) = what.split_once(" capabilities=").expect("it says so");
    (what.to_owned(), said)
}

#[test]
#[ignore = "needs systemd-analyze; ./tests/run operator"]
fn the_daemon_restricts_itself_under_the_units_filter_too() {
    let Ok(header) = fs::read_to_string(NUMBERS) else {
        println!("NOT CHECKED: {NUMBERS} is not there, so that the filter cannot be made");
        return;
    };
    let number = |line: &str| {
        let (name, number) = line.strip_prefix("#define __NR_")?.split_once(' ')?;
        Some((name.to_owned(), number.trim().parse().ok()?))
    };
    let numbers: BTreeMap<String, i64> = header.lines().filter_map(number).collect();
    let filter = |unit: &str| -> BpfProgram {
        let calls = allowed_by(unit).into_iter().filter_map(|call| numbers.get(&call).copied());
        let rules = calls.map(|call| (call, Vec::new())).collect();
        let here = std::env::consts::ARCH.try_into().expect("it is known");
        let (other, allowed) = (SeccompAction::Errno(EPERM), SeccompAction::Allow);
        let filter = SeccompFilter::new(rules, other, allowed, here).expect("a good filter");
        filter.try_into().expect("a good filter")
    };
    let mut world = World::new();
    let address = world.apiserver("cp");
    world.make(&NodePlan::new("cp", "a").origin(address));
    let (free, _) = sandbox_of(&mut world, None);
    println!("without a filter around it: {free}");
    assert!(free.ends_with("calls=\"yes\""), "{free}");

    let unit = cli(&["generate", "systemd"]);
    let (under, said) = sandbox_of(&mut world, Some(&filter(&unit)));
    assert_eq!(under, free, "{said}");
    assert!(!said.contains("not restricted") && !said.contains("not filtered"), "{said}");

    // The comparison: without the line that allows it.
    let is_it = |line: &&str| RESTRICTS.iter().any(|call| line.contains(call));
    let line = unit.lines().find(is_it).expect("the unit names them");
    let lacking = filter(&unit.replace(line, ""));
    let groups_have_them = allowed_by("SystemCallFilter=@system-service").contains("seccomp");
    let (under, said) = sandbox_of(&mut world, Some(&lacking));
    if groups_have_them {
        println!("NOT CHECKED: the groups of this systemd have the calls themselves");
        return;
    }
    assert_eq!(under, "\"no\" calls=\"no\"");
    for words in ["access to files is not restricted", "calls are not filtered"] {
        let line = said.lines().find(|line| line.contains(words)).expect(words);
        assert!(line.contains("WARN") && line.contains("Allow "), "{line}");
    }
}
