use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

use meshport_config::{Mandate, NextSecret, Revoked, Role, Subject, Succession, Terms};
use rand_core::OsRng;
use tempfile::TempDir;

use super::known::MAX_DIRECTORY_BYTES;
use super::*;

mod changes;
mod links;

const NOW: UnixSeconds = UnixSeconds(1_800_000_000);
const DAY: u64 = 86_400;

fn folder() -> (TempDir, StateDir) {
    let folder = tempfile::tempdir().expect("a folder");
    let state = StateDir::create(folder.path().join("state")).expect("it is made");
    (folder, state)
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("it is there").mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("it is ours");
}

/// A complete folder, as a join leaves it.
fn joined() -> (TempDir, StateDir) {
    joined_by(&AuthorityKey::generate(&mut OsRng))
}

fn joined_by(authority: &AuthorityKey) -> (TempDir, StateDir) {
    let (folder, state) = folder();
    let (node_key, record_key) = (NodeKey::generate(&mut OsRng), RecordKey::generate(&mut OsRng));
    let subject = Subject {
        node: node_key.public(),
        record_key: record_key.public(),
        name: "worker-7".parse().expect("a name"),
        site: "fra".parse().expect("a name"),
        roles: Role::Node.into(),
        succession: None,
    };
    let until = NOW.saturating_add(DAY);
    let issued = Credential::issue_by_authority(authority, subject, NOW, until);
    state.store_node_key(&node_key, Existing::Keep).expect("stored");
    state.store_record_key(&record_key, Existing::Keep).expect("stored");
    state.store_mesh_secret(&MeshSecret::generate(&mut OsRng), Existing::Keep).expect("stored");
    let credential = issued.and_then(|it| it.countersign(&node_key)).expect("a credential");
    state.store_credential(&credential, Existing::Keep).expect("stored");
    (folder, state)
}

fn message(outcome: Result<impl Sized, Error>) -> String {
    outcome.err().expect("it is refused").to_string()
}

#[test]
fn what_was_stored_is_loaded_and_only_the_owner_can_read_it() {
    let (_folder, state) = joined();
    let authority = AuthorityKey::generate(&mut OsRng);
    state.store_authority_key(&authority, Existing::Keep).expect("stored");
    let seed: Seed =
        format!("{}@seed.example.com:51820", state.identity(NOW).expect("whole").node_key.public())
            .parse()
            .expect("a seed");
    state.store_seeds(std::slice::from_ref(&seed)).expect("stored");
    state.store_directory(&[1, 2, 3]).expect("stored");
    assert!(state.next_generation(NOW).unkept.is_none());
    let _lock = state.lock().expect("free");

    let stored = state.authority_key().expect("loads").map(|key| key.public());
    assert_eq!(stored, Some(authority.public()));
    assert_eq!(state.seeds().expect("loads"), [seed]);
    assert_eq!(state.directory().expect("loads").as_deref(), Some(&[1, 2, 3][..]));
    assert_eq!(mode(state.path()), 0o700);
    let mut names = Vec::new();
    for entry in fs::read_dir(state.path()).expect("a folder") {
        let path = entry.expect("an entry").path();
        assert_eq!(mode(&path), 0o600, "{}", path.display());
        names.push(path.file_name().expect("a name").to_string_lossy().into_owned());
    }
    names.sort();
    let all = [AUTHORITY_KEY, CREDENTIAL, DIRECTORY, GENERATION, LOCK, MESH_SECRET, NODE_KEY];
    assert_eq!(names, [&all[..], &[RECORD_KEY, SEEDS]].concat());
}

#[test]
fn an_empty_folder_holds_nothing_and_says_how_to_join() {
    let (_folder, state) = folder();
    assert!(state.node_key().expect("none is fine").is_none());
    assert!(state.seeds().expect("none is fine").is_empty());
    assert!(state.directory().expect("none is fine").is_none());
    state.require_unused().expect("nothing is there");
    let text = message(state.identity(NOW));
    assert!(text.contains("credential: is missing") && text.contains("meshport join"), "{text}");
    let text = message(StateDir::open(state.path().join("nothing")));
    assert!(
        text.contains("state folder does not exist") && text.contains("meshport join"),
        "{text}"
    );
}

