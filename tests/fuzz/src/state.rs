//! The files of the state folder.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use meshport_config::Revocations;
use meshport_config::fuzzing::Script;
use meshport_state::{Existing, StateDir};
use tempfile::TempDir;

use crate::authority::{NOW, authority};

/// The files that are read, in the order of the leading byte.
pub(crate) const FILES: [&str; 9] = [
    "node.key",
    "record.key",
    "mesh.secret",
    "authority.key",
    "credential",
    "seeds",
    "generation",
    "revocations",
    "node.next",
];

/// A file of the state folder with any content gives an error that names the file and the remedy,
/// or a value that reads the same after it was stored. Reading never changes the file.
pub fn state(data: &[u8]) {
    thread_local! {
        static FOLDER: TempDir = tempfile::tempdir().expect("there is a place for a folder");
    }
    FOLDER.with(|folder| in_folder(folder, data));
}

fn in_folder(folder: &TempDir, data: &[u8]) {
    let mut script = Script::new(data);
    let name = FILES[usize::from(script.byte()) % FILES.len()];
    let content = script.all();
    let path = folder.path().join(name);
    fs::write(&path, content).expect("the folder is ours");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("the file is ours");
    let dir = StateDir::open(folder.path()).expect("it is a folder of our own");
    if let Err(message) = read_and_store(&dir, name) {
        assert!(message.contains(name), "{message} does not name {name}");
        assert!(message.lines().count() == 1, "{message}");
        assert_eq!(fs::read(&path).expect("it is there"), content, "a damaged file was changed");
    }
    for name in FILES {
        // Most are missing: few files write others.
        let _ = fs::remove_file(folder.path().join(name));
    }
}

/// Reads a file, stores its value, and reads that.
fn read_and_store(dir: &StateDir, name: &str) -> Result<(), String> {
    let told = |error: meshport_state::Error| error.to_string();
    macro_rules! secret {
        ($read:ident, $store:ident) => {{
            let key = dir.$read().map_err(told)?.expect("it is there");
            dir.$store(&key, Existing::Replace).expect("the folder is ours");
            let again = dir.$read().expect("it was just stored").expect("it is there");
            assert_eq!(*again.to_text(), *key.to_text());
        }};
    }
    match name {
        "node.key" => secret!(node_key, store_node_key),
        "record.key" => secret!(record_key, store_record_key),
        "mesh.secret" => secret!(mesh_secrets, store_mesh_secrets),
        "authority.key" => secret!(authority_key, store_authority_key),
        "credential" => {
            let read = dir.credential().map_err(told)?.expect("it is there");
            dir.store_credential(&read, Existing::Replace).expect("the folder is ours");
            assert_eq!(dir.credential().expect("it was just stored"), Some(read));
        }
        "seeds" => {
            let seeds = dir.seeds().map_err(told)?;
            dir.store_seeds(&seeds).expect("the folder is ours");
            assert_eq!(dir.seeds().expect("they were just stored"), seeds);
        }
        "generation" => {
            let next = dir.next_generation(NOW).number;
            assert!(next >= NOW.0, "a generation before its time");
            let after = dir.next_generation(NOW).number;
            assert!(after > next || next >= u64::MAX - 1, "a generation that does not grow");
        }
        "node.next" => {
            dir.settle_next().map_err(told)?;
            let present = "new keys are whole before they are put in their places";
            let node = dir.node_key().expect(present).expect(present);
            let record = dir.record_key().expect(present).expect(present);
            let credential = dir.credential().expect(present).expect(present);
            assert_eq!(credential.check_keys(&node.public(), &record.public()), Ok(()));
            let ended = dir.revocations(&credential.mesh).expect(present);
            assert!(ended.covering(&credential).is_none(), "new keys that end themselves");
        }
        _ => {
            let mesh = authority().public();
            let all: Revocations = dir.revocations(&mesh).map_err(told)?;
            dir.store_revocations(&all).expect("the folder is ours");
            let again = dir.revocations(&mesh).expect("they were just stored");
            assert_eq!((again.len(), again.digest()), (all.len(), all.digest()));
        }
    }
    Ok(())
}
