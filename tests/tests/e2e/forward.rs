//! `meshport forward` on a laptop: from an invite, from a saved credential, through the death of
//! its members and origins, sleep, and another network.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use meshport_tests::identity::Identity;
use meshport_tests::netns::{self, Namespace};
use meshport_tests::process::{Process, meshport, run, run_ok};
use meshport_tests::series::failures;
use meshport_tests::ticks::{self, Watch};
use meshport_tests::wait;
use meshport_tests::world::{NodePlan, World};

mod origins;

const SETTLE: Duration = Duration::from_secs(40);
const INTERVAL: Duration = Duration::from_millis(50);
/// Calls in each phase, one at a time.
const REQUESTS: usize = 15;
const PHASE: Duration = Duration::from_secs(60);
/// RTT from the laptop to the nearest site; long, so that the machine's speed matters little.
const RTT: Duration = Duration::from_millis(200);
/// Starts of which the quickest is judged: the rest of the others is the machine's.
const STARTS: usize = 5;
/// Limit until events arrive again after a sleep or a change of network. A path that is found dead
/// by silent probes takes hardly longer...
const AGAIN: Duration = Duration::from_secs(2);
/// ...so a busy machine gets more attempts, not more time.
const ATTEMPTS: usize = 3;

/// A laptop of the world.
struct Laptop {
    udp: SocketAddr,
    folder: PathBuf,
    invite: PathBuf,
}

impl Laptop {
    fn new(world: &mut World, site: &str, by: &str) -> Self {
        let line = world.invite(by, &NodePlan::operator("laptop", site));
        let invite = world.path("laptop.invite");
        fs::write(&invite, line).expect("the world's folder can be written");
        Self { udp: world.place("laptop", site), folder: world.path("laptop"), invite }
    }

    fn forward(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(meshport());
        command.args(["forward", "--mesh-listen", &self.udp.to_string()]);
        command.arg("--credential").arg(&self.folder).args(["--name", "laptop"]);
        command.args(arguments);
        command
    }

    /// With the invite, as on the first day.
    fn first(&self, arguments: &[&str]) -> Command {
        let invite = self.invite.to_string_lossy();
        self.forward(&[&["--invite", &*invite], arguments].concat())
    }

    /// With the saved credential.
    fn again(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(meshport());
        command.args(["forward", "--mesh-listen", &self.udp.to_string()]);
        command.arg("--credential").arg(&self.folder).args(arguments);
        command
    }

    /// Revokes its node once that has saved its credential; returns the NodeId.
    fn revoke(&self, world: &World) -> String {
        let slot = self.folder.join("0");
        let saved = slot.join("credential");
        wait::until("the credential is saved", SETTLE, || saved.exists().then_some(()));
        let node = Identity::read(&slot).node().to_string();
        let state = world.at("cp-near").state().to_string_lossy().into_owned();
        run_ok(&meshport().to_string_lossy(), &["revoke", &node, "--state-dir", &state]);
        node
    }
}

/// A running forward, its local address, and how long it took to say it.
fn ready(command: &mut Command, log: &Path) -> (Process, SocketAddr, Duration) {
    let from = fs::metadata(log).map_or(0, |data| data.len());
    let begun = wait::now();
    let mut process = Process::start("forward", command, log);
    let local = wait::until("the forward says where it goes", SETTLE, || {
        assert!(process.is_running(), "the forward ended: {}", process.output());
        let output = process.output();
        let said = output.get(usize::try_from(from).ok()?..)?;
        let line = said.lines().find(|line| line.contains(" leads to "))?;
        line.split(' ').next()?.parse().ok()
    });
    (process, local, begun.elapsed())
}