#[test]
fn each_missing_file_is_named() {
    for name in [NODE_KEY, RECORD_KEY, MESH_SECRET] {
        let (_folder, state) = joined();
        fs::remove_file(state.path().join(name)).expect("removed");
        let text = message(state.identity(NOW));
        assert!(text.contains(&format!("{name}: is missing")), "{text}");
        assert!(text.contains("meshport join INVITE --force"), "{text}");
    }
}

#[test]
fn each_damaged_file_is_named_and_left_alone() {
    let damages: [&[u8]; 4] = [b"", b"garbage\n", b"\xff\xfe\x00", &[b'A'; 5_000]];
    for name in [NODE_KEY, RECORD_KEY, MESH_SECRET, CREDENTIAL] {
        for damage in damages {
            let (_folder, state) = joined();
            let path = state.path().join(name);
            fs::write(&path, damage).expect("written");
            let error = state.identity(NOW).expect_err("it is refused");
            assert!(!matches!(error, Error::Io { .. }), "{error}");
            let text = error.to_string();
            assert!(text.contains(name), "{text}");
            assert_eq!(fs::read(&path).expect("it is there"), damage);
        }
    }
    let (_folder, state) = joined();
    fs::write(state.path().join(SEEDS), "# mine\n\nnonsense\n").expect("written");
    let text = message(state.seeds());
    assert!(text.contains("seeds: line 3:"), "{text}");
}

/// The values that a start reads from a folder.
#[derive(Debug)]
struct Started {
    identity: Identity,
    seeds: Vec<Seed>,
    revocations: Revocations,
    generation: u64,
    doubts: Vec<String>,
}

fn started(state: &StateDir, mesh: &MeshId) -> Result<Started, Error> {
    let identity = state.identity(NOW)?;
    state.authority_key()?;
    let (seeds, revocations) = (state.seeds()?, state.revocations(mesh)?);
    let (generation, doubts) = (state.generation().unwrap_or(0), state.doubts());
    Ok(Started { identity, seeds, revocations, generation, doubts })
}

/// The secret of `state` and the one that follows it.
fn rotated(state: &StateDir, authority: &AuthorityKey) -> MeshSecrets {
    let held = state.mesh_secrets().expect("whole").expect("there is one");
    let secret = MeshSecret::generate(&mut OsRng);
    let next = NextSecret::issue(authority, 1, secret, NOW, NOW.saturating_add(DAY));
    held.take(&next, &authority.public()).expect("signed").expect("it is newer")
}

#[test]
fn a_secret_and_the_one_before_it_are_kept_until_the_end_of_the_overlap() {
    let authority = AuthorityKey::generate(&mut OsRng);
    let (_folder, state) = joined_by(&authority);
    let both = rotated(&state, &authority);
    state.store_mesh_secrets(&both, Existing::Replace).expect("stored");
    let identity = state.identity(NOW).expect("whole");
    assert_eq!(*identity.secrets.to_text(), *both.to_text());
    assert!(identity.secrets.former().is_some());
    let mut later = identity.secrets.clone();
    assert!(later.retire(NOW.saturating_add(DAY)));
    // A secret of another mesh's rotation is not this node's.
    let foreign = AuthorityKey::generate(&mut OsRng);
    state.store_mesh_secrets(&rotated_from_first(&foreign), Existing::Replace).expect("stored");
    assert!(message(state.identity(NOW)).contains("another mesh"));
}

#[test]
fn no_damage_to_two_secrets_gives_others() {
    let authority = AuthorityKey::generate(&mut OsRng);
    let (_folder, state) = joined_by(&authority);
    let both = rotated(&state, &authority);
    state.store_mesh_secrets(&both, Existing::Replace).expect("stored");
    let path = state.path().join(MESH_SECRET);
    let content = fs::read(&path).expect("it is there");
    for damaged in damages(&content) {
        put(&path, &damaged);
        match state.mesh_secrets() {
            Ok(read) => assert_eq!(*read.expect("there is one").to_text(), *both.to_text()),
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains(MESH_SECRET) && text.contains(JOIN_AGAIN), "{text}");
            }
        }
    }
}

