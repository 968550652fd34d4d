//! Every input of the corpus is passed to its target: output of real encoders, and inputs that once
//! broke something. A target is one test, so that a failure names it.

use std::fs;
use std::path::PathBuf;

use meshport_fuzz::{TARGETS, seeds};

fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name)
}

#[expect(clippy::print_stdout, reason = "the last name before a failure is the input that fails")]
fn replay(name: &str) {
    let (_, _, run) = TARGETS.iter().find(|target| target.0 == name).expect("a target");
    let mut shown = 0;
    let listed = fs::read_dir(folder(name)).expect("every target has a corpus");
    for entry in listed {
        let path = entry.expect("a file").path();
        println!("{}", path.display());
        run(&fs::read(&path).expect("it is readable"));
        shown += 1;
    }
    assert!(shown >= seeds(name).len(), "`meshport-fuzz seeds` writes what is missing");
}

macro_rules! replayed {
    ($($name:ident),*) => {
        $(#[test]
        fn $name() {
            replay(stringify!($name));
        })*

        #[test]
        fn no_target_and_no_corpus_is_left_out() {
            let replayed = [$(stringify!($name)),*];
            assert_eq!(TARGETS.map(|target| target.0), replayed);
            let corpora = fs::read_dir(folder("")).expect("there is a corpus").count();
            assert_eq!(corpora, replayed.len());
        }
    };
}

replayed!(
    outer, inner, handshake, stream, checks, hello, proxy, vip, gossip, discovery, credential,
    invite, config, admin, state, world
);
