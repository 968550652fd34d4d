//! The table of single faults, and how a scenario with some of them is played. The program must be
//! optimised: `./tests/run sim` names one in `MESHPORT_SIM`.

use std::fs;
use std::num::NonZero;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use serde_json::Value;

/// Events that the full level refuses, since all its nodes share one clock and are the daemon,
/// which has no code for lying.
const REFUSED: [&str; 2] = ["clock-step", "lie"];
/// Time from a fault to the event that undoes it, if that is a separate one, in virtual seconds.
const UNDONE_AFTER_S: u32 = 30;

/// The level of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    Wide,
    Full,
}

/// An event, and the one that undoes it if that is separate.
pub(crate) struct Case {
    pub fault: &'static str,
    pub undone: &'static str,
    pub wide: Allowed,
    pub full: Allowed,
}

/// How many requests may fail.
#[derive(Clone, Copy)]
pub(crate) enum Allowed {
    None,
    /// At most this many, for this reason.
    Some(u64, &'static str),
}

const fn none(fault: &'static str) -> Case {
    undone(fault, "")
}

const fn undone(fault: &'static str, undone: &'static str) -> Case {
    Case { fault, undone, wide: Allowed::None, full: Allowed::None }
}

/// None at the wide level.
const fn some_at_full(fault: &'static str, most: u64, why: &'static str) -> Case {
    Case { fault, undone: "", wide: Allowed::None, full: Allowed::Some(most, why) }
}

pub(crate) const UNREACHABLE: &str =
    "no origin is within reach of that site, and its clients wait for 10 s at most";

/// Clients of a node whose process ends, temporarily or permanently, end with it, and their
/// requests do not count. The same holds for a revoked node.
pub(crate) const CASES: &[Case] = &[
    // Faults of instances.
    none("kill = \"fra-1\""),
    none("kill = \"fra-1\"\nfor-s = 30"),
    undone("kill = \"fra-1\"", "recover = \"fra-1\""),
    none("hang = \"fra-1\""),
    none("hang = \"fra-1\"\nfor-s = 30"),
    none("unready = \"fra-1\"\nfor-s = 30"),
    none("stall = \"fra-1\"\nfor-s = 30"),
    // Processes.
    none("crash = \"fra-1\""),
    none("crash = \"fra-1\"\nfor-s = 30"),
    none("crash = \"fra-1\"\nfor-s = 30\nwithout-state = true"),
    undone("crash = \"fra-1\"", "restart = \"fra-1\""),
    undone("crash = \"fra-1\"", "restart = \"fra-1\"\nwithout-state = true"),
    none("crash = \"vie-2\"\nfor-s = 30"),
    none("crash = \"vie relays\"\nfor-s = 30"),
    none("crash = \"vie workers any 2\""),
    none("leave = \"fra-1\""),
    none("leave = \"vie-2\""),
    none("leave = \"vie workers any 3\""),
    none("leave = \"fra\""),
    none("leave = \"fra\"\nover-s = 5"),
    none("rolling-restart = \"all\"\ngap-s = 4"),
    none("rolling-restart = \"all origins\"\ngap-s = 15\ndown-s = 3"),
    none("rolling-restart = \"all origins\"\ngap-s = 15\ndown-s = 3\nwithout-state = true"),
    none("join = \"ams-5\""),
    none("join = \"ams workers\"\nover-s = 3"),
    // Paths.
    none("cut = [\"fra\", \"vie\"]"),
    none("cut = [\"fra\", \"vie\"]\nfor-s = 30"),
    undone("cut = [\"fra\", \"vie\"]", "heal = [\"fra\", \"vie\"]"),
    none("cut = [\"fra\", \"ams\"]\nfor-s = 30"),
    none("cut = [\"fra\", \"vie\"]\none-way = true\nfor-s = 30"),
    none("cut = [\"vie\", \"fra\"]\none-way = true\nfor-s = 30"),
    none("cut = [\"fra-1\", \"vie-2\"]\nfor-s = 30"),
    none("cut = [\"fra-1\", \"vie-2\"]\none-way = true\nfor-s = 30"),
    none("cut = [\"vie-2\", \"fra-1\"]\none-way = true\nfor-s = 30"),
    none("isolate = \"fra\"\nfor-s = 30"),
    // A client whose request has failed ends at the wide level and continues at the full one: in 30
    // s Vienna's four nodes make some 60 sessions with a request each, and 256 to 388 with seeds 1
    // to 6.
    Case {
        fault: "isolate = \"vie\"\nfor-s = 30",
        undone: "",
        wide: Allowed::Some(130, UNREACHABLE),
        full: Allowed::Some(500, UNREACHABLE),
    },
    none(
        "degrade = { between = [\"fra\", \"vie\"], loss-percent = 20, loss-burst-ms = 80 }\n\
         for-s = 30",
    ),
    none("degrade = { between = [\"fra\", \"vie\"], loss-percent = 100 }\nfor-s = 30"),
    none("degrade = { between = [\"fra\", \"vie\"], rtt-ms = 400, jitter-ms = 30 }\nfor-s = 30"),
    none("degrade = { between = [\"fra\", \"vie\"], rate-mbit = 2 }\nfor-s = 30"),
    none("degrade = { between = [\"fra\", \"vie\"], preset = \"lossy-lte\" }\nfor-s = 30"),
    none("degrade = { between = [\"fra\", \"vie\"], mtu = 1400 }\nfor-s = 30"),
    undone(
        "degrade = { between = [\"fra\", \"vie\"], rtt-ms = 400, loss-percent = 5 }",
        "restore = [\"fra\", \"vie\"]",
    ),
    // One request in one of 240 runs: ADR 020 has the reason.
    some_at_full(
        "degrade = { between = [\"fra\", \"vie\"], loss-percent = 50 }\nfor-s = 30",
        2,
        "a path that was dead and answers looks well for a second, and a session may begin there",
    ),
    none(
        "degrade = { between = [\"fra\", \"vie\"], loss-percent = 50, one-way = true }\nfor-s = 30",
    ),
    none("degrade = { between = [\"fra\", \"vie\"], mtu = 1300 }\nfor-s = 30"),
    none("degrade = { between = [\"fra\", \"vie\"], mtu = 1280 }\nfor-s = 30"),
    none("degrade = { between = [\"fra\", \"vie\"], mtu = 800 }\nfor-s = 30"),
    // Fragments are lost too.
    none("degrade = { between = [\"fra\", \"vie\"], mtu = 600 }\nfor-s = 30"),
    none("degrade = { between = [\"fra\", \"vie\"], mtu = 1280, one-way = true }\nfor-s = 30"),
    none("degrade = { between = [\"vie\", \"fra\"], mtu = 1280, one-way = true }\nfor-s = 30"),
    none("degrade = { between = [\"fra\", \"vie\"], rate-mbit = 0.1 }\nfor-s = 30"),
    none("flap = [\"fra\", \"vie\"]\nperiod-s = 2\nfor-s = 30"),
    none("flap = [\"fra\", \"vie\"]\nperiod-s = 0.3\nfor-s = 30"),
    none("flap = [\"fra\", \"vie\"]\nperiod-s = 2\none-way = true\nfor-s = 30"),
    // Clocks, processors, addresses.
    none("clock-step = \"fra-1\"\nby-s = 3600"),
    none("clock-step = \"fra-1\"\nby-s = -3600"),
    none("clock-step = \"vie\"\nby-s = 86400"),
    none("clock-step = \"all\"\nby-s = -86400"),
    none("starve = \"fra-1\"\nfor-s = 30"),
    none("starve = \"fra-1\"\nstall-ms = 5000\nfor-s = 30"),
    none("starve = \"all\"\nfor-s = 30"),
    none("rebind = \"vie-2\""),
    none("rebind = \"vie\""),
    none("rebind = \"fra-1\""),
    none("roam = \"vie-2\"\nto = \"ams\""),
    none("roam = \"fra-1\"\nto = \"vie\""),
    // Settings and membership.
    none("configure = \"all\"\nsettings.service.kube-apiserver.policy = \"spread\""),
    none("revoke = \"vie-3\""),
    none("revoke = \"vie relays\""),
    none("revoke = \"fra-1\""),
    // Lies, of an origin and of a relay.
    none("lie = \"fra-1\"\nhow = \"ready\""),
    none("lie = \"fra-1\"\nhow = \"garbage\""),
    none("lie = \"fra-1\"\nhow = \"replay\""),
    none("lie = \"fra-1\"\nhow = \"silent\""),
    none("lie = \"fra-1\"\nhow = \"near\""),
    none("lie = \"fra-1\"\nhow = \"accuse\""),
    none("lie = \"vie relays\"\nhow = \"garbage\"\nfor-s = 30"),
    none("lie = \"vie relays\"\nhow = \"replay\"\nfor-s = 30"),
    none("lie = \"vie relays\"\nhow = \"silent\"\nfor-s = 30"),
    none("lie = \"vie relays\"\nhow = \"relay\"\nfor-s = 30"),
    none("lie = \"vie relays\"\nhow = \"near\"\nfor-s = 30"),
    none("lie = \"vie relays\"\nhow = \"accuse\"\nfor-s = 30"),
];

impl Case {
    /// Its events, the first at this virtual second.
    pub(crate) fn events(&self, at_s: u32) -> String {
        let event = |at: u32, event: &str| match event {
            "" => String::new(),
            _ => format!("\n[[event]]\nat-s = {at}\n{event}\n"),
        };
        format!("{}{}", event(at_s, self.fault), event(at_s + UNDONE_AFTER_S, self.undone))
    }