/// The origin that the forward reports for sessions.
fn leads_to(process: &Process) -> String {
    let output = process.output();
    let last = output.lines().rfind(|line| line.contains(" leads to ")).unwrap_or_default();
    last.split(" on ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap_or_default().to_owned()
}

/// An office and two sites with an origin each, one of them nearer, and a third member in the far
/// one. The first site's origin has the authority and is the only seed.
fn office_and_two_sites(sites: [&str; 2]) -> World {
    let ticks = ticks::serve();
    let mut world = World::new();
    world.distance("office", "near", RTT);
    world.distance("office", "far", RTT + Duration::from_millis(60));
    world.distance("near", "far", Duration::from_millis(40));
    for site in sites {
        let name = format!("cp-{site}");
        let address = world.apiserver(&name);
        let offer = format!("\n[service.ticks]\nlisten = []\norigin = \"{ticks}\"\n");
        let plan = NodePlan::new(&name, site).origin(address).role("origin:ticks");
        world.node(&plan.settings(&offer));
    }
    world.node(&NodePlan::new("worker", "far"));
    world.meet();
    world.chooses("worker", "cp-far", SETTLE);
    world
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

#[test]
fn a_laptop_reaches_the_nearest_origin_and_is_no_member() {
    let mut world = office_and_two_sites(["far", "near"]);
    // Its only seed is farther away than the origin it should use.
    let laptop = Laptop::new(&mut world, "office", "cp-far");
    let elsewhere = world.place("second", "office");
    let log = world.path("forward.log");
    let (mut process, local, took) = ready(&mut laptop.first(&["--listen", "127.0.0.1:0"]), &log);
    println!("from an invite, with the first file written: ready after {took:?}");
    wait::until("the nearest origin serves", SETTLE, || {
        let answer = world.curl().get(local, "/version").ok()?;
        (answer.status == 200 && answer.subject().contains("cp-near")).then_some(())
    });
    wait::until("the last line names it", SETTLE, || {
        (leads_to(&process) == "cp-near").then_some(())
    });

    let members = ["cp-far", "cp-near", "worker"];
    let attached: f64 = members.iter().map(|node| leaves(&world, node)).sum();
    assert!(attached >= 1.0, "members tell of it");
    // It is not counted, and is in no directory.
    for node in members {
        assert_eq!(world.at(node).alive(), 3, "{node} sees more than the members");
        assert!(!world.at(node).explain(&["--json"]).contains("laptop"));
    }
    process.signal("TERM");
    assert!(process.ended(SETTLE).success());
    for node in members {
        let output = world.node_mut(node).process().output();
        assert!(!output.contains("member down"), "{node} missed somebody:\n{output}");
    }
    saved_for_the_owner_only(&laptop.folder);

    let times = (0..STARTS).map(|_| {
        let (process, local, took) = ready(&mut laptop.again(&["--listen", "127.0.0.1:0"]), &log);
        let answer = world.curl().get(local, "/version").expect("it serves at once");
        assert_eq!(answer.status, 200);
        process.signal("INT");
        took
    });
    let took = times.min().expect("some");
    println!("with a saved credential, {RTT:?} from the nearest origin: ready after {took:?}");
    assert!(took <= RTT * 4 + Duration::from_millis(100), "{took:?}");

    // Two at once with the saved credential use an identity each, and save what they learn.
    let folder = laptop.folder.clone();
    let directory = |slot: &str| {
        let file = fs::metadata(folder.join(slot).join("directory")).ok()?;
        file.modified().ok()
    };
    let before = (directory("0"), directory("1"));
    let words = ["--listen", "127.0.0.1:0"];
    let (_first, _, _) = ready(&mut laptop.again(&words), &log);
    wait::until("the first saves", SETTLE, || (directory("0") != before.0).then_some(()));
    let second = Laptop { udp: elsewhere, ..laptop };
    let (_second, _, _) = ready(&mut second.again(&words), &world.path("second.log"));
    wait::until("the second saves", SETTLE, || (directory("1") != before.1).then_some(()));
}

/// How many machines are attached to a node.
fn leaves(world: &World, node: &str) -> f64 {
    world.at(node).metrics().sum("meshport_leaves", "")
}

fn saved_for_the_owner_only(folder: &Path) {
    let mut files = 0;
    for slot in fs::read_dir(folder).expect("something is saved") {
        let slot = slot.expect("an entry").path();
        for file in fs::read_dir(&slot).expect("a folder per identity") {
            let file = file.expect("an entry");
            let mode = file.metadata().expect("a file").permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{:?}", file.path());
            files += 1;
        }
    }
    assert!(files > 10, "{files} files are saved");
}

#[test]
fn a_command_starts_soon_and_its_end_is_the_forwards() {
    let mut world = office_and_two_sites(["near", "far"]);
    let laptop = Laptop::new(&mut world, "office", "cp-near");
    let (log, sign) = (world.path("exec.log"), world.path("started"));
    let sign_text = sign.to_string_lossy().into_owned();
    let times = (0..STARTS).map(|_| {
        // Nothing is saved, so each run is a first one.
        let _ = fs::remove_file(&sign);
        let mut command = laptop.first(&["--no-save", "--exec", "--", "touch", &sign_text]);
        let begun = wait::now();
        let mut process = Process::start("forward", &mut command, &log);
        wait::until("the command has started", SETTLE, || sign.exists().then_some(()));
        let took = begun.elapsed();
        assert!(process.ended(SETTLE).success());
        took
    });
    let took = times.min().expect("some");
    println!("first time from an invite, {RTT:?} away: the command starts after {took:?}");
    assert!(took <= RTT * 6 + Duration::from_millis(300), "{took:?}");

    let script = "test \"${MESHPORT_ADDRESS%:*}\" = 127.0.0.1 && exit 7";
    let mut command = laptop.first(&["--exec", "--", "sh", "-c", script]);
    let mut process = Process::start("forward", command.env_remove("KUBECONFIG"), &log);
    assert_eq!(process.ended(SETTLE).code(), Some(7), "the command's own exit code");

    // A signal is passed on, and the command's exit code is returned.
    let script = format!("trap 'exit 9' TERM; touch {sign_text}2; while :; do sleep 0.1; done");
    let mut command = laptop.again(&["--exec", "--", "sh", "-c", &script]);
    let mut process = Process::start("forward", &mut command, &log);
    let begun = PathBuf::from(format!("{sign_text}2"));
    wait::until("the command has started", SETTLE, || begun.exists().then_some(()));
    process.signal("TERM");
    assert_eq!(process.ended(SETTLE).code(), Some(9));
}

/// A kubeconfig with a secret in it, for an apiserver somewhere.
fn kubeconfig(path: &Path) -> &'static str {
    const TEXT: &str = "\
apiVersion: v1
kind: Config
clusters:
- cluster:
    server: https://api.example.com:6443
  name: prod
contexts:
- context:
    cluster: prod
    user: me
  name: prod
current-context: prod
users:
- name: me
  user:
    token: s3cret-of-the-user
";
    fs::write(path, TEXT).expect("the world's folder can be written");
    "s3cret-of-the-user"
}

#[test]
fn a_kubeconfig_is_lent_to_the_command_and_merged_into_a_file() {
    let mut world = office_and_two_sites(["near", "far"]);
    let laptop = Laptop::new(&mut world, "office", "cp-near");
    let (log, source, copy) = (world.path("log"), world.path("config"), world.path("copy"));
    let secret = kubeconfig(&source);
    let script = "cat \"${KUBECONFIG%%:*}\" > \"$0\"; stat -c %a \"${KUBECONFIG%%:*}\" >> \"$0\"; \
                  echo \"$KUBECONFIG\" >> \"$0\"";
    let copy_text = copy.to_string_lossy().into_owned();
    let exec = ["--exec", "--", "sh", "-c", script, &copy_text];
    let mut command = laptop.first(&exec);
    let mut process = Process::start("forward", command.env("KUBECONFIG", &source), &log);
    assert!(process.ended(SETTLE).success());
    let lent = fs::read_to_string(&copy).expect("the command has written it");
    assert!(lent.contains("server: https://127.0.0.1:"), "{lent}");
    // No origin's certificate names api.example.com.
    assert!(lent.contains("tls-server-name: kubernetes.default.svc"), "{lent}");
    assert!(lent.contains("current-context: meshport") && lent.contains("\n600\n"), "{lent}");
    assert!(lent.trim_end().ends_with(&format!(":{}", source.display())), "{lent}");
    assert!(!lent.contains(secret), "the user's secrets stay where they are");
    let file = lent.lines().last().and_then(|list| list.split(':').next()).unwrap_or_default();
    assert!(!Path::new(file).exists(), "{file} is left over");

    let source_text = source.to_string_lossy();
    let merge = ["--listen", "127.0.0.1:0", "--from", &*source_text, "--kubeconfig", &*source_text];
    let (process, local, _) = ready(&mut laptop.again(&merge), &log);
    let merged = wait::until("the context is written", SETTLE, || {
        let text = fs::read_to_string(&source).ok()?;
        text.contains(&format!("server: https://{local}")).then_some(text)
    });
    assert!(merged.contains("current-context: prod") && merged.contains(secret), "{merged}");
    assert!(merged.contains("tls-server-name: kubernetes.default.svc"), "{merged}");
    drop(process);
    let said = fs::read_to_string(&log).expect("a log");
    assert!(!said.contains(secret));

    // An origin that is down may lack the name that the others have.
    world.kill_apiserver("cp-far");
    wait::until("its failure is known", SETTLE, || {
        let status = world.at("cp-near").status()?;
        let origins = status["services"][0]["origins"].as_array()?.clone();
        origins.iter().any(|it| it["state"] == "refusing").then_some(())
    });
    let (process, ..) = ready(&mut laptop.again(&merge), &log);
    let warned = || process.output().contains("the certificate of cp-far could not").then_some(());
    wait::until("the forward warns of the origin that is down", SETTLE, warned);
}

#[test]
fn a_kubeconfig_verifies_a_name_that_every_origin_has() {
    let world = office_and_two_sites(["near", "far"]);
    let source = world.path("config");
    kubeconfig(&source);
    let (source, state) = (source.to_string_lossy(), world.at("worker").state().to_string_lossy());
    let printed = |flags: &[&str]| {
        let words = ["kubeconfig", "--from", &*source, "--state-dir", &*state];
        let output = run(&meshport().to_string_lossy(), &[&words, flags].concat());
        assert!(output.status.success(), "{output:?}");
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        (text(&output.stdout), text(&output.stderr))
    };
    let (made, said) = printed(&[]);
    assert!(made.contains("tls-server-name: kubernetes.default.svc"), "{made}");
    let both = ["cp-far, cp-near", "cp-near, cp-far"];
    let missing = both.map(|names| format!("api.example.com is missing from that of {names}"));
    assert!(missing.iter().any(|it| said.contains(it)), "{said}");
    assert!(!said.contains("warning"), "{said}");
    let (made, said) = printed(&["--tls-server-name", "cp-near"]);
    assert!(made.contains("tls-server-name: cp-near"), "{made}");
    assert!(said.contains("warning: cp-near is not in the certificate of cp-far;"), "{said}");
    let key = rcgen::KeyPair::generate().expect("a key");
    let other = rcgen::CertificateParams::default().self_signed(&key).expect("signed");
    fs::write(world.path("ca.crt"), other.pem()).expect("written");
    let text = fs::read_to_string(&*source).expect("readable");
    let with_ca = text.replace("    server:", "    certificate-authority: ca.crt\n    server:");
    fs::write(&*source, with_ca).expect("written");
    let (_, said) = printed(&[]);
    assert!(said.contains("CA did not sign the certificate of cp-"), "{said}");
}

#[test]
fn no_call_fails_when_the_member_or_the_apiserver_in_use_dies() {
    let mut world = office_and_two_sites(["near", "far"]);
    let laptop = Laptop::new(&mut world, "office", "cp-near");
    let log = world.path("forward.log");
    let (process, local, _) = ready(&mut laptop.first(&["--listen", "127.0.0.1:0"]), &log);
    let goes_to = |origin: &str| {
        let what = format!("the forward goes to {origin}");
        wait::until(&what, SETTLE, || (leads_to(&process) == origin).then_some(()));
    };
    goes_to("cp-near");
    let load = world.load(local, INTERVAL);
    load.goes_on(REQUESTS, PHASE);

    let paused = load.pause();
    world.kill_apiserver("cp-near");
    drop(paused);
    goes_to("cp-far");
    load.goes_on(REQUESTS, PHASE);
    world.start_apiserver("cp-near");
    goes_to("cp-near");
    load.goes_on(REQUESTS, PHASE);

    // The member it came in by, which is the origin it uses, and its only seed.
    let paused = load.pause();
    world.kill("cp-near");
    drop(paused);
    goes_to("cp-far");
    load.goes_on(REQUESTS, PHASE);
    world.start("cp-near");
    goes_to("cp-near");
    load.goes_on(REQUESTS, PHASE);

    let requests = load.finish();
    let slowest = requests.iter().map(|request| request.took).max().unwrap_or_default();
    println!("{} calls while things died, slowest {slowest:?}", requests.len());
    let failed = failures(&requests);
    assert!(failed.is_empty(), "of {} failed:\n{}", requests.len(), failed.join("\n"));
}

/// Stops the forward for a while; returns how long its watch receives nothing after it continues.
fn stopped(process: &Process, watch: &Watch, length: Duration) -> Duration {
    process.signal("STOP");
    wait::moment(wait::now() + length);
    let woken = wait::now();
    process.signal("CONT");
    watch.silent_after(woken, SETTLE)
}

/// Silences of a watch until one is short, at most [`ATTEMPTS`].
fn silences(mut next: impl FnMut() -> Duration) -> Vec<Duration> {
    let mut all = Vec::new();
    while all.len() < ATTEMPTS && all.last().is_none_or(|last| *last > AGAIN) {
        all.push(next());
    }
    all
}

#[test]
fn a_watch_hears_again_soon_after_a_sleep() {
    let mut world = office_and_two_sites(["near", "far"]);
    let laptop = Laptop::new(&mut world, "office", "cp-near");
    let log = world.path("forward.log");
    let arguments = ["--service", "ticks", "--listen", "127.0.0.1:0"];
    let (process, local, _) = ready(&mut laptop.first(&arguments), &log);
    let watch = Watch::start(local);
    watch.silent_after(wait::now(), SETTLE);
    // A nap, which the connection to the origin survives; and a sleep that none survives.
    for length in [Duration::from_secs(5), Duration::from_secs(40)] {
        let silences = silences(|| stopped(&process, &watch, length));
        let connections = watch.connections();
        println!(
            "stopped for {length:?}: heard again after {silences:?}, {connections} connections"
        );
        assert!(silences.last() <= Some(&AGAIN), "{silences:?}");
    }
}

#[test]
fn a_revoked_operators_forward_ends_and_says_why() {
    let mut world = office_and_two_sites(["near", "far"]);
    let laptop = Laptop::new(&mut world, "office", "cp-near");
    let log = world.path("forward.log");
    let (mut process, ..) = ready(&mut laptop.first(&["--listen", "127.0.0.1:0"]), &log);
    let node = laptop.revoke(&world);
    let status = process.ended(SETTLE);
    let said = process.output();
    assert_eq!(status.code(), Some(4), "{said}");
    for words in [&*format!("node {node} was revoked at"), "`meshport forward --invite FILE`"] {
        assert!(said.contains(words), "{words}: {said}");
    }
}

#[test]
fn the_command_of_a_revoked_operator_is_asked_to_end_before_it_is_killed() {
    let mut world = office_and_two_sites(["near", "far"]);
    let laptop = Laptop::new(&mut world, "office", "cp-near");
    let (log, begun, asked) = (world.path("log"), world.path("begun"), world.path("asked"));
    let script = "trap 'cp \"$2\" \"$1\"' TERM; echo $$ >\"$0\"; while :; do sleep 0.1; done";
    let files = [&begun, &asked, &log].map(|it| it.to_string_lossy().into_owned());
    let exec = ["--exec", "--", "sh", "-c", script, &files[0], &files[1], &files[2]];
    let mut process = Process::start("forward", &mut laptop.first(&exec), &log);
    let id = wait::until("the command has started", SETTLE, || {
        fs::read_to_string(&begun).ok().filter(|text| text.ends_with('\n'))
    });
    laptop.revoke(&world);
    let status = process.ended(SETTLE);
    assert_eq!(status.code(), Some(4), "{}", process.output());
    let said = fs::read_to_string(&asked).expect("it had time to clean up");
    assert!(said.contains("was revoked at"), "the reason comes first: {said}");
    assert!(!Path::new("/proc").join(id.trim()).exists(), "it still runs");
}

#[test]
fn what_cannot_work_is_said_with_the_next_step() {
    let mut world = office_and_two_sites(["near", "far"]);
    let laptop = Laptop::new(&mut world, "office", "cp-near");
    let say = |command: &mut Command| {
        let output = command.output().expect("the binary runs");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), text)
    };
    let (code, text) = say(&mut laptop.again(&[]));
    assert_eq!(code, Some(4), "{text}");
    assert!(text.contains("--role operator"), "{text}");

    let (code, text) = say(&mut laptop.first(&["--service", "nothing", "--timeout", "3s"]));
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("none knows an origin of nothing"), "{text}");

    let line = world.invite("cp-near", &NodePlan::new("node", "office"));
    let (code, text) =
        say(Command::new(meshport()).args(["forward", "--no-save", "--invite", &line]));
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("does not grant the role operator, only node"), "{text}");

    // An operator's credential makes no daemon.
    let line = fs::read_to_string(&laptop.invite).expect("an invite");
    let (code, text) = say(Command::new(meshport()).args(["join", &line]));
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("meshport forward --invite"), "{text}");
    let state = world.path("state");
    let state = state.to_string_lossy();
    let init = ["init", "--site", "x", "--name", "x", "--role", "operator", "--state-dir", &state];
    run_ok(&meshport().to_string_lossy(), &init);
    let (code, text) = say(Command::new(meshport()).args(["run", "--state-dir", &state]));
    assert_eq!(code, Some(4), "{text}");
    assert!(text.contains("meshport forward --invite"), "{text}");
}

