//! Key material stays where it belongs: nothing that a whole life of a mesh prints or writes, apart
//! from the files made for it and the invite lines, contains any of it in any usual form.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use aho_corasick::AhoCorasick;
use data_encoding::{
    BASE32_NOPAD, BASE64, BASE64URL_NOPAD, HEXLOWER, HEXLOWER_PERMISSIVE, HEXUPPER,
};
use meshport_config::{Invite, Mandate, MeshSecret, NodeId, NodeKey};
use meshport_tests::process::{Process, meshport, run, run_ok};
use meshport_tests::wait;
use meshport_tests::world::{NodePlan, World};

use self::cluster::{CLUSTERS, Cluster};

mod cluster;

const SETTLE: Duration = Duration::from_secs(40);
/// Files of a state folder that exist to hold a secret.
const HOMES: [&str; 6] = ["node.key", "record.key", "mesh.secret", "authority.key", NEXT, MANDATE];
/// New keys before they replace the previous ones.
const NEXT: &str = "node.next";
/// The right to renew others.
const MANDATE: &str = "mandate";
/// Its keys: `delegate` makes one for each 28th of a year.
const TURNS: usize = 28;
const SECRET_BYTES: usize = 32;
/// Most bytes of a line with a secret: a checksum may be before it. Statements are longer.
const MAX_LINE_BYTES: usize = SECRET_BYTES + 8;
/// Identities that a saved invite of an operator makes.
const SLOTS: usize = 4;
/// Two keys of each of two nodes, before and after their change, and of each identity of a laptop;
/// two secrets of the mesh; the authority's key; those of a mandate.
const KEPT: usize = 2 * 2 * 2 + 2 * SLOTS + 2 + 1 + TURNS;
/// Lines of invites: of a node, a laptop, a new key, a renewal, and one that is taken back.
const INVITES: usize = 5;
/// Keys of all nodes that existed, one for each pair under each of two secrets.
const NODES: usize = 2 * 2 + SLOTS;
const PAIRS: usize = 2 * NODES * (NODES - 1) / 2;
/// How many characters of an encoding count as a leak: half of a key. Encodings begin at any byte
/// of what they encode, so the first and last characters depend on the surrounding bytes.
const TELLING: usize = SECRET_BYTES / 2;

/// A secret and where it is kept.
pub(crate) struct Secret {
    home: String,
    bytes: Vec<u8>,
    text: String,
}

impl Secret {
    /// The secrets in a file: lines of 32 bytes in base64, or of a tag, a dot, and base64url of a
    /// checksum and 32 bytes, among lines of other things.
    fn all_of(path: &Path) -> Vec<Self> {
        let home = path.file_name().expect("a file").to_string_lossy().into_owned();
        let text = fs::read_to_string(path).expect("a secret's file");
        if home == MANDATE {
            return Self::of_mandate(text.trim());
        }
        let of_line = |line: &str| {
            let bytes = match line.rsplit_once('.') {
                Some((_, tail)) => BASE64URL_NOPAD.decode(tail.as_bytes()),
                None => BASE64.decode(line.as_bytes()),
            };
            let bytes = bytes.ok()?;
            let is_secret = (SECRET_BYTES..=MAX_LINE_BYTES).contains(&bytes.len());
            let bytes = is_secret.then(|| bytes[bytes.len() - SECRET_BYTES..].to_vec())?;
            Some(Self { home: home.clone(), bytes, text: line.to_owned() })
        };
        let found: Vec<Self> = text.lines().filter_map(of_line).collect();
        assert!(!found.is_empty(), "{home} holds no secret");
        found
    }

    /// The keys in the line of a mandate.
    fn of_mandate(line: &str) -> Vec<Self> {
        let mandate: Mandate = line.parse().expect("a mandate");
        let of_key = |key: &str| {
            let (_, tail) = key.rsplit_once('.').expect("a tag and a payload");
            let bytes = BASE64URL_NOPAD.decode(tail.as_bytes()).expect("base64url");
            let bytes = bytes[bytes.len() - SECRET_BYTES..].to_vec();
            Self { home: MANDATE.to_owned(), bytes, text: line.to_owned() }
        };
        mandate.keys().map(|key| of_key(&key.to_text())).collect()
    }

    /// The secrets of a state folder.
    pub(crate) fn in_folder(folder: &Path) -> Vec<Self> {
        let paths = HOMES.iter().map(|home| folder.join(home));
        paths.filter(|path| path.is_file()).flat_map(|path| Self::all_of(&path)).collect()
    }

