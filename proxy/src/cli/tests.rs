mod invites;
mod new_keys;
mod renewals;
mod silent;

use std::fs;
use std::path::{Path, PathBuf};

use meshport_config::{Endpoint, Role, ServiceName, UnixSeconds};
use tempfile::TempDir;

use super::init::InitReport;
use super::invite::{InviteArgs, InviteReport};
use super::join::{JoinReport, Joined};
use super::paths::Paths;
use super::*;
use meshport_state::StateDir;

const NOW: UnixSeconds = UnixSeconds(1_800_000_000);
const HOUR: u64 = 3_600;
const DAY: u64 = 24 * HOUR;

fn verb(line: &[&str]) -> Verb {
    let words = std::iter::once(&"meshport").chain(line);
    Cli::try_parse_from(words).unwrap_or_else(|error| panic!("{error}")).verb
}

fn refused(line: &[&str]) -> String {
    let words = std::iter::once(&"meshport").chain(line);
    Cli::try_parse_from(words).expect_err("it is refused").to_string()
}

/// A folder with subfolders for several machines.
struct Machines {
    folder: TempDir,
}

impl Machines {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a folder") }
    }

    fn path(&self, machine: &str) -> PathBuf {
        self.folder.path().join(machine)
    }

    fn state(&self, machine: &str) -> StateDir {
        StateDir::open(self.path(machine)).expect("it was made")
    }

    fn init(&self, machine: &str, flags: &[&str]) -> Result<InitReport, Error> {
        let Verb::Init(args) = verb(&[&["init"], flags].concat()) else { panic!("it is init") };
        init::init(&args, &self.path(machine), NOW)
    }

    fn invite(&self, machine: &str, flags: &[&str]) -> Result<InviteReport, Error> {
        let args = invite_args(&[&["--site", "nyc"], flags].concat());
        invite::invite(&args, &self.path(machine), &args.endpoints, &[], NOW)
    }

    fn join(&self, machine: &str, line: &str, flags: &[&str]) -> Result<JoinReport, Error> {
        self.join_at(machine, line, flags, NOW)
    }

    fn join_at(
        &self,
        machine: &str,
        line: &str,
        flags: &[&str],
        now: UnixSeconds,
    ) -> Result<JoinReport, Error> {
        let Verb::Join(args) = verb(&[&["join", line], flags].concat()) else { panic!("join") };
        join::join(line, &args, &self.path(machine), now)
    }

    /// A first machine that can invite, and a line from it.
    fn with_line(flags: &[&str]) -> (Self, String) {
        let machines = Self::new();
        machines.init("first", FIRST).expect("a mesh");
        let line = machines.invite("first", &[HERE, flags].concat()).expect("a line").invite;
        (machines, line)
    }
}

const FIRST: &[&str] = &["--site", "fra", "--name", "cp-1", "--role", "node,origin:kube-apiserver"];
const HERE: &[&str] = &["--endpoint", "203.0.113.5:51820"];
const NAMED: &[&str] = &["--name", "worker-7"];
const FORCED: &[&str] = &["--name", "worker-7", "--force"];

fn invite_args(flags: &[&str]) -> InviteArgs {
    match verb(&[&["invite"], flags].concat()) {
        Verb::Invite(args) => args,
        other => panic!("{other:?}"),
    }
}

fn message(outcome: Result<impl Sized, impl ToString>) -> String {
    outcome.err().expect("it is refused").to_string()
}

#[test]
fn the_command_line_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn every_verb_has_a_paragraph_and_examples() {
    for verb in Cli::command().get_subcommands().filter(|verb| !verb.is_hide_set()) {
        let name = verb.get_name();
        let long = verb.get_long_about().map(ToString::to_string).unwrap_or_default();
        assert!(long.contains("\n\n"), "{name} has one line only");
        let after = verb.get_after_long_help().map(ToString::to_string).unwrap_or_default();
        assert!(after.contains("EXAMPLES:"), "{name} has no examples");
    }
    let root = Cli::command().render_long_help().to_string();
    assert!(root.contains("EXIT CODES:") && root.contains("FILES:"), "{root}");
}