fn rotated_from_first(authority: &AuthorityKey) -> MeshSecrets {
    let (_folder, state) = joined_by(authority);
    rotated(&state, authority)
}

/// The files of a node and, for each that a start judges, a part of the remedy in the message about
/// a damaged one.
const REMEDIES: [(&str, &str); 8] = [
    (NODE_KEY, "run `meshport join INVITE --force`"),
    (RECORD_KEY, "run `meshport join INVITE --force`"),
    (MESH_SECRET, "run `meshport join INVITE --force`"),
    (AUTHORITY_KEY, "Restore it from a backup"),
    (CREDENTIAL, "run `meshport join INVITE --force`"),
    (SEEDS, "Correct"),
    (REVOCATIONS, "remove it: other nodes send the revocations again"),
    (GENERATION, "The next start rewrites it"),
];

/// Every content with one bit flipped, and every beginning of it.
fn damages(content: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let flips = (0..content.len()).flat_map(|at| (0..8).map(move |bit| (at, bit)));
    let flipped = flips.map(|(at, bit)| {
        let mut damaged = content.to_vec();
        damaged[at] ^= 1 << bit;
        damaged
    });
    flipped.chain((0..content.len()).map(|length| content[..length].to_vec()))
}

/// Replaces a file's content, thousands of times: some file systems sync a truncated file to disk
/// each time.
fn put(path: &Path, content: &[u8]) {
    let mut file = OpenOptions::new().write(true).open(path).expect("it is there");
    file.write_all(content).expect("written");
    file.set_len(content.len() as u64).expect("cut");
}

/// A folder with all its files, and its authority's revocations.
fn with_all_files() -> (TempDir, StateDir, MeshId) {
    let authority = AuthorityKey::generate(&mut OsRng);
    let (folder, state) = joined_by(&authority);
    state.store_authority_key(&authority, Existing::Replace).expect("stored");
    let mut revocations = Revocations::default();
    for _ in 0..2 {
        let gone = Revoked::Node(NodeKey::generate(&mut OsRng).public());
        revocations.add(Revocation::issue(&authority, gone, NOW));
    }
    let first = revocations.iter().find_map(|it| it.revoked.node()).expect("a node");
    revocations.note_name(first, &"worker-7".parse().expect("a name"));
    state.store_revocations(&revocations).expect("stored");
    let seed = format!("{}@192.0.2.1:51820", NodeKey::generate(&mut OsRng).public());
    state.store_seeds(&[seed.parse().expect("a seed")]).expect("stored");
    assert!(state.next_generation(NOW).unkept.is_none());
    (folder, state, authority.public())
}

#[test]
fn no_flipped_bit_and_no_missing_end_of_a_file_makes_another_node() {
    let (_folder, state, mesh) = with_all_files();
    let whole = started(&state, &mesh).expect("a whole folder");
    assert_eq!(whole.doubts, [] as [String; 0]);
    for (name, remedy) in REMEDIES {
        let path = state.path().join(name);
        let content = fs::read(&path).expect("it is there");
        let (mut refused, mut doubted, mut same) = (0, 0, 0);
        let named = |text: &str| text.starts_with(&format!("{}: ", path.display()));
        for damaged in damages(&content) {
            put(&path, &damaged);
            match started(&state, &mesh) {
                Ok(read) => {
                    let Identity { node_key, secrets, credential, .. } = read.identity;
                    assert_eq!(node_key.public(), whole.identity.node_key.public());
                    assert_eq!(*secrets.to_text(), *whole.identity.secrets.to_text());
                    assert_eq!(credential, whole.identity.credential);
                    assert_eq!(read.revocations, whole.revocations, "{name}");
                    if let [doubt] = &read.doubts[..] {
                        doubted += 1;
                        assert!(named(doubt) && [SEEDS, GENERATION].contains(&name), "{doubt}");
                        continue;
                    }
                    // White space around a line.
                    same += 1;
                    assert_eq!(read.seeds, whole.seeds);
                    assert_eq!(read.generation, whole.generation);
                }
                Err(error) => {
                    refused += 1;
                    assert!(!matches!(error, Error::Io { .. }), "{error}");
                    let text = error.to_string();
                    assert!(named(&text) && text.contains(remedy), "{name}: {text}");
                    assert_eq!(fs::read(&path).expect("it is there"), damaged, "left alone");
                }
            }
        }
        put(&path, &content);
        println!("{name}: {refused} damaged contents refused, {doubted} told, {same} are the same");
        assert!(refused + doubted > same, "{name} is not judged");
        assert!(doubted == 0 || same == 0, "{name} is taken for another one in silence");
    }
}