    /// The forms in which it could be found, each with a name for the report.
    fn forms(&self) -> Vec<(&'static str, Vec<u8>)> {
        let half = &self.bytes[..TELLING];
        let list = |bytes: &[u8]| bytes.iter().map(u8::to_string).collect::<Vec<_>>().join(", ");
        let mut forms = vec![
            ("its text", self.text.clone().into_bytes()),
            ("bytes", half.to_vec()),
            ("hexadecimal", HEXLOWER.encode(half).into_bytes()),
            ("HEXADECIMAL", HEXUPPER.encode(half).into_bytes()),
            ("a list of numbers", list(half).into_bytes()),
            ("a list without spaces", list(half).replace(' ', "").into_bytes()),
        ];
        // Base64 and base32 of a longer text depend on where in it the secret begins.
        for skipped in 0..5 {
            let part = &self.bytes[skipped..];
            let (base64, url) = (BASE64.encode(part), BASE64URL_NOPAD.encode(part));
            let base32 = BASE32_NOPAD.encode(part);
            forms.extend([
                ("base64", base64[..TELLING].into()),
                ("base64url", url[..TELLING].into()),
                ("base32", base32[..TELLING].into()),
                ("base32 in small letters", base32[..TELLING].to_lowercase().into()),
            ]);
        }
        forms
    }

    /// The key that signs for nodes that join with this line. In the line it precedes the mesh's
    /// secret, one of the known ones.
    fn of_invite(line: &str, known: &[Self]) -> Self {
        let invite = Invite::parse(line).expect("an invite");
        let secret = invite.mesh_secret.to_text();
        let secret = known.iter().find(|it| it.text == *secret);
        let secret = secret.expect("the mesh's secret is known");
        let (_, payload) = line.trim().rsplit_once('.').expect("a tag and a payload");
        let payload = BASE64URL_NOPAD.decode(payload.as_bytes()).expect("base64url");
        let mut places = payload.windows(SECRET_BYTES);
        let at = places.position(|bytes| bytes == secret.bytes).expect("it has the secret");
        let bytes = payload[at - SECRET_BYTES..at].to_vec();
        Self { home: "an invite's key".into(), bytes, text: line.trim().to_owned() }
    }

    /// WireGuard's key for each pair of these nodes under each of these secrets.
    fn of_pairs(known: &[Self]) -> Vec<Self> {
        let keys = known.iter().filter_map(|it| it.text.parse::<NodeKey>().ok());
        let nodes: BTreeSet<NodeId> = keys.map(|key| key.public()).collect();
        let nodes: Vec<NodeId> = nodes.into_iter().collect();
        assert_eq!(nodes.len(), NODES);
        let mut all = Vec::new();
        for secret in known.iter().filter_map(|it| it.text.parse::<MeshSecret>().ok()) {
            for (at, one) in nodes.iter().enumerate() {
                for other in &nodes[at + 1..] {
                    let bytes = secret.psk(one, other).to_vec();
                    let text = BASE64.encode(&bytes);
                    all.push(Self { home: "a pre-shared key".into(), bytes, text });
                }
            }
        }
        all
    }
}

/// Returns a function that lists which secrets a text contains, and in which encodings.
pub(crate) fn search(secrets: &[Secret]) -> impl Fn(&[u8]) -> BTreeSet<String> + use<> {
    let forms = secrets.iter().flat_map(|secret| {
        let named = secret.forms().into_iter();
        named.map(|(form, bytes)| (format!("{} as {form}", secret.home), bytes))
    });
    let (names, forms): (Vec<_>, Vec<_>) = forms.unzip();
    let search = AhoCorasick::new(forms).expect("some thousand short forms");
    move |text| {
        let found = search.find_iter(text);
        found.map(|found| names[found.pattern().as_usize()].clone()).collect()
    }
}

/// All secrets that existed, once each: those of files, those derived from them, and the cluster's.
fn all_of(kept: Vec<Secret>, invites: &[String], clusters: Vec<Secret>) -> Vec<Secret> {
    let distinct: BTreeMap<Vec<u8>, Secret> =
        kept.into_iter().map(|secret| (secret.bytes.clone(), secret)).collect();
    let mut all: Vec<Secret> = distinct.into_values().collect();
    assert_eq!(all.len(), KEPT, "not all secrets there were are looked for");
    let lines: BTreeSet<&String> = invites.iter().collect();
    assert_eq!(lines.len(), INVITES);
    let invites: Vec<Secret> =
        lines.into_iter().map(|line| Secret::of_invite(line, &all)).collect();
    let pairs = Secret::of_pairs(&all);
    all.extend(invites.into_iter().chain(pairs).chain(clusters));
    let distinct: BTreeSet<&[u8]> = all.iter().map(|secret| &*secret.bytes).collect();
    assert_eq!(distinct.len(), KEPT + INVITES + PAIRS + CLUSTERS);
    all
}