#[test]
fn examples_in_the_help_parse() {
    let verbs = [text::INIT, text::INVITE, text::JOIN, text::RUN, text::CHECK, text::STATUS];
    let more = [text::ROUTES, text::PEERS, text::PING, text::COMPLETIONS, text::ROOT];
    let operator = [text::FORWARD, text::KUBECONFIG, text::HOSTS, text::GENERATE];
    let trust = [text::CREDENTIALS, text::RENEW, text::AUTHORITY, text::VERSION];
    let mut examples = 0;
    let all = verbs.iter().chain(&more).chain(&operator).chain(&trust);
    for line in all.flat_map(|text| text.lines()) {
        let Some(words) = line.trim().strip_prefix("meshport ") else { continue };
        // Text after wide spaces is a comment.
        let words = words.split("   ").next().unwrap_or_default();
        let words = words.split(' ').take_while(|word| !["|", "<", ">"].contains(word));
        let line: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
        verb(&line);
        examples += 1;
    }
    assert!(examples >= 20, "{examples}");
}

#[test]
fn examples_fit_80_columns() {
    let verbs = Cli::command();
    let verbs = verbs.get_subcommands().filter_map(|verb| verb.get_after_long_help());
    for text in verbs.map(ToString::to_string).chain([text::ROOT.to_owned()]) {
        let long: Vec<&str> = text.lines().filter(|line| line.chars().count() > 80).collect();
        assert!(long.is_empty(), "{long:#?}");
    }
}

#[test]
fn misuse_is_refused() {
    assert!(refused(&["init"]).contains("--site"));
    assert!(refused(&["init", "--site", "Fra"]).contains("site name"));
    assert!(refused(&["init", "--authority-only", "--site", "fra"]).contains("cannot be used"));
    assert!(refused(&["invite", "--site", "fra", "--role", "king"]).contains("origin:SERVICE"));
    assert!(refused(&["invite", "--site", "fra", "--ttl", "soon"]).contains("duration"));
    assert!(refused(&["invite", "--site", "fra", "--seed", "x@"]).contains("invalid value"));
    assert!(refused(&["ping", "x", "--interval", "1ms"]).contains("50ms"));
    assert!(refused(&["status", "--socket", "a", "--config", "b"]).contains("cannot be used"));
}

#[test]
fn completions_name_every_verb() {
    for shell in ["bash", "zsh", "fish"] {
        let shell: Shell = shell.parse().expect("a shell");
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut Cli::command(), "meshport", &mut text);
        let text = String::from_utf8(text).expect("text");
        assert!(text.contains("invite") && text.contains("peers"), "{shell}");
    }
}

#[test]
fn three_machines_become_a_mesh() {
    let machines = Machines::new();
    let first = machines.init("first", FIRST).expect("a mesh");
    let own = first.credential.expect("it is a node");
    assert_eq!((own.name.as_str(), own.site.as_str()), ("cp-1", "fra"));
    assert!(own.roles.contains(&Role::Origin(ServiceName::kube_apiserver())));
    assert_eq!(own.expires_at, NOW.saturating_add(365 * DAY));

    let invite = machines.invite("first", HERE).expect("a line");
    assert_eq!(invite.seeds, [format!("{}@203.0.113.5:51820", own.node)]);
    assert_eq!(invite.join_until, NOW.saturating_add(DAY));
    let report = machines.join("worker", &invite.invite, NAMED).expect("it joins");
    assert_eq!((report.joined.mesh, report.kept_keys, report.seeds), (first.mesh, false, 1));
    assert_eq!(
        (report.joined.site.as_str(), report.joined.roles.to_string().as_str()),
        ("nyc", "node")
    );

    let (first, worker) = (machines.state("first"), machines.state("worker"));
    let (first, worker) =
        (first.identity(NOW).expect("whole"), worker.identity(NOW).expect("whole"));
    worker.credential.verify(&first.credential.mesh, NOW).expect("the first believes it");
    let (a, b) = (first.credential.node, worker.credential.node);
    let psk = |it: &meshport_state::Identity| it.secrets.current().psk(&a, &b);
    assert_eq!(psk(&first), psk(&worker));

    // The line may be used again, by another machine.
    let name = ["--name", "worker-8"];
    let other = machines.join("other", &invite.invite, &name).expect("it joins");
    assert_ne!(other.joined.node, report.joined.node);
}