#[test]
fn revocations_without_their_end_are_no_shorter_list() {
    let (_folder, state, mesh) = with_all_files();
    let path = state.path().join(REVOCATIONS);
    let text = fs::read_to_string(&path).expect("it is there");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!((lines.len(), lines[2]), (3, "end 2"));
    assert!(lines[0].ends_with(" worker-7"), "{text}");
    let all = state.revocations(&mesh).expect("whole");
    let names = all.iter().filter_map(|it| all.name_of(&it.revoked.node()?));
    assert_eq!(names.map(ToString::to_string).collect::<Vec<_>>(), ["worker-7"]);
    let beginnings = [String::new(), lines[..1].join("\n") + "\n", lines[..2].join("\n") + "\n"];
    let fewer = [format!("{}\nend 2\n", lines[0]), "end 2\n".to_owned()];
    for content in beginnings.iter().chain(&fewer) {
        fs::write(&path, content).expect("written");
        let text = message(state.identity(NOW));
        assert!(text.contains("revocations: is damaged") && text.contains("missing"), "{text}");
        assert!(text.contains("remove it"), "{text}");
    }
    // As the message advises.
    fs::remove_file(&path).expect("it is there");
    assert_eq!(state.revocations(&mesh).expect("none is fine"), Revocations::default());
    state.identity(NOW).expect("it starts without the file");
    state.store_revocations(&Revocations::default()).expect("stored");
    assert_eq!(state.revocations(&mesh).expect("whole"), Revocations::default());
}

#[test]
fn a_damaged_credential_is_called_damaged_whatever_it_says() {
    let (_folder, state, _) = with_all_files();
    let path = state.path().join(CREDENTIAL);
    let content = fs::read(&path).expect("it is there");
    for damaged in damages(&content) {
        put(&path, &damaged);
        // Checked before its content is compared with the configuration or the clock.
        if let Err(error) = state.credential() {
            let text = error.to_string();
            assert!(text.contains("credential: is damaged"), "{text}");
            assert!(!text.contains("clock") && !text.contains("expired"), "{text}");
        }
    }
}

#[test]
fn a_clock_before_the_credentials_time_is_named() {
    let (_folder, state, _) = with_all_files();
    let text = message(state.identity(UnixSeconds(NOW.0 - DAY)));
    assert!(text.contains("credential: is not valid before"), "{text}");
    assert!(text.contains("this machine's clock or, if it is right, run `meshport join"), "{text}");
}

#[test]
fn secrets_never_appear_in_messages() {
    let (_folder, state) = joined();
    let path = state.path().join(NODE_KEY);
    let secret = fs::read_to_string(&path).expect("it is there");
    fs::write(&path, format!("{}x", secret.trim())).expect("written");
    let text = message(state.identity(NOW));
    assert!(!text.contains(&secret[..20]), "{text}");
}