/// Printed or written bytes, and where they appeared.
#[derive(Default)]
struct Seen(Vec<(String, Vec<u8>)>);

impl Seen {
    /// Runs the program, which must succeed, and keeps all its output.
    #[track_caller]
    fn run_ok(&mut self, arguments: &[&str]) {
        assert!(self.run(arguments), "{}", String::from_utf8_lossy(&self.0[self.0.len() - 1].1));
    }

    /// Runs the program and keeps all it says; whether it succeeded.
    fn run(&mut self, arguments: &[&str]) -> bool {
        let output = run(&meshport().to_string_lossy(), arguments);
        let what = format!("meshport {}", arguments.join(" "));
        assert!(!output.stdout.is_empty() || !output.stderr.is_empty(), "{what} says nothing");
        self.0.push((format!("output of {what}"), output.stdout));
        self.0.push((format!("messages of {what}"), output.stderr));
        output.status.success()
    }

    /// Makes the support bundle of a node and unpacks it in the world's folder, which is searched
    /// at the end.
    fn bundle(&mut self, world: &World, node: &str) {
        let [config, bundle, unpacked] = ["toml", "tar.gz", "bundle"]
            .map(|kind| world.path(&format!("{node}.{kind}")).display().to_string());
        self.run_ok(&["support-bundle", "--output", &bundle, "--config", &config]);
        fs::create_dir(&unpacked).expect("a new folder");
        run_ok("tar", &["-xzf", &bundle, "-C", &unpacked]);
    }

    /// All files below `folder` except those that hold secrets.
    fn files(&mut self, folder: &Path) {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let is_home =
                path.file_name().is_some_and(|name| HOMES.iter().any(|home| name == *home));
            if path.is_dir() {
                self.files(&path);
            } else if path.is_file() && !is_home {
                let bytes = fs::read(&path).expect("a file");
                self.0.push((path.display().to_string(), bytes));
            }
        }
    }
}

/// Two nodes that log everything, the secrets of both, and their knowledge of the cluster.
fn talkative() -> (World, Vec<Secret>, Cluster) {
    let mut world = World::new();
    let address = world.apiserver("cp");
    let cluster = Cluster::new(&world);
    world.make(&NodePlan::new("cp", "a").origin(address).settings(&cluster.health()));
    world.make(&NodePlan::new("worker", "a").settings(&cluster.list()));
    for name in ["cp", "worker"] {
        let config = world.path(&format!("{name}.toml"));
        let text = fs::read_to_string(&config).expect("a node has settings");
        let log = "\n[log]\nlevel = \"trace\"\nformat = \"json\"\n";
        fs::write(&config, format!("{text}{log}")).expect("written");
        world.start(name);
    }
    let folders = ["cp", "worker"].map(|name| world.at(name).state());
    let secrets: Vec<Secret> = folders.iter().flat_map(|it| Secret::in_folder(it)).collect();
    // Two nodes have two keys each and share the mesh's secret; one has the authority's.
    assert_eq!(secrets.len(), 7);
    (world, secrets, cluster)
}

/// The verbs an operator uses, on a mesh that runs; the line of an invite that was used.
fn ask_everything(world: &World, cluster: &Cluster, seen: &mut Seen) -> String {
    let config = world.path("worker.toml").display().to_string();
    let state = world.at("cp").state().display().to_string();
    for verb in ["status", "routes", "explain", "peers", "credentials", "check", "drain", "status"]
    {
        seen.run(&[verb, "--config", &config]);
        seen.run(&[verb, "--config", &config, "--json"]);
    }
    seen.run_ok(&["renew", "--authority", &format!("{state}/authority.key"), "--config", &config]);
    let invite = world.invite("cp", &NodePlan::new("worker", "a"));
    seen.run_ok(&["renew", &invite, "--config", &config]);
    let source = cluster.source();
    seen.run_ok(&["kubeconfig", "--from", &source, "--config", &config]);
    let merged = world.path("merged").display().to_string();
    seen.run_ok(&["kubeconfig", "--from", &source, "--merge", &merged, "--config", &config]);
    seen.bundle(world, "worker");
    let socket = world.at("cp").state().join("meshport.sock").display().to_string();
    for page in ["metrics", "status", "livez", "nothing-here"] {
        let url = format!("http://meshport/{page}");
        let output = run("curl", &["-sS", "--unix-socket", &socket, &url]);
        seen.0.push((format!("the admin page {page}"), output.stdout));
    }
    invite
}

