use std::time::Duration;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::target::Target;
use super::*;

const SMALL: &str = r#"
description = "two sites"
duration-s = 100
[[site]]
name = "fra"
nodes = 4
origins = 2
relays = 1
[[site]]
name = "ams"
nodes = 1
"#;

fn with(more: &str) -> Result<Scenario, Error> {
    Scenario::parse(&format!("{SMALL}\n{more}"))
}

fn event(event: &str) -> Vec<timeline::Planned> {
    let scenario = with(&format!("[[event]]\n{event}")).expect("a good scenario");
    timeline::expand(&scenario, 1).expect("checked already")
}

#[test]
fn targets_are_nodes_sites_kinds_and_draws() {
    let scenario = with("").expect("a good scenario");
    let draw = |words: &str| {
        let target = Target::parse(words, &scenario).expect(words);
        target.draw(&mut ChaCha8Rng::seed_from_u64(1))
    };
    assert_eq!(draw("fra-2"), [1]);
    assert_eq!(draw("fra"), [0, 1, 2, 3]);
    assert_eq!(draw("all origins"), [0, 1]);
    assert_eq!(draw("fra workers"), [2, 3]);
    assert_eq!(draw("all relays"), [3]);
    assert_eq!(draw("all any 3").len(), 3);
    assert!(draw("all origins any")[0] <= 1);
    for wrong in ["oslo", "fra-9", "fra any 9", "fra origins twice", "ams origins"] {
        assert!(Target::parse(wrong, &scenario).is_err(), "{wrong}");
    }
}

#[test]
fn what_has_a_length_is_undone() {
    let plan = event("at-s = 5\nkill = \"fra-1\"\nfor-s = 10");
    let plan: Vec<_> = plan.iter().map(|it| (it.at.as_secs(), it.happening.clone())).collect();
    let instance = |becomes| Happening::Instance(0, becomes);
    assert_eq!(plan, [(5, instance(Instance::Down)), (15, instance(Instance::Ready))]);
    let plan = event("at-s = 5\ncut = [\"fra\", \"ams\"]\nfor-s = 1");
    assert_eq!(plan.len(), 4, "two directions, down and up");
    assert_eq!(plan.iter().filter(|it| it.fault.is_some()).count(), 1, "one fault");
    let one = event("at-s = 5\ncut = [\"fra\", \"ams\"]\none-way = true");
    assert_eq!(one.len(), 1);
}

#[test]
fn times_are_repeated_and_drawn_from_the_seed() {
    let plan = event("at-s = 5\nevery-s = 20\ntimes = 3\ncrash = \"fra-3\"");
    assert_eq!(plan.iter().map(|it| it.at.as_secs()).collect::<Vec<_>>(), [5, 25, 45]);
    let scenario = with("[[event]]\nat-s = [10, 90]\ncrash = \"all any\"").expect("good");
    let at = |seed| timeline::expand(&scenario, seed).expect("good")[0].clone();
    assert_eq!(at(1), at(1));
    assert_ne!(at(1).at, at(2).at);
    assert!(at(1).at >= Duration::from_secs(10) && at(1).at < Duration::from_secs(90));
}

#[test]
fn errors_name_the_line_the_key_and_the_nearest() {
    for (text, expected) in [
        ("[[event]]\nat-s = 1\nkil = \"fra-1\"", ["line 15", "kil", "did you mean \"kill\"?"]),
        ("[[event]]\nat-s = 1\nkill = \"fra-11\"", ["line 15", "fra-11", "fra-1"]),
        ("[[event]]\nat-s = 1\nkill = \"ams-1\"", ["line 15", "ams-1", "hosts no instance"]),
        ("[[event]]\nat-s = 1\nisolate = \"frb\"", ["line 15", "frb", "\"fra\"?"]),
        ("[[event]]\nat-s = 1", ["exactly one thing", "kill", "lie"]),
        ("[[event]]\nat-s = 1\nkill = \"fra-1\"\ncrash = \"fra-1\"", ["exactly one", "", ""]),
        ("[[event]]\nkill = \"fra-1\"", ["at-s", "", ""]),
        ("[[event]]\nat-s = 1\nrevoke = \"fra-1\"\nfor-s = 9", ["for ever", "for-s", ""]),
        ("[[event]]\nat-s = 1\nkill = \"fra-1\"\nthrough = \"fra-2\"", ["through", "revoke", ""]),
        ("[[event]]\nat-s = 1\nroam = \"fra-1\"", ["roam and to", "", ""]),
        ("[[path]]\nbetween = [\"fra\", \"ams\"]\npreset = \"metr\"", ["line 15", "\"metro\"", ""]),
        ("[settings.discovery]\nprobe-intervall = \"1s\"", ["line 14", "probe-interval", "mean"]),
        ("[settings.discovery]\nsuspicion = \"1h\"", ["line 14", "suspicion", "5m"]),
        ("[load]\nsessions-per-s = -1", ["line 14", "sessions-per-s", "0 to 10000"]),
    ] {
        let error = with(text).expect_err(text).to_string();
        for word in expected {
            assert!(error.contains(word), "{text}\n-> {error}\nlacks {word}");
        }
    }
}

#[test]
fn settings_are_read_by_the_daemons_own_parser() {
    let scenario = with("[settings.discovery]\nsuspicion = \"9s\"").expect("good");
    let overrides = Overrides::new(&scenario).expect("good");
    assert_eq!(overrides.site(1).discovery.suspicion, Duration::from_secs(9));
    assert_eq!(overrides.site(1).site.as_str(), "ams");
}
