use std::os::unix::fs::{PermissionsExt, symlink};

use meshport_config::{AuthorityKey, Grant, InviteParams, MeshSecret};

use super::*;

const NOW: UnixSeconds = UnixSeconds(1_800_000_000);
const DAY_S: u64 = 86_400;

fn slot_path(folder: &Path, number: usize) -> PathBuf {
    folder.join(number.to_string())
}

/// An invite of the mesh with this number.
fn invite(mesh: u8, roles: &str) -> String {
    let authority = AuthorityKey::from_bytes([mesh; 32]);
    let grant = Grant {
        roles: roles.parse().expect("roles"),
        site: Some("office".parse().expect("a site")),
        name: Some("laptop-7".parse().expect("a name")),
        not_before: NOW,
        join_until: NOW.saturating_add(DAY_S),
        credential_ttl_s: 7 * DAY_S,
    };
    let secret = MeshSecret::from_bytes([mesh; 32]);
    let seeds = [format!("{}@192.0.2.1:51820", NodeKey::from_bytes([9; 32]).public())];
    let seeds = seeds.iter().map(|seed| seed.parse().expect("a seed")).collect();
    let params = InviteParams { grant, mesh_secret: secret, seeds };
    let invite = Invite::create(&authority, params, &mut OsRng).expect("an invite");
    invite.to_text().expect("a line").to_string()
}

fn args(flags: &[&str]) -> IdentityArgs {
    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: IdentityArgs,
    }
    let words = std::iter::once("meshport").chain(flags.iter().copied());
    <Line as clap::Parser>::parse_from(words).args
}

async fn save(start: Start) -> Slot {
    let mut storage = start.storage;
    storage.store(Some(vec![1, 2, 3])).await.expect("saved");
    match storage {
        Storage::Saved(slot) => slot,
        other => panic!("nothing was saved: {other:?}"),
    }
}

#[tokio::test]
async fn what_an_invite_gives_is_saved_for_several_forwards_at_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path().join("forward");
    let error = saved(&folder, None, NOW).expect_err("nothing is there").to_string();
    assert!(error.contains("--invite") && error.contains("--role operator"), "{error}");

    let start = from_invite(&invite(1, "node,operator"), &args(&[]), &folder, None, NOW);
    let start = start.expect("a good invite");
    assert!(start.identity.credential.roles.is_leaf(), "{}", start.identity.credential.roles);
    assert!(!folder.exists(), "nothing is written before it works");
    let first = start.identity.credential.node;
    let held = save(start).await;

    let mut nodes = vec![first];
    let mut starts = Vec::new();
    for _ in 1..SLOTS {
        let start = saved(&folder, None, NOW).expect("another identity");
        assert_eq!(start.seeds.len(), 1);
        nodes.push(start.identity.credential.node);
        starts.push(start);
    }
    nodes.sort_unstable();
    nodes.dedup();
    assert_eq!(nodes.len(), SLOTS, "each has a key of its own");
    let error = saved(&folder, None, NOW).expect_err("all are in use").to_string();
    assert!(error.contains("in use"), "{error}");
    drop(held);
    let mut again = saved(&folder, None, NOW).expect("one is free again");
    assert_eq!(again.identity.credential.node, first);
    assert_eq!(again.directory, Some(vec![1, 2, 3]));

    again.storage.store(Some(vec![4])).await.expect("saved");
    let error = saved(&folder, None, NOW).expect_err("storing releases nothing").to_string();
    assert!(error.contains("in use"), "{error}");
    drop(again);
    let again = saved(&folder, None, NOW).expect("one is free again");
    assert_eq!(again.directory, Some(vec![4]));
}

#[tokio::test]
async fn every_saved_file_is_for_its_owner_only() {
    let folder = tempfile::tempdir().expect("a folder");
    let start = from_invite(&invite(1, "operator"), &args(&[]), folder.path(), None, NOW);
    let _held = save(start.expect("a good invite")).await;
    let mut files = 0;
    for number in 0..SLOTS {
        let slot = slot_path(folder.path(), number);
        assert_eq!(slot.metadata().expect("made").permissions().mode() & 0o777, 0o700);
        for file in std::fs::read_dir(&slot).expect("a folder") {
            let file = file.expect("an entry");
            let mode = file.metadata().expect("a file").permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{:?}", file.path());
            files += 1;
        }
    }
    assert!(files >= 5 * SLOTS, "{files}");
}