/// Gives both nodes new keys, one through its daemon and one while it has none, and the mesh a new
/// secret. What all of them are now, the file that a daemon finds, and the line of the invite.
fn change_everything(world: &mut World, seen: &mut Seen) -> (Vec<Secret>, Vec<u8>, String) {
    let [cp, worker] = ["cp", "worker"].map(|name| world.at(name).state().to_owned());
    let (cp_text, worker_text) = (cp.display().to_string(), worker.display().to_string());
    seen.run(&["rotate-key", "--state-dir", &cp_text]);
    seen.run(&["rotate-key", "--json", "--state-dir", &cp_text]);
    seen.run(&["rotate-secret", "--overlap", "1h", "--state-dir", &cp_text]);
    seen.run(&["rotate-secret", "--json", "--state-dir", &cp_text]);
    wait::until("the worker has the new secret", SETTLE, || {
        let lines = fs::read_to_string(worker.join("mesh.secret")).ok()?.lines().count();
        (lines > 1).then_some(())
    });
    let invite = world.invite("cp", &NodePlan::new("worker", "a"));
    world.node_mut("worker").process().signal("TERM");
    world.node_mut("worker").process().ended(SETTLE);
    seen.run(&["rotate-key", &invite, "--state-dir", &worker_text]);
    let next = worker.join(NEXT);
    assert_eq!(fs::metadata(&next).expect("it waits for a daemon").mode() & 0o777, 0o600);
    let waiting = fs::read(&next).expect("it is there");
    let mut secrets = Secret::in_folder(&worker);
    world.start("worker");
    assert!(!next.exists(), "the daemon goes on with it");
    world.meet();
    world.get("worker", "/version");
    secrets.extend(Secret::in_folder(&cp));
    (secrets, waiting, invite)
}

/// Makes a mandate for a node and installs it there.
fn delegate(world: &World, node: &str, seen: &mut Seen) {
    let state = world.at(node).state().display().to_string();
    let line = run_ok(&meshport().to_string_lossy(), &["delegate", node, "--state-dir", &state]);
    // Like an invite, it is where an operator keeps it.
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("line");
    fs::write(&file, line).expect("written");
    let file = file.display().to_string();
    seen.run_ok(&["delegate", "--install", &file, "--state-dir", &state]);
    seen.run_ok(&["delegate", "--install", &file, "--json", "--state-dir", &state]);
    seen.run(&["delegate", "--install", &file, "--state-dir", "/nowhere"]);
}

/// Starts on folders with damaged secrets, and reports the damage.
fn damage_everything(world: &World, scratch: &Path, next: &[u8], seen: &mut Seen) {
    for home in HOMES {
        let folder = scratch.join(home);
        let copied = run(
            "cp",
            &["-a", &world.at("cp").state().display().to_string(), &folder.display().to_string()],
        );
        assert!(copied.status.success(), "a state folder can be copied");
        let path = folder.join(home);
        if home == NEXT {
            fs::write(&path, next).expect("written");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("it is ours");
        }
        let text = fs::read_to_string(&path).expect("a secret");
        let (first, rest) = text.split_at(text.len() / 2);
        fs::write(&path, format!("{first}!{rest}")).expect("written");
        let config = world.path("cp.toml").display().to_string();
        let state = folder.display().to_string();
        // The daemon has no use for the authority's key, does without a mandate, and would run.
        match home {
            "authority.key" => {}
            MANDATE => {
                let line = path.display().to_string();
                assert!(!seen.run(&["delegate", "--install", &line, "--state-dir", &state]));
            }
            _ => drop(seen.run(&["run", "--config", &config, "--state-dir", &state])),
        }
        seen.run(&["invite", "--state-dir", &state]);
    }
}