#[test]
fn a_secret_others_can_read_is_refused_with_the_command_that_mends_it() {
    let (_folder, state) = joined();
    for name in [NODE_KEY, RECORD_KEY, MESH_SECRET] {
        let path = state.path().join(name);
        for wide in [0o640, 0o604, 0o620] {
            set_mode(&path, wide);
            let text = message(state.identity(NOW));
            assert!(text.contains(&format!("mode {wide:04o}")), "{text}");
            assert!(text.contains(&format!("Run `chmod 600 {}`", path.display())), "{text}");
        }
        set_mode(&path, 0o400);
        state.identity(NOW).expect("narrower than needed is fine");
    }
    set_mode(state.path(), 0o770);
    let text = message(StateDir::open(state.path()));
    assert!(text.contains("chmod 700"), "{text}");
}

#[test]
fn keys_are_not_overwritten_without_consent() {
    let (_folder, state) = joined();
    let before = fs::read(state.path().join(NODE_KEY)).expect("it is there");
    let other = NodeKey::generate(&mut OsRng);
    let text = message(state.store_node_key(&other, Existing::Keep));
    assert!(text.contains("already exists") && text.contains("--force"), "{text}");
    assert_eq!(fs::read(state.path().join(NODE_KEY)).expect("it is there"), before);
    assert!(message(state.require_unused()).contains(CREDENTIAL));

    state.store_node_key(&other, Existing::Replace).expect("asked for");
    let text = message(state.identity(NOW));
    assert!(text.contains("node.key: is not the key"), "{text}");
}

#[test]
fn a_foreign_record_key_is_named() {
    let (_folder, state) = joined();
    let other = RecordKey::generate(&mut OsRng);
    state.store_record_key(&other, Existing::Replace).expect("asked for");
    let text = message(state.identity(NOW));
    assert!(text.contains("record.key: is not the key"), "{text}");
}

#[test]
fn an_expired_credential_is_refused_as_such() {
    let (_folder, state) = joined();
    let error = state.identity(NOW.saturating_add(DAY)).expect_err("it has ended");
    assert!(matches!(error, Error::Trust(meshport_config::Error::Expired { .. })), "{error}");
}

#[test]
fn a_failed_write_leaves_the_old_content_and_nothing_else() {
    let (_folder, state) = folder();
    state.store_seeds(&[]).expect("stored");
    // A folder cannot be replaced by a file: the rename fails after the temporary was written.
    fs::create_dir(state.path().join(DIRECTORY)).expect("made");
    fs::write(state.path().join(DIRECTORY).join("inside"), "").expect("written");
    let text = message(state.store_directory(&[1]));
    assert!(text.contains("cannot replace"), "{text}");
    let mut names: Vec<_> = fs::read_dir(state.path())
        .expect("a folder")
        .map(|entry| entry.expect("an entry").file_name())
        .collect();
    names.sort();
    assert_eq!(names, [DIRECTORY, SEEDS]);
}

#[test]
fn a_crash_in_the_middle_of_a_write_is_cleaned_up_under_the_lock() {
    let (_folder, state) = joined();
    let half_written = state.path().join(".node.key.1-0.tmp");
    fs::write(&half_written, "half").expect("written");
    state.identity(NOW).expect("the whole file is what counts");
    let _lock = state.lock().expect("free");
    assert!(!half_written.exists());
}

#[test]
fn readers_see_a_whole_file_while_it_is_replaced() {
    let (_folder, state) = folder();
    let snapshot = |byte: u8| vec![byte; 200_000];
    state.store_directory(&snapshot(0)).expect("stored");
    let writer = state.clone();
    let writing = std::thread::spawn(move || {
        for byte in 1..=20 {
            writer.store_directory(&snapshot(byte)).expect("stored");
        }
    });
    while !writing.is_finished() {
        let read = state.directory().expect("always there").expect("always there");
        assert!(read.len() == 200_000 && read.iter().all(|byte| *byte == read[0]));
    }
    writing.join().expect("it wrote");
}

#[test]
fn two_processes_do_not_share_a_folder() {
    let (_folder, state) = folder();
    let lock = state.lock().expect("free");
    let text = message(state.lock());
    let pid = std::process::id();
    assert!(text.contains(&format!("process {pid} is using this state folder")), "{text}");
    drop(lock);
    drop(state.lock().expect("free again"));
}