#[tokio::test]
async fn what_an_earlier_version_saved_is_named_with_what_to_do() {
    let folder = tempfile::tempdir().expect("a folder");
    let start = from_invite(&invite(1, "operator"), &args(&[]), folder.path(), None, NOW);
    drop(save(start.expect("a good invite")).await);
    for number in 0..SLOTS {
        let path = slot_path(folder.path(), number).join("credential");
        let state = StateDir::open(slot_path(folder.path(), number)).expect("it is there");
        let whole = state.credential().expect("loads").expect("it is there").to_bytes();
        let encoded = data_encoding::BASE64URL_NOPAD.encode(&whole[..whole.len() - 64]);
        std::fs::write(path, format!("meshport-credential-1.{encoded}\n")).expect("written");
    }
    let error = saved(folder.path(), None, NOW).expect_err("nobody has signed it").to_string();
    assert!(error.contains("0/credential: is from an earlier version of meshport"), "{error}");
    assert!(error.contains("`meshport forward --invite FILE`"), "{error}");
    assert!(!error.contains("meshport renew"), "{error}");
    let start = from_invite(&invite(1, "operator"), &args(&[]), folder.path(), None, NOW);
    drop(save(start.expect("a renewal")).await);
    saved(folder.path(), None, NOW).expect("the new one");
}

/// A leaf that followed a node's remedy would no longer be a leaf.
#[tokio::test]
async fn each_damaged_file_is_named_with_what_a_leaf_can_do() {
    let folder = tempfile::tempdir().expect("a folder");
    let start = from_invite(&invite(1, "operator"), &args(&[]), folder.path(), None, NOW);
    let start = start.expect("a good invite");
    let (node, secrets) = (start.identity.credential.node, start.identity.secrets.to_text());
    drop(save(start).await);
    // The others would be used in its place if the credential is damaged.
    for number in 1..SLOTS {
        std::fs::remove_dir_all(slot_path(folder.path(), number)).expect("it was made");
    }
    for name in ["node.key", "record.key", "mesh.secret", "credential"] {
        let path = slot_path(folder.path(), 0).join(name);
        let whole = std::fs::read(&path).expect("it was saved");
        for at in 0..whole.len() {
            let mut flipped = whole.clone();
            flipped[at] ^= 1;
            for damaged in [&flipped[..], &whole[..at]] {
                std::fs::write(&path, damaged).expect("written");
                match saved(folder.path(), None, NOW) {
                    // White space at the end.
                    Ok(start) => {
                        assert_eq!(start.identity.credential.node, node);
                        assert_eq!(*start.identity.secrets.to_text(), *secrets);
                    }
                    Err(error) => {
                        let text = error.to_string();
                        assert!(text.contains(&format!("0/{name}: ")), "{text}");
                        assert!(text.contains("`meshport forward --invite FILE`"), "{text}");
                    }
                }
                assert_eq!(std::fs::read(&path).expect("it is there"), damaged, "left alone");
            }
        }
        std::fs::write(&path, &whole).expect("written");
    }
    // Errors that a leaf repairs like a node keep their remedy.
    let path = slot_path(folder.path(), 0).join("node.key");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("it is ours");
    let text = saved(folder.path(), None, NOW).expect_err("others can read it").to_string();
    assert!(text.contains("chmod 600"), "{text}");
}

#[tokio::test]
async fn a_new_invite_takes_the_place_of_the_old_one_but_not_of_another_mesh() {
    let folder = tempfile::tempdir().expect("a folder");
    let start = from_invite(&invite(1, "operator"), &args(&[]), folder.path(), None, NOW);
    let old = start.expect("a good invite");
    let running = old.identity.credential.node;
    let _held = save(old).await;
    let start = from_invite(&invite(1, "operator"), &args(&[]), folder.path(), None, NOW);
    let new = start.expect("a renewal");
    let renewed = new.identity.credential.node;
    drop(save(new).await);
    let start = saved(folder.path(), None, NOW).expect("the new one");
    assert_eq!(start.identity.credential.node, renewed);
    assert_ne!(renewed, running, "the one that runs has kept its own");

    let foreign = invite(2, "operator");
    let error =
        from_invite(&foreign, &args(&[]), folder.path(), None, NOW).expect_err("another mesh");
    assert!(error.to_string().contains("--credential"), "{error}");
    let unsaved = args(&["--invite", "-", "--no-save"]);
    let start = from_invite(&foreign, &unsaved, folder.path(), None, NOW).expect("nothing is kept");
    assert!(matches!(start.storage, Storage::Nothing));
}