/// A leaf with an invite, which saves its secrets in a separate folder: those secrets, and the
/// invite.
fn operate(
    world: &mut World,
    cluster: &Cluster,
    scratch: &Path,
    seen: &mut Seen,
) -> (Vec<Secret>, String) {
    let invite = world.invite("cp", &NodePlan::operator("laptop", "a"));
    let line = scratch.join("invite");
    fs::write(&line, &invite).expect("written");
    let (place, folder) = (world.place("laptop", "a"), world.path("laptop"));
    let mut command = Command::new(meshport());
    command.args(["forward", "--log-level", "trace", "--name", "laptop", "--invite"]).arg(&line);
    command.args(["--listen", "127.0.0.1:0", "--mesh-listen", &place.to_string()]);
    command.arg("--credential").arg(&folder);
    let context = world.path("laptop.kubeconfig");
    command.arg("--from").arg(cluster.source()).arg("--kubeconfig").arg(&context);
    let log = scratch.join("forward.log");
    let mut forward = Process::start("forward", &mut command, &log);
    let local = wait::until("the forward serves and has saved what it is", SETTLE, || {
        let said = forward.output();
        let line = said.lines().find(|line| line.contains(" leads to "))?;
        let local = line.split(' ').next()?.parse().ok()?;
        folder.join("0/directory").exists().then_some(local)
    });
    assert!(context.exists(), "it has written a context");
    let answer = world.curl().get(local, "/version").expect("the forward leads there");
    assert_eq!(answer.status, 200);
    forward.signal("TERM");
    forward.ended(SETTLE);
    let text = fs::read(&log).expect("a log");
    assert!(text.windows(5).any(|it| it == b"TRACE"), "it does not say all it can");
    seen.0.push(("the forward's log".to_owned(), text));
    let slots = (0..SLOTS).map(|slot| folder.join(slot.to_string()));
    (slots.flat_map(|slot| Secret::in_folder(&slot)).collect(), invite)
}

#[test]
fn no_key_material_in_anything_that_is_printed_or_written() {
    let (mut world, mut secrets, cluster) = talkative();
    world.meet();
    world.chooses("worker", "cp", SETTLE);
    world.get("worker", "/version");
    let scratch = tempfile::tempdir().expect("a folder");
    let mut seen = Seen::default();
    let (operators, laptop) = operate(&mut world, &cluster, scratch.path(), &mut seen);
    secrets.extend(operators);
    Cluster::is_used(&mut world);
    let renewal = ask_everything(&world, &cluster, &mut seen);
    let (changed, next, new_key) = change_everything(&mut world, &mut seen);
    secrets.extend(changed);
    delegate(&world, "cp", &mut seen);
    secrets.extend(Secret::in_folder(world.at("cp").state()));
    seen.bundle(&world, "cp");
    let state = world.at("cp").state().display().to_string();
    let unused = world.invite("cp", &NodePlan::new("nobody", "a"));
    seen.run_ok(&["revoke", &unused, "--state-dir", &state]);
    seen.run_ok(&["revoke", "worker", "--state-dir", &state]);
    for name in ["cp", "worker"] {
        world.node_mut(name).process().signal("TERM");
        world.node_mut(name).process().ended(SETTLE);
    }
    damage_everything(&world, scratch.path(), &next, &mut seen);
    cluster.damage(&world, &mut seen);
    seen.files(&world.path("."));
    seen.0.extend(world.said().iter().cloned());
    let verbs = ["init", "join"].map(|verb| format!("output of meshport {verb}"));
    assert!(verbs.iter().all(|verb| seen.0.iter().any(|(what, _)| what == verb)), "not seen");
    let total: usize = seen.0.iter().map(|(_, text)| text.len()).sum();
    assert!(seen.0.len() > 50 && total > 100_000, "too little was seen: {total} bytes");
    let lines = [world.invites(), &[laptop, renewal, new_key, unused]].concat();
    let search = search(&all_of(secrets, &lines, cluster.secrets));
    let mut leaks = Vec::new();
    for (place, text) in &seen.0 {
        leaks.extend(search(text).into_iter().map(|found| format!("{found}: {place}")));
    }
    assert!(leaks.is_empty(), "key material in the open:\n{}", leaks.join("\n"));
}

/// The search itself finds existing secrets.
#[test]
fn each_form_of_a_secret_is_found() {
    let bytes: Vec<u8> = (0..SECRET_BYTES).map(|place| (place * 37 + 11) as u8).collect();
    let secret = Secret { home: "x".into(), text: "meshport-x-1.abc".into(), bytes: bytes.clone() };
    for before in 0..7 {
        let around = [vec![7; before], bytes.clone(), vec![9; 3]].concat();
        let said = [
            around.clone(),
            HEXLOWER_PERMISSIVE.encode(&around).into_bytes(),
            HEXUPPER.encode(&around).into_bytes(),
            BASE64.encode(&around).into_bytes(),
            BASE64URL_NOPAD.encode(&around).into_bytes(),
            BASE32_NOPAD.encode(&around).into_bytes(),
            format!("{around:?}").into_bytes(),
            b"a meshport-x-1.abc b".to_vec(),
        ];
        for (place, text) in said.iter().enumerate() {
            let found = search(std::slice::from_ref(&secret))(text);
            assert!(!found.is_empty(), "form {place} after {before} bytes");
        }
    }
    assert!(search(&[secret])(&[0; 4096]).is_empty());
}
