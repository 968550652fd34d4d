//! Key material stays where it belongs: nothing that a whole life of a mesh prints or writes, apart
//! from the files made for it and the invite lines, contains any of it in any usual form.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use aho_corasick::AhoCorasick;
use data_encoding::{
    BASE32_NOPAD, BASE64, BASE64URL_NOPAD, HEXLOWER, HEXLOWER_PERMISSIVE, HEXUPPER,
};
use meshport_tests::process::{Process, meshport, run};
use meshport_tests::wait;
use meshport_tests::world::{NodePlan, World};

const SETTLE: Duration = Duration::from_secs(40);
/// Files of a state folder whose purpose is to hold a secret.
const HOMES: [&str; 4] = ["node.key", "record.key", "mesh.secret", "authority.key"];
const SECRET_BYTES: usize = 32;
/// How many characters of an encoding count as a leak: half of a key. Encodings begin at any byte
/// of what they encode, so the first and last characters differ with what is around.
const TELLING: usize = SECRET_BYTES / 2;

/// A secret and where it is kept.
struct Secret {
    home: String,
    bytes: Vec<u8>,
    text: String,
}

impl Secret {
    /// Reads a file that holds 32 bytes in base64, or a tag, a dot, and base64url of a checksum
    /// and 32 bytes.
    fn read(path: &Path) -> Self {
        let text = fs::read_to_string(path).expect("a secret's file").trim().to_owned();
        let bytes = match text.rsplit_once('.') {
            Some((_, tail)) => BASE64URL_NOPAD.decode(tail.as_bytes()).expect("base64url"),
            None => BASE64.decode(text.as_bytes()).expect("base64"),
        };
        let bytes = bytes[bytes.len() - SECRET_BYTES..].to_vec();
        let home = path.file_name().expect("a file").to_string_lossy().into_owned();
        Self { home, bytes, text }
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

    /// Something that says in which form a text has it.
    fn search(&self) -> impl Fn(&[u8]) -> Option<&'static str> + use<> {
        let (names, forms): (Vec<_>, Vec<_>) = self.forms().into_iter().unzip();
        let search = AhoCorasick::new(forms).expect("a few short forms");
        move |text| search.find(text).map(|found| names[found.pattern().as_usize()])
    }
}

/// What was printed or written, with where.
#[derive(Default)]
struct Seen(Vec<(String, Vec<u8>)>);

impl Seen {
    /// Runs the program and keeps all it says, whether it succeeds or not.
    fn run(&mut self, arguments: &[&str]) {
        let output = run(&meshport().to_string_lossy(), arguments);
        let what = format!("meshport {}", arguments.join(" "));
        assert!(!output.stdout.is_empty() || !output.stderr.is_empty(), "{what} says nothing");
        self.0.push((format!("output of {what}"), output.stdout));
        self.0.push((format!("messages of {what}"), output.stderr));
    }

