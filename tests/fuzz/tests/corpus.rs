//! Every input of the corpus is passed to its target: output of real encoders, and inputs that once
//! broke something; then damaged copies of them, different ones in each run. A target is one test,
//! so that a failure names it. `MESHPORT_FUZZ_SEED=7` repeats the damage of a run that printed 7.

use std::fs;
use std::path::{Path, PathBuf};

use meshport_fuzz::{TARGETS, seeds};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rand_core::{OsRng, RngCore as _};

/// Damaged inputs per target, except for those that simulate.
const DAMAGED: usize = 2_000;
/// The same for targets that need some milliseconds per input or more.
const DAMAGED_SLOW: usize = 200;
const SLOW: [&str; 4] = ["admin", "discovery", "outer", "state"];
/// The most bytes of random input.
const MAX_RANDOM_BYTES: usize = 2_000;

fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name)
}

#[expect(clippy::print_stdout, reason = "the last name before a failure is the input that fails")]
fn replay(name: &str) {
    let (_, _, run) = TARGETS.iter().find(|target| target.0 == name).expect("a target");
    let listed = fs::read_dir(folder(name)).expect("every target has a corpus");
    let mut paths: Vec<PathBuf> = listed.map(|it| it.expect("a file").path()).collect();
    // A seed means the same damage on every file system.
    paths.sort();
    let mut inputs = Vec::new();
    for path in paths {
        println!("{}", path.display());
        let input = fs::read(&path).expect("it is readable");
        run(&input);
        inputs.push(input);
    }
    assert!(inputs.len() >= seeds(name).len(), "`meshport-fuzz seeds` writes what is missing");
    let rounds = match name {
        "world" => 0,
        name if SLOW.contains(&name) => DAMAGED_SLOW,
        _ => DAMAGED,
    };
    let given = std::env::var("MESHPORT_FUZZ_SEED").ok();
    let seed = given.map_or_else(|| OsRng.next_u64(), |seed| seed.parse().expect("a number"));
    let mut rng = StdRng::seed_from_u64(seed);
    for round in 1..=rounds {
        println!("damaged input {round} of MESHPORT_FUZZ_SEED={seed}");
        let input = Kept { name, bytes: damaged(&inputs, &mut rng) };
        run(&input.bytes);
    }
}

/// An input that is written to a file if it breaks its target.
struct Kept<'a> {
    name: &'a str,
    bytes: Vec<u8>,
}

impl Drop for Kept<'_> {
    #[expect(clippy::print_stdout, reason = "where the input that fails is")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("broke-{}", self.name));
            let written = fs::write(&file, &self.bytes);
            println!("the input is in {} ({written:?})", file.display());
        }
    }
}

/// An input with up to four kinds of damage, or one time in ten random bytes.
fn damaged(inputs: &[Vec<u8>], rng: &mut StdRng) -> Vec<u8> {
    if inputs.is_empty() || rng.random_ratio(1, 10) {
        let mut bytes = vec![0; rng.random_range(0..MAX_RANDOM_BYTES)];
        rng.fill(&mut bytes[..]);
        return bytes;
    }
    let mut bytes = inputs[rng.random_range(0..inputs.len())].clone();
    for _ in 0..rng.random_range(1..=4) {
        let at = rng.random_range(0..=bytes.len());
        let end = rng.random_range(at..=bytes.len());
        match rng.random_range(0..5) {
            0 if at < bytes.len() => bytes[at] ^= 1 << rng.random_range(0..8),
            1 if at < bytes.len() => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][rng.random_range(0..5)],
            2 => bytes.truncate(at),
            3 => drop(bytes.drain(at..end)),
            _ => {
                let other = &inputs[rng.random_range(0..inputs.len())];
                let from = rng.random_range(0..=other.len());
                let until = rng.random_range(from..=other.len());
                bytes.splice(at..at, other[from..until].iter().copied());
            }
        }
    }
    bytes
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