#[test]
fn an_authority_alone_invites_with_named_seeds() {
    let machines = Machines::new();
    let authority = machines.init("authority", &["--authority-only"]).expect("an authority");
    assert!(authority.credential.is_none());
    assert!(!machines.path("authority").join("node.key").exists());
    let text = message(machines.invite("authority", &[]));
    assert!(text.contains("--seed") && text.contains("--no-seed"), "{text}");
    assert!(message(machines.invite("authority", HERE)).contains("this machine is not a node"));
    let line = machines.invite("authority", &["--no-seed"]).expect("asked for").invite;
    let node = machines.join("node", &line, NAMED).expect("it joins").joined.node;

    // Elsewhere, with the node's folder and the authority's key in different folders.
    let key = machines.path("authority").join("authority.key");
    let key = key.to_str().expect("text");
    let seed = format!("{node}@seed.example.com:51820");
    let invite = machines.invite("node", &["--authority", key, "--seed", &seed]).expect("a line");
    assert_eq!(invite.seeds, [seed]);
    assert!(message(machines.invite("node", HERE)).contains("--authority FILE"));
}

#[test]
fn an_authority_of_another_mesh_is_recognised() {
    let machines = Machines::new();
    machines.init("first", FIRST).expect("a mesh");
    machines.init("second", FIRST).expect("a mesh");
    let key = machines.path("second").join("authority.key");
    let text = message(
        machines.invite("first", &[HERE, &["--authority", key.to_str().expect("text")]].concat()),
    );
    assert!(text.contains("is the authority of mesh"), "{text}");
}

#[test]
fn nothing_is_overwritten_without_consent() {
    let (machines, line) = Machines::with_line(&[]);
    let taken = message(machines.init("first", FIRST));
    assert!(taken.contains("`meshport invite`") && taken.contains("--force"), "{taken}");
    machines.join("worker", &line, NAMED).expect("it joins");
    let before = machines.state("worker").credential().expect("loads").expect("it is there");
    let text = message(machines.join("worker", &line, NAMED));
    assert!(text.contains("already joined, as worker-7 in site nyc"), "{text}");
    assert!(message(machines.init("worker", FIRST)).contains("already exists"));
    assert_eq!(machines.state("worker").credential().expect("loads"), Some(before));
}

#[test]
fn a_renewed_credential_is_for_the_same_node() {
    let (machines, line) = Machines::with_line(&["--ttl", "30d"]);
    let first = machines.join("worker", &line, NAMED).expect("it joins").joined;
    machines.state("worker").store_directory(&[1]).expect("stored");
    let later = NOW.saturating_add(DAY);
    let again = machines.join_at("worker", &line, FORCED, later).expect("it renews");
    assert!(again.kept_keys);
    assert_eq!(again.joined.node, first.node);
    assert_eq!(again.joined.expires_at, first.expires_at.saturating_add(DAY));
    let directory = machines.state("worker").directory().expect("loads");
    assert!(directory.is_some(), "it knows the others still");
}

#[test]
fn leaving_for_another_mesh_takes_force_and_leaves_nothing_behind() {
    let (machines, line) = Machines::with_line(&[]);
    machines.init("abroad", FIRST).expect("a mesh");
    let abroad = machines.invite("abroad", HERE).expect("a line").invite;
    let first = machines.join("worker", &line, NAMED).expect("it joins").joined;
    machines.state("worker").store_directory(&[1]).expect("stored");
    let text = message(machines.join("worker", &abroad, NAMED));
    assert!(text.contains(&format!("belongs to mesh {}", first.mesh)), "{text}");
    let moved = machines.join("worker", &abroad, FORCED).expect("asked for");
    assert!(!moved.kept_keys && moved.joined.node != first.node);
    let state = machines.state("worker");
    state.identity(NOW).expect("whole");
    assert_eq!(state.directory().expect("loads"), None);
    assert_eq!(state.seeds().expect("loads").len(), 1);
    // An authority's folder would lose the secret of its own mesh.
    let text = message(machines.join("first", &abroad, FORCED));
    assert!(text.contains("the authority of another mesh"), "{text}");
}