    /// All files below `folder` but the secrets' own.
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

/// Two nodes that log all they can, and the secrets of both.
fn talkative() -> (World, Vec<Secret>) {
    let mut world = World::new();
    let address = world.apiserver("cp");
    world.make(&NodePlan::new("cp", "a").origin(address));
    world.make(&NodePlan::new("worker", "a"));
    for name in ["cp", "worker"] {
        let config = world.path(&format!("{name}.toml"));
        let text = fs::read_to_string(&config).expect("a node has settings");
        let log = "\n[log]\nlevel = \"trace\"\nformat = \"json\"\n";
        fs::write(&config, format!("{text}{log}")).expect("written");
        world.start(name);
    }
    let homes = HOMES.iter().flat_map(|home| ["cp", "worker"].map(|name| (name, home)));
    let paths = homes.map(|(name, home)| world.at(name).state().join(home));
    let secrets: Vec<Secret> =
        paths.filter(|path| path.is_file()).map(|path| Secret::read(&path)).collect();
    // Two nodes have two keys each and share the mesh's secret; one has the authority's.
    assert_eq!(secrets.len(), 7);
    (world, secrets)
}

/// The verbs an operator uses, on a mesh that runs.
fn ask_everything(world: &World, seen: &mut Seen) {
    let config = world.path("worker.toml").display().to_string();
    let state = world.at("cp").state().display().to_string();
    for verb in ["status", "explain", "credentials", "check", "drain", "status"] {
        seen.run(&[verb, "--config", &config]);
        seen.run(&[verb, "--config", &config, "--json"]);
    }
    seen.run(&["renew", "--authority", &state, "--config", &config]);
    seen.run(&["revoke", "worker", "--state-dir", &state]);
    let socket = world.at("cp").state().join("meshport.sock").display().to_string();
    for page in ["metrics", "status", "livez", "nothing-here"] {
        let url = format!("http://meshport/{page}");
        let output = run("curl", &["-sS", "--unix-socket", &socket, &url]);
        seen.0.push((format!("the admin page {page}"), output.stdout));
    }
}

/// Starts on folders whose secrets are damaged, and says what is wrong with them.
fn damage_everything(world: &World, scratch: &Path, seen: &mut Seen) {
    for home in HOMES {
        let folder = scratch.join(home);
        let copied = run(
            "cp",
            &["-a", &world.at("cp").state().display().to_string(), &folder.display().to_string()],
        );
        assert!(copied.status.success(), "a state folder can be copied");
        let path = folder.join(home);
        let text = fs::read_to_string(&path).expect("a secret");
        let (first, rest) = text.split_at(text.len() / 2);
        fs::write(&path, format!("{first}!{rest}")).expect("written");
        let config = world.path("cp.toml").display().to_string();
        let state = folder.display().to_string();
        // The daemon has no use for the authority's key, and would run.
        if home != "authority.key" {
            seen.run(&["run", "--config", &config, "--state-dir", &state]);
        }
        seen.run(&["invite", "--state-dir", &state]);
    }
}

/// A leaf with an invite, whose own folder holds its secrets.
fn operate(world: &mut World, scratch: &Path, seen: &mut Seen) {
    let invite = world.invite("cp", &NodePlan::operator("laptop", "a"));
    let line = scratch.join("invite");
    fs::write(&line, invite).expect("written");
    let mut command = Command::new(meshport());
    command.args(["forward", "--invite"]).arg(&line);
    command.args(["--listen", "127.0.0.1:0", "--mesh-listen", "127.0.0.1:0"]);
    command.env("HOME", scratch).env("XDG_STATE_HOME", scratch.join("home"));
    command.env("RUST_LOG", "trace");
    let log = scratch.join("forward.log");
    let mut forward = Process::start("forward", &mut command, &log);
    wait::until("the forward says something", SETTLE, || {
        (!forward.output().is_empty()).then_some(())
    });
    forward.signal("TERM");
    forward.ended(SETTLE);
    seen.0.push(("the forward's log".to_owned(), fs::read(&log).expect("a log")));
}

#[test]
fn no_key_material_in_anything_that_is_printed_or_written() {
    let (mut world, secrets) = talkative();
    world.meet();
    world.chooses("worker", "cp", SETTLE);
    world.get("worker", "/version");
    let scratch = tempfile::tempdir().expect("a folder");
    let mut seen = Seen::default();
    operate(&mut world, scratch.path(), &mut seen);
    ask_everything(&world, &mut seen);
    for name in ["cp", "worker"] {
        world.node_mut(name).process().signal("TERM");
        world.node_mut(name).process().ended(SETTLE);
    }
    damage_everything(&world, scratch.path(), &mut seen);
    seen.files(&world.path("."));
    let total: usize = seen.0.iter().map(|(_, text)| text.len()).sum();
    assert!(seen.0.len() > 30 && total > 100_000, "too little was seen: {total} bytes");
    let mut leaks = Vec::new();
    for secret in &secrets {
        let search = secret.search();
        for (place, text) in &seen.0 {
            leaks.extend(search(text).map(|form| format!("{} as {form}: {place}", secret.home)));
        }
    }
    assert!(leaks.is_empty(), "key material in the open:\n{}", leaks.join("\n"));
}

/// The search itself finds what is there.
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
            assert!(secret.search()(text).is_some(), "form {place} after {before} bytes");
        }
    }
    assert_eq!(secret.search()(&[0; 4096]), None);
}