#[test]
fn generations_grow_whatever_the_clock_does() {
    let (_folder, state) = folder();
    let next = |clock: u64| {
        let Generation { number, unkept } = state.next_generation(UnixSeconds(clock));
        assert!(unkept.is_none());
        number
    };
    assert_eq!(next(1_000), 1_000);
    assert_eq!(next(1_000), 1_001, "the same second");
    assert_eq!(next(5), 1_002, "the clock went back");
    assert_eq!(next(9_000), 9_000, "the clock is right");
    let path = state.path().join(GENERATION);
    assert!(fs::read_to_string(&path).expect("it is there").starts_with("9000\n# checksum "));
    assert_eq!(state.doubts(), [] as [String; 0]);

    state.keep_generation(8_000).expect("lower");
    state.keep_generation(10_000).expect("higher");
    assert_eq!(next(0), 10_001, "above both");

    // `check` reports it too, and starts nothing.
    fs::write(&path, "7\n").expect("written");
    let [doubt] = &state.doubts()[..] else { panic!("{:?}", state.doubts()) };
    assert!(doubt.contains("Each start") && !doubt.contains("this start"), "{doubt}");

    // An invalid or impossible number does not prevent a node from starting.
    for damage in ["many".to_owned(), u64::MAX.to_string(), "7".repeat(5_000)] {
        fs::write(&path, damage).expect("written");
        let [doubt] = &state.doubts()[..] else { panic!("{:?}", state.doubts()) };
        let is_named =
            ["is", "exceeds"].iter().any(|it| doubt.contains(&format!("generation: {it} ")));
        assert!(is_named, "{doubt}");
        assert_eq!(next(NOW.0), NOW.0, "the clock counts");
        assert_eq!(state.doubts(), [] as [String; 0], "it is whole again");
    }
}

#[test]
fn a_generation_that_cannot_be_written_is_the_clocks() {
    let (_folder, state) = folder();
    // A folder in its place: it can be neither read nor replaced.
    fs::create_dir(state.path().join(GENERATION)).expect("made");
    fs::write(state.path().join(GENERATION).join("inside"), "").expect("written");
    let Generation { number, unkept } = state.next_generation(NOW);
    assert_eq!(number, NOW.0);
    assert!(unkept.is_some_and(|error| error.to_string().contains("generation")));
}

#[test]
fn sizes_are_bounded() {
    let (_folder, state) = folder();
    let file = File::create(state.path().join(DIRECTORY)).expect("made");
    file.set_len(u64::try_from(MAX_DIRECTORY_BYTES).expect("it fits") + 1).expect("sparse");
    assert!(message(state.directory()).contains("exceeds its maximum"));
    let line = format!("{}@192.0.2.1:1\n", NodeKey::generate(&mut OsRng).public());
    let many: String = (0..=MAX_STORED_SEEDS).map(|_| line.as_str()).collect();
    fs::write(state.path().join(SEEDS), many).expect("written");
    assert!(message(state.seeds()).contains("65 seeds"));
}

/// A daemon may run as another user than the one that renews for it.
#[test]
fn a_renewed_credential_belongs_to_the_same_node() {
    let (_folder, state) = joined();
    let path = state.path().join("credential");
    let owner = || fs::metadata(&path).expect("it is there").uid();
    let own = owner();
    // Only root can change a file's owner; for others there is only one owner.
    let other = if own == 0 { 65_534 } else { own };
    chown(&path, Some(other), None).expect("it is ours");
    let credential = state.credential().expect("readable").expect("there");
    state.store_credential(&credential, Existing::ReplaceForOwner).expect("stored");
    assert_eq!((owner(), mode(&path)), (other, 0o600));
    assert_eq!(state.credential().expect("readable"), Some(credential.clone()));
    state.store_credential(&credential, Existing::Replace).expect("stored");
    assert_eq!(owner(), own);
}