#[test]
fn an_interrupted_join_is_finished_by_the_next() {
    let (machines, line) = Machines::with_line(&[]);
    let first = machines.join("worker", &line, NAMED).expect("it joins").joined;
    fs::remove_file(machines.path("worker").join("credential"))
        .expect("as if it were not there yet");
    let again = machines.join("worker", &line, NAMED).expect("no force is needed");
    assert!(again.kept_keys && again.joined.node == first.node);
}

#[test]
fn a_running_daemon_is_not_joined_over() {
    let (machines, line) = Machines::with_line(&[]);
    machines.join("worker", &line, NAMED).expect("it joins");
    let _daemon = machines.state("worker").lock().expect("free");
    assert!(message(machines.join("worker", &line, FORCED)).contains("is using this state folder"));
}

#[test]
fn each_refused_invite_says_which_it_is_and_writes_nothing() {
    let (machines, line) = Machines::with_line(&["--name", "worker-7"]);
    let refuse = |line: &str, flags: &[&str], now: UnixSeconds, word: &str| {
        let outcome = machines.join_at("worker", line, flags, now);
        let error = outcome.err().unwrap_or_else(|| panic!("{word}: it was taken"));
        assert_eq!(error.exit_code(), 4);
        assert!(error.to_string().contains(word), "{word}: {error}");
        assert!(!machines.path("worker").exists(), "{word}: something was written");
    };
    refuse(&line[..line.len() - 9], NAMED, NOW, "incomplete or mistyped");
    refuse("meshport-credential-2.AAAA", NAMED, NOW, "not an invite");
    refuse("hello", NAMED, NOW, "not an invite");
    refuse(&line, NAMED, NOW.saturating_add(25 * HOUR), "the invite expired at");
    refuse(&line, NAMED, UnixSeconds(NOW.0 - HOUR), "this machine's clock is behind");
    refuse(&line, &["--name", "worker-8"], NOW, "the name worker-8 does not match its invite");
    refuse(&line, &["--site", "fra"], NOW, "the site fra does not match its invite");
    let named = machines.join("worker", &line, &[]).expect("the invite has a name");
    assert_eq!(named.joined.name.as_str(), "worker-7");
}

fn paths(machines: &Machines) -> Paths {
    Paths::in_home(machines.folder.path()).expect("a home")
}

#[test]
fn settings_come_from_the_file_or_the_credential() {
    let (machines, line) = Machines::with_line(&[]);
    machines.join("worker", &line, NAMED).expect("it joins");
    let (paths, worker) = (paths(&machines), machines.path("worker"));
    let text = message(load::settings(None, None, &paths));
    assert!(
        text.contains("state folder does not exist") && text.contains("meshport join"),
        "{text}"
    );

    let alone = load::settings(None, Some(&worker), &paths).expect("the credential suffices");
    assert_eq!((alone.settings.site.as_str(), alone.config_path), ("nyc", None));
    assert_eq!(alone.settings.admin.socket, worker.join("meshport.sock"));

    let file = machines.path("meshport.toml");
    let write = |text: &str| fs::write(&file, text).expect("written");
    write("site = \"nyc\"\n");
    let plain = load::read(&file, None, &paths).expect("it is fine");
    assert_eq!(plain.state_dir, paths.state_dir());
    assert_eq!(plain.admin.socket, paths.socket_for(paths.state_dir()));
    let flagged = load::read(&file, Some(&worker), &paths).expect("it is fine");
    assert_eq!(flagged.state_dir, worker);
    assert_eq!(flagged.admin.socket, worker.join("meshport.sock"));
    write(&format!("site = \"nyc\"\nstate-dir = {:?}\n", machines.path("own")));
    let own = load::read(&file, None, &paths).expect("it is fine");
    assert_eq!(own.admin.socket, machines.path("own").join("meshport.sock"));
    write("site = \"nyc\"\n[admin]\nsocket = \"/tmp/s\"\n");
    let chosen = load::read(&file, Some(&worker), &paths).expect("it is fine");
    assert_eq!(chosen.admin.socket, Path::new("/tmp/s"));
}

