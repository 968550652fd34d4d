//! A folder with a malicious owner: what root's commands find there instead of files.

use std::os::unix::fs::symlink;
use std::time::Duration;

use meshport_config::NodeId;

use super::*;

const ELSEWHERE: &str = "somebody else's\n";

/// A folder with everything in it, and a file outside of it.
fn beside_another() -> (TempDir, StateDir, MeshId, PathBuf) {
    let (folder, state, mesh) = with_all_files();
    state.store_directory(&[1, 2, 3]).expect("stored");
    let elsewhere = folder.path().join("elsewhere");
    fs::write(&elsewhere, ELSEWHERE).expect("written");
    (folder, state, mesh, elsewhere)
}

/// Everything that a start, a check or a verb reads.
fn read_all(state: &StateDir, mesh: &MeshId) -> Vec<String> {
    let node_key = state.node_key();
    let renewed = node_key.as_ref().ok().cloned().flatten();
    let renewed = renewed.map_or(Ok(None), |key| state.credential_to_renew(&key));
    let all = [
        node_key.err(),
        renewed.err(),
        state.record_key().err(),
        state.mesh_secrets().err(),
        state.authority_key().err(),
        state.credential().err(),
        state.seeds().err(),
        state.generation().err(),
        state.directory().err(),
        state.nodes().err(),
        state.revocations(mesh).err(),
        state.settle_next().err(),
        state.mandate().err(),
        state.turns_of(&NodeId::from_bytes([1; 32])).err(),
        state.public_credential(renewals::BASE).err(),
        state.public_credential(renewals::FORMER).err(),
    ];
    let told = all.into_iter().flatten().map(|error| error.to_string());
    told.chain(state.doubts()).collect()
}

#[test]
fn no_file_is_read_through_a_link() {
    for name in erased().filter(|name| ![LOCK, SOCKET].contains(name)) {
        let (_folder, state, mesh, elsewhere) = beside_another();
        let path = state.path().join(name);
        let _ = fs::remove_file(&path);
        symlink(&elsewhere, &path).expect("linked");
        let told = read_all(&state, &mesh);
        let line = told.iter().find(|line| line.contains("is a symbolic link"));
        assert!(line.is_some_and(|it| it.starts_with(&path.display().to_string())), "{told:?}");
        assert!(!told.concat().contains(ELSEWHERE.trim()), "{told:?}");
    }
}

#[test]
fn a_pipe_in_the_place_of_a_file_holds_nobody_up() {
    let (folder, state, mesh, _) = beside_another();
    for name in [CREDENTIAL, NODE_KEY, SEEDS] {
        let path = state.path().join(name);
        fs::remove_file(&path).expect("it is there");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, mode).expect("made");
    }
    let (done, told) = std::sync::mpsc::sync_channel(1);
    std::thread::spawn(move || done.send(read_all(&state, &mesh)));
    let told = told.recv_timeout(Duration::from_secs(30)).expect("it waits for the pipe");
    assert_eq!(told.iter().filter(|line| line.contains("is not a file")).count(), 3, "{told:?}");
    drop(folder);
}

#[test]
fn no_file_is_written_through_a_link() {
    for (name, _) in FILES {
        let (_folder, state, _, elsewhere) = beside_another();
        let whole = state.identity(NOW).expect("whole");
        let seeds = state.seeds().expect("whole");
        let path = state.path().join(name);
        let _ = fs::remove_file(&path);
        symlink(&elsewhere, &path).expect("linked");
        let replace = Existing::Replace;
        state.store_node_key(&whole.node_key, replace).expect("the link itself is replaced");
        state.store_record_key(&whole.record_key, replace).expect("stored");
        state.store_mesh_secrets(&whole.secrets, replace).expect("stored");
        state.store_credential(&whole.credential, Existing::ReplaceForOwner).expect("stored");
        state.store_seeds(&seeds).expect("stored");
        state.store_directory(&[1]).expect("stored");
        state.store_revocations(&Revocations::default()).expect("stored");
        state.next_generation(NOW);
        let who = whole.credential.clone();
        let (node_key, record_key) = (whole.node_key.clone(), whole.record_key.clone());
        let next = NextIdentity { node_key, record_key, credential: who };
        state.store_next(&next).expect("stored");
        state.settle_next().expect("settled");
        state.remove_directory().expect("removed");
        let locked = state.lock();
        if name == LOCK {
            let error = locked.expect_err("it is a link");
            assert!(matches!(error, Error::State { .. }), "{error:?}");
            assert!(error.to_string().contains("lock: is a symbolic link"), "{error}");
        }
        assert_eq!(fs::read_to_string(&elsewhere).expect("it is there"), ELSEWHERE, "{name}");
        assert_eq!(fs::metadata(&elsewhere).expect("it is there").uid(), my_uid());
    }
}

fn my_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[test]
fn a_lock_that_is_somebody_elses_file_is_neither_taken_nor_emptied() {
    let (folder, state, _, elsewhere) = beside_another();
    let lock = state.path().join(LOCK);
    let _ = fs::remove_file(&lock);
    fs::hard_link(&elsewhere, &lock).expect("linked");
    assert!(message(state.lock()).contains("it has another hard link; move it away"));
    assert_eq!(fs::read_to_string(&elsewhere).expect("it is there"), ELSEWHERE);
    fs::remove_file(&lock).expect("as it was told");
    // A new lock file gets the folder's owner, who must be able to lock it too.
    let own = my_uid();
    let other = if own == 0 { 65_534 } else { own };
    chown(state.path(), Some(other), None).expect("it is ours");
    let _lock = state.lock().expect("free");
    assert_eq!(fs::metadata(&lock).expect("it was made").uid(), other);
    drop(folder);
}