#[tokio::test]
async fn members_come_from_the_node_of_this_machine_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let (node, leaf) = (folder.path().join("node"), folder.path().join("forward"));
    let node = StateDir::create(node).expect("made");
    let line = invite(1, "node,operator");
    let of_node = Invite::parse(&line).expect("an invite");
    let name: NodeName = "worker-7".parse().expect("a name");
    let keys = (NodeKey::from_bytes([5; 32]), RecordKey::from_bytes([6; 32]));
    let join = Join { name: None, roles: Some(Roles::from(Role::Node)), ..Join::default() };
    let credential = of_node.accept(&keys.0, &keys.1, join, NOW).expect("it joins");
    assert_ne!(credential.name, name);
    node.store_credential(&credential, Existing::Replace).expect("stored");
    node.store_directory(b"of the node").expect("stored");
    let known = Some(b"of the node".to_vec());

    let start = from_invite(&line, &args(&[]), &leaf, Some(&node), NOW).expect("a good invite");
    assert_eq!(start.directory, known);
    let foreign = invite(2, "operator");
    let unsaved = args(&["--invite", "-", "--no-save"]);
    let other = from_invite(&foreign, &unsaved, &leaf, Some(&node), NOW).expect("it is good");
    assert_eq!(other.directory, None, "the node is of another mesh");

    drop(save(start).await);
    let saved_directory = slot_path(&leaf, 0).join("directory");
    let start = saved(&leaf, Some(&node), NOW).expect("saved");
    assert_eq!(start.directory, Some(vec![1, 2, 3]), "its own comes first");
    drop(start);
    std::fs::remove_file(saved_directory).expect("it is there");
    std::fs::write(slot_path(&leaf, 0).join("seeds"), "not a seed\n").expect("written");
    let start = saved(&leaf, Some(&node), NOW).expect("damaged seeds keep nobody from starting");
    assert_eq!((start.seeds.len(), start.directory), (0, known));
}

#[test]
fn what_makes_no_operator_is_refused_with_the_way_out() {
    let folder = tempfile::tempdir().expect("a folder");
    let refused = |text: &str, now| {
        let error = from_invite(text, &args(&[]), folder.path(), None, now).expect_err("refused");
        (error.exit_code(), error.to_string())
    };
    let (code, text) = refused(&invite(1, "node"), NOW);
    assert_eq!(code, 2);
    assert!(text.contains("--role operator"), "{text}");
    let (code, _ended) = refused(&invite(1, "operator"), NOW.saturating_add(2 * DAY_S));
    assert_eq!(code, 4);
    let (code, text) = refused("/nonexistent/invite", NOW);
    assert_eq!(code, 5);
    assert!(text.contains("/nonexistent/invite"), "{text}");
}

#[tokio::test]
async fn an_expired_credential_is_reported_as_expired() {
    let folder = tempfile::tempdir().expect("a folder");
    let start = from_invite(&invite(1, "operator"), &args(&[]), folder.path(), None, NOW);
    drop(save(start.expect("a good invite")).await);
    let later = NOW.saturating_add(8 * DAY_S);
    let error = saved(folder.path(), None, later).expect_err("it has ended");
    assert!(error.to_string().contains("new invite"), "{error}");
    assert_eq!(error.exit_code(), 4);
}

/// The owner of the state folder may be another user than the one who runs the command.
#[tokio::test]
async fn a_link_in_the_place_of_a_folder_is_refused_and_nothing_is_written_there() {
    let parent = tempfile::tempdir().expect("a folder");
    let elsewhere = parent.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).expect("made");
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&elsewhere, open).expect("it is ours");
    let whole = parent.path().join("whole");
    std::fs::create_dir(&whole).expect("made");
    let (folder, slot) = (parent.path().join("forward"), slot_path(&whole, 0));
    for (link, folder) in [(&folder, &folder), (&slot, &whole)] {
        symlink(&elsewhere, link).expect("linked");
        let start = from_invite(&invite(1, "operator"), &args(&[]), folder, None, NOW);
        let mut storage = start.expect("a good invite").storage;
        let saved_there = storage.store(Some(vec![1, 2, 3])).await;
        let found = saved(folder, None, NOW).map(|_| ());
        for refused in [saved_there, found] {
            let error = refused.expect_err("it is a link");
            assert!(error.to_string().contains("is a symbolic link"), "{error}");
            assert_eq!(error.exit_code(), 4, "{error}");
        }
        assert_eq!(std::fs::read_dir(&elsewhere).expect("it is there").count(), 0);
        let mode = elsewhere.metadata().expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o755);
    }
}

#[tokio::test]
async fn a_clock_that_is_behind_is_named_with_what_a_leaf_can_do() {
    let folder = tempfile::tempdir().expect("a folder");
    let start = from_invite(&invite(1, "operator"), &args(&[]), folder.path(), None, NOW);
    drop(save(start.expect("a good invite")).await);
    let error = saved(folder.path(), None, UnixSeconds(NOW.0 - DAY_S)).expect_err("too early");
    let text = error.to_string();
    let remedy = "Correct this machine's clock or, if it is right, run `meshport forward --invite";
    assert!(text.contains(remedy) && !text.contains("join"), "{text}");
}