#[test]
fn settings_that_contradict_the_credential_are_refused() {
    let (machines, line) = Machines::with_line(&[]);
    machines.join("worker", &line, NAMED).expect("it joins");
    let credential = machines.state("worker").credential().expect("loads").expect("it is there");
    let (paths, worker) = (paths(&machines), machines.path("worker"));
    let mut settings = load::settings(None, Some(&worker), &paths).expect("fine").settings;
    load::check_credential(&settings, &credential).expect("it agrees");
    settings.name = Some("worker-9".parse().expect("a name"));
    let text = message(load::check_credential(&settings, &credential));
    assert!(text.contains("\"worker-7\"") && text.contains("\"worker-9\""), "{text}");
    settings.site = "ams".parse().expect("a name");
    assert!(message(load::check_credential(&settings, &credential)).contains("site \"nyc\""));
}

#[test]
fn a_role_that_offers_nothing_yet_is_reported() {
    let (machines, _) = Machines::with_line(&[]);
    let (paths, first) = (paths(&machines), machines.path("first"));
    let file = machines.path("meshport.toml");
    let warns = |text: &str| {
        fs::write(&file, text).expect("written");
        let report = check::check(Some(&file), Some(&first), &paths, NOW).expect("can be read");
        assert!(report.ok, "{report:?}");
        report.warnings.iter().any(|text| text.contains("set `origin` under [service.kube-apis"))
    };
    assert!(warns("site = \"fra\"\n"));
    assert!(!warns("site = \"fra\"\n[service.kube-apiserver]\norigin = \"127.0.0.1:6443\"\n"));
}

#[test]
fn check_finds_everything_at_once_and_starts_nothing() {
    let (machines, line) = Machines::with_line(&["--credential-ttl", "10d"]);
    machines.join("worker", &line, NAMED).expect("it joins");
    let (paths, worker) = (paths(&machines), machines.path("worker"));
    let file = machines.path("meshport.toml");
    // A fifth of its life is left.
    let late = NOW.saturating_add(8 * DAY);
    let check = |text: &str| {
        fs::write(&file, text).expect("written");
        check::check(Some(&file), Some(&worker), &paths, late).expect("it can be read")
    };
    let good = check("site = \"nyc\"\n");
    assert!(good.ok && good.problems.is_empty() && good.obstacles.is_empty());
    assert!(
        good.warnings.iter().any(|text| text.contains("this node's credential expires in")),
        "{good:?}"
    );

    let alone = check::check(None, Some(&worker), &paths, NOW).expect("the credential suffices");
    assert!(alone.ok && alone.file.is_none());

    let bad = check("stie = \"nyc\"\n[mesh]\nmtu = 5\n");
    assert!(!bad.ok && bad.effective.is_none());
    let lines: Vec<String> = bad.problems.iter().map(ToString::to_string).collect();
    assert!(
        lines.len() >= 2 && lines.iter().any(|line| line.contains("did you mean")),
        "{lines:?}"
    );

    let token = machines.path("token");
    fs::write(&token, "secret").expect("written");
    let around = check(&format!(
        "site = \"ams\"\n[service.kube-apiserver]\norigin = \"127.0.0.1:6443\"\nallow = []\n\
         [service.kube-apiserver.health]\nca-file = \"/nowhere/ca.pem\"\n\
         bearer-token-file = {token:?}\n"
    ));
    assert!(!around.ok && around.effective.is_some());
    let obstacles = around.obstacles.join("\n");
    assert!(obstacles.contains("/nowhere/ca.pem cannot be read"), "{obstacles}");
    assert!(obstacles.contains("is for site \"nyc\", but"), "{obstacles}");
    let warnings = around.warnings.join("\n");
    assert!(
        warnings.contains("chmod 600") && warnings.contains("role origin:kube-apiserver"),
        "{warnings}"
    );
    let doubt = "service.kube-apiserver.allow: an empty list refuses all other nodes";
    assert!(warnings.contains(doubt), "{warnings}");
    let json = serde_json::to_value(&around).expect("it has JSON");
    assert_eq!(json["effective"]["site"], "ams");
    let posting = check("site = \"nyc\"\n[events]\nurl = \"https://a.example/x?token=t0ken\"\n");
    let shown = posting.effective.expect("it has no problems").to_toml();
    assert!(
        shown.contains("https://a.example:443/REDACTED") && !shown.contains("t0ken"),
        "{shown}"
    );
    assert!(!worker.join("generation").exists() && !worker.join("meshport.sock").exists());
}