#[test]
fn a_lock_that_is_not_a_file_is_refused_for_what_it_is() {
    let (_folder, state, ..) = beside_another();
    let lock = state.path().join(LOCK);
    let _ = fs::remove_file(&lock);
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mkfifoat(rustix::fs::CWD, &lock, mode).expect("made");
    assert!(message(state.lock()).ends_with("lock: it is a FIFO, not a file; move it away"));
    fs::remove_file(&lock).expect("as it was told");
    fs::create_dir(&lock).expect("made");
    assert!(message(state.lock()).ends_with("lock: it is a folder, not a file; move it away"));
    fs::remove_dir(&lock).expect("as it was told");
    let _socket = std::os::unix::net::UnixListener::bind(&lock).expect("bound");
    assert!(message(state.lock()).ends_with("lock: is not a file. Move it away"));
}

#[test]
fn a_folder_that_was_moved_away_stays_the_one_that_was_opened() {
    let (folder, state, mesh, elsewhere) = beside_another();
    let whole = state.identity(NOW).expect("whole");
    let moved = folder.path().join("moved");
    fs::rename(state.path(), &moved).expect("renamed");
    symlink(elsewhere.parent().expect("a folder"), state.path()).expect("linked");
    assert_eq!(state.identity(NOW).expect("whole").credential, whole.credential);
    state.store_directory(&[7]).expect("stored");
    assert_eq!(fs::read(moved.join(DIRECTORY)).expect("it is there"), [7]);
    assert!(!folder.path().join(DIRECTORY).exists());
    state.revocations(&mesh).expect("whole");
}

#[test]
fn a_folder_in_another_users_is_not_reached_through_a_link() {
    let parent = tempfile::tempdir().expect("a folder");
    let (outer, elsewhere) = (parent.path().join("outer"), parent.path().join("elsewhere"));
    fs::create_dir(&elsewhere).expect("made");
    set_mode(&elsewhere, 0o755);
    let refused = |state: Result<StateDir, Error>| {
        let told = message(state);
        assert!(told.contains("is a symbolic link; links in a state folder"), "{told}");
        assert_eq!(mode(&elsewhere), 0o755);
    };
    symlink(&elsewhere, &outer).expect("linked");
    for path in [outer.clone(), outer.join("")] {
        refused(StateDir::open_itself(&path).map(|it| it.expect("there")));
        refused(StateDir::create_itself(&path));
    }
    fs::remove_file(&outer).expect("it is there");
    assert!(StateDir::open_itself(&outer).expect("looked").is_none());
    let state = StateDir::create_itself(&outer).expect("made");
    symlink(&elsewhere, outer.join("0")).expect("linked");
    refused(state.open_in("0").map(|it| it.expect("there")));
    refused(state.create_in("0"));
    assert!(state.open_in("1").expect("looked").is_none());
    let inner = state.create_in("1").expect("made");
    assert_eq!((mode(inner.path()), inner.path()), (0o700, &*outer.join("1")));
    // The outer folder, as opened, is where it looks even if its name is a link by now.
    let moved = parent.path().join("moved");
    fs::rename(&outer, &moved).expect("renamed");
    symlink(&elsewhere, &outer).expect("linked");
    state.create_in("2").expect("made");
    assert!(moved.join("2").is_dir() && !elsewhere.join("2").exists());
}

#[test]
fn a_folder_that_was_open_to_others_is_closed_unless_it_holds_other_things() {
    let parent = tempfile::tempdir().expect("a folder");
    let path = parent.path().join("state");
    fs::create_dir(&path).expect("made");
    set_mode(&path, 0o755);
    let state = StateDir::create(&path).expect("it is there");
    assert_eq!(mode(&path), 0o700);
    assert_eq!(state.doubts(), [] as [String; 0]);
    assert_eq!(state.doubts_of_folder(), [] as [String; 0]);

    set_mode(&path, 0o755);
    fs::write(path.join("somebody"), "else's").expect("written");
    let state = StateDir::create(&path).expect("it is there");
    assert_eq!(mode(&path), 0o755, "it is not meshport's alone");
    let [doubt] = &state.doubts()[..] else { panic!("{:?}", state.doubts()) };
    assert!(doubt.contains(&format!("run `chmod 700 {}`", path.display())), "{doubt}");
    let told = || state.doubts_of_folder().join("\n");
    let others = "files that are not meshport's (somebody), so it stays accessible to other users \
                  (mode 0755)";
    assert!(told().contains(others), "{}", told());
    for name in ["a", "b", "c"] {
        fs::write(path.join(name), "").expect("written");
    }
    assert!(told().contains("(a, b, c and 1 more), so"), "{}", told());
    set_mode(&path, 0o700);
    assert!(told().contains("(a, b, c and 1 more); name"), "{}", told());
}

#[test]
fn a_folder_of_another_user_is_doubtful() {
    let parent = tempfile::tempdir().expect("a folder");
    let state = StateDir::create(parent.path().join("state")).expect("made");
    let owner = fs::metadata(state.path()).expect("it is there").uid();
    assert_eq!(state.doubt_of_owner(owner), None);
    let told = state.doubt_of_owner(owner + 1).expect("it is another one's");
    assert!(told.contains(&format!("belongs to user {owner}, ")), "{told}");
}