    pub(crate) fn words(&self) -> String {
        let words = [self.fault, self.undone].map(|words| words.replace('\n', ", "));
        words.join(if self.undone.is_empty() { "" } else { ", then " })
    }

    /// Whether the full level does not know it.
    pub(crate) fn is_refused(&self) -> bool {
        REFUSED.iter().any(|key| self.fault.starts_with(&format!("{key} =")))
    }
}

/// Plays a scenario, which is kept under this name.
pub(crate) fn play(text: &str, level: Level, name: &str, seed: &str) -> Output {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("faults");
    fs::create_dir_all(&folder).expect("a folder");
    let file = folder.join(format!("{name}-{level:?}-{seed}.toml"));
    fs::write(&file, text).expect("a file");
    let mut command = Command::new(crate::program());
    command.arg("run").arg(file).args(["--seed", seed, "--json", "-"]);
    if level == Level::Full {
        command.arg("--full");
    }
    command.stdin(Stdio::null()).output().expect("the program starts")
}

/// Results of a run.
pub(crate) struct Seen {
    pub total: u64,
    pub failed: u64,
    pub violated: usize,
    /// The longest time of an answered request, in milliseconds.
    pub slowest_ms: f64,
    pub errors: String,
}

impl Seen {
    /// The printed result, or the output in its place.
    pub(crate) fn of(output: &Output) -> Result<Self, String> {
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        let Ok(result) = serde_json::from_slice::<Value>(&output.stdout) else {
            return Err(errors);
        };
        let [total, failed] = ["total", "failed"]
            .map(|key| result["requests"][key].as_u64().expect("a number of requests"));
        let violated = result["violations"].as_array().expect("a list").len();
        let slowest_ms = result["latency_ms"]["max"].as_f64().expect("a number");
        Ok(Self { total, failed, violated, slowest_ms, errors })
    }
}

/// The results of all runs, on all processors, in any order.
pub(crate) fn all<T: Sync, R: Send>(runs: &[T], judge: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        while let Some(run) = runs.get(next.fetch_add(1, Ordering::Relaxed)) {
            done.push(judge(run));
        }
        done
    };
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        all.into_iter().flat_map(|it| it.join().expect("a thread that plays")).collect()
    })
}