/// A member in one namespace that offers the talking service, and a forward in another; both end
/// before the namespaces do.
struct TwoHosts {
    watch: Option<Watch>,
    forward: Option<Process>,
    _member: Process,
    laptop: Namespace,
    _datacenter: Namespace,
    _folder: tempfile::TempDir,
}

const MEMBER: &str = "10.78.0.1";

fn two_hosts() -> TwoHosts {
    netns::remove_stale();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = |name: &str| folder.path().join(name);
    let (datacenter, laptop) = (Namespace::new(), Namespace::new());
    netns::cable(&datacenter, &format!("{MEMBER}/24"), &laptop, "10.78.0.2/24");
    let listener =
        datacenter.inside(|| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port"));
    let ticks = listener.local_addr().expect("bound");
    thread::spawn(move || ticks::serve_on(&listener));

    let state = path("member");
    let state = state.to_string_lossy();
    let binary = meshport().to_string_lossy();
    let roles = ["--role", "node", "--role", "origin:ticks"];
    let init = [&["init", "--site", "dc", "--name", "cp", "--state-dir", &state], &roles[..]];
    run_ok(&binary, &init.concat());
    let endpoint = format!("{MEMBER}:51820");
    let settings = format!(
        "site = \"dc\"\nstate-dir = \"{state}\"\n[mesh]\nlisten = \"{endpoint}\"\n\
         advertise = [\"{endpoint}\"]\n[admin]\nhttp = \"off\"\n\
         [service.ticks]\nlisten = []\norigin = \"{ticks}\"\n"
    );
    fs::write(path("member.toml"), settings).expect("a file can be written");
    let mut command = datacenter.command(&binary);
    command.arg("run").arg("--config").arg(path("member.toml"));
    let member = Process::start("member", &mut command, &path("member.log"));

    let invite = ["--site", "office", "--role", "operator", "--endpoint", &endpoint];
    let invite = run_ok(&binary, &[&["invite", "--state-dir", &state], &invite[..]].concat());
    fs::write(path("invite"), invite).expect("a file can be written");
    let mut command = laptop.command(&binary);
    command.args(["forward", "--no-save", "--name", "laptop", "--service", "ticks"]);
    command.args(["--listen", "127.0.0.1:0", "--invite"]).arg(path("invite"));
    let (forward, local, _) = ready(&mut command, &path("forward.log"));
    let watch = laptop.inside(|| Watch::start(local));
    TwoHosts {
        watch: Some(watch),
        forward: Some(forward),
        _member: member,
        laptop,
        _datacenter: datacenter,
        _folder: folder,
    }
}

#[test]
#[ignore = "needs root for network namespaces: ./tests/run e2e"]
fn a_watch_continues_from_another_address() {
    let mut hosts = two_hosts();
    let watch = hosts.watch.take().expect("it was just made");
    watch.silent_after(wait::now(), SETTLE);
    let interfaces = hosts.laptop.interfaces();
    let [interface] = &interfaces[..] else { panic!("one cable, not {interfaces:?}") };
    let mut changes = Vec::new();
    for number in [9, 10, 11] {
        hosts.laptop.ip(&["addr", "flush", "dev", interface]);
        let changed = wait::now();
        let address = format!("10.78.0.{number}/24");
        hosts.laptop.ip(&["addr", "add", &address, "dev", interface]);
        changes.push(watch.silent_after(changed, SETTLE));
    }
    println!("another address: heard again after {changes:?}");
    assert!(median(changes) <= AGAIN);
    // Out of reach for a while, then in another network.
    let mut numbers = 77..;
    let others = silences(|| {
        hosts.laptop.ip(&["link", "set", interface, "down"]);
        hosts.laptop.ip(&["addr", "flush", "dev", interface]);
        wait::moment(wait::now() + Duration::from_secs(8));
        let address = format!("10.78.0.{}/24", numbers.next().expect("endless"));
        hosts.laptop.ip(&["addr", "add", &address, "dev", interface]);
        hosts.laptop.ip(&["link", "set", interface, "up"]);
        watch.silent_after(wait::now(), SETTLE)
    });
    println!("8 s without a network, then another: heard again after {others:?}");
    assert!(others.last() <= Some(&AGAIN), "{others:?}");
    drop((watch, hosts.forward.take()));
}