#[test]
fn endpoints_beyond_the_bound_are_left_out_of_an_invite() {
    let machines = Machines::new();
    machines.init("first", FIRST).expect("a mesh");
    let many: Vec<Endpoint> =
        (1..=20).map(|port| format!("203.0.113.5:{port}").parse().expect("an endpoint")).collect();
    let args = invite_args(&["--site", "fra"]);
    let report = invite::invite(&args, &machines.path("first"), &many, &[], NOW);
    assert_eq!(report.expect("a line").seeds[0].matches(',').count(), 7);
}

#[test]
fn a_query_finds_its_daemon_although_the_file_has_faults() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("meshport.toml");
    let socket = |text: &str| {
        fs::write(&file, text).expect("written");
        load::socket(Some(&file), None).expect("it can be read")
    };
    let named = "site = \"fra\"\nnonsense = 1\n[admin]\nsocket = \"/run/of/its/own.sock\"\n";
    assert_eq!(socket(named), Path::new("/run/of/its/own.sock"));
    let inside = "site = 7\nstate-dir = \"/srv/mesh\"\n";
    assert_eq!(socket(inside), Path::new("/srv/mesh/meshport.sock"));
    let missing = Path::new("/nonexistent/meshport.toml");
    assert!(message(load::socket(Some(missing), None)).contains("/nonexistent/meshport.toml"));
    // Like one with mistakes: there is one exit code for unusable settings.
    let paths = Paths::in_home(folder.path()).expect("a home");
    fs::write(&file, b"site = \xff").expect("written");
    for unreadable in [missing, &file] {
        let error = load::read(unreadable, None, &paths).expect_err("it cannot be read");
        assert_eq!(error.exit_code(), 3, "{error}");
    }
}

#[test]
fn a_new_secret_is_written_where_no_daemon_runs_and_is_in_invites_from_then_on() {
    let (machines, old_line) = Machines::with_line(&[]);
    let Verb::RotateSecret(args) = verb(&["rotate-secret", "--overlap", "1h"]) else {
        panic!("it is rotate-secret")
    };
    let first = machines.state("first");
    let next = rotate_secret::sign(&first, &args, NOW).expect("signed").expect("a new one");
    let report = rotate_secret::write(&first, &next, NOW).expect("written");
    assert_eq!((report.number, report.is_new), (1, true));
    assert_eq!(report.former_ends_at, Some(NOW.saturating_add(HOUR)));
    assert!(!rotate_secret::write(&first, &next, NOW).expect("known").is_new);
    assert!(rotate_secret::sign(&first, &args, NOW).expect("asked").is_none(), "one at a time");
    let later = NOW.saturating_add(HOUR);
    let after = rotate_secret::sign(&first, &args, later).expect("signed").expect("the next");
    assert_eq!(after.rotation().number, 2);

    let id = |machine: &str| {
        let held = machines.state(machine).mesh_secrets().expect("whole").expect("there is one");
        (meshport_config::SecretId::of(held.current()), held.number())
    };
    let new_line = machines.invite("first", HERE).expect("a line").invite;
    machines.join("new", &new_line, NAMED).expect("it joins");
    assert_eq!(id("new"), (id("first").0, 0));
    // An old line does not undo what members have sent.
    machines.join("first-again", &old_line, NAMED).expect("it joins");
    let taken = machines.state("first-again");
    rotate_secret::write(&taken, &next, NOW).expect("written");
    machines.join("first-again", &old_line, FORCED).expect("it joins again");
    assert_eq!(id("first-again").1, 1);

    // Another mesh's authority does not count.
    machines.init("other", FIRST).expect("another mesh");
    let other = machines.state("other");
    let theirs = rotate_secret::sign(&other, &args, NOW).expect("signed").expect("a new one");
    assert!(message(rotate_secret::write(&first, &theirs, NOW)).contains("another mesh"));
}
