use std::time::Duration;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::keys::{BESIDE, Beside, COMMON, KINDS};
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
joining = 1
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

/// Nodes that are not behind the NAT keep their address, unless the event names one of them.
#[test]
fn a_nat_gives_new_addresses_to_those_behind_it() {
    let nat = "[[site]]\nname = \"shop\"\nnodes = 2\nnat = true\n";
    let nodes = |target: &str| -> Vec<Happening> {
        let scenario = with(&format!("{nat}[[event]]\nat-s = 5\nrebind = \"{target}\""));
        let plan = timeline::expand(&scenario.expect("a good scenario"), 1).expect("checked");
        plan.into_iter().map(|it| it.happening).collect()
    };
    assert_eq!(nodes("all"), [Happening::Rebind(6), Happening::Rebind(7)]);
    assert_eq!(nodes("fra-1"), [Happening::Rebind(0)]);
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
        ("[[event]]\nat-s = 1\nkil = \"fra-1\"", ["line 16", "kil", "did you mean \"kill\"?"]),
        ("[[event]]\nat-s = 1\nkill = \"fra-11\"", ["line 16", "fra-11", "fra-1"]),
        ("[[event]]\nat-s = 1\nkill = \"ams-1\"", ["line 16", "ams-1", "hosts no instance"]),
        ("[[event]]\nat-s = 1\nisolate = \"frb\"", ["line 16", "frb", "\"fra\"?"]),
        ("[[event]]\nat-s = 1", ["line 15", "event 1 (at-s = 1)", "exactly one thing"]),
        (
            "[[event]]\nat-s = 1\nkill = \"fra-1\"\ncrash = \"fra-1\"",
            ["not kill and crash", "", ""],
        ),
        ("[[event]]\nkill = \"fra-1\"", ["event 1 (kill)", "needs \"at-s\"", ""]),
        ("[[event]]\nat-s = 1\nroam = \"fra-1\"", ["event 1 (roam, at-s = 1)", "needs \"to\"", ""]),
        ("[[event]]\nat-s = 1\nclock-step = \"fra\"\nby-s = 0.5", ["line 17", "by-s", "whole"]),
        ("[[event]]\nat-s = 1\nkill = \"fra-1\"\nfor-s = -1", ["line 17", "event 1", "for-s"]),
        ("[[path]]\nbetween = [\"fra\", \"ams\"]\npreset = \"metr\"", ["line 16", "\"metro\"", ""]),
        ("[settings.discovery]\nprobe-intervall = \"1s\"", ["line 15", "probe-interval", "mean"]),
        ("[settings.discovery]\nsuspicion = \"1h\"", ["line 15", "suspicion", "5m"]),
        ("[load]\nsessions-per-s = -1", ["line 15", "sessions-per-s", "0 to 10000"]),
    ] {
        let error = with(text).expect_err(text).to_string();
        for word in expected {
            assert!(error.contains(word), "{text}\n-> {error}\nlacks {word}");
        }
        assert!(!error.contains('\n'), "{error}");
    }
}

/// The line is that of the event in question, not of another one with the same words.
#[test]
fn an_error_of_an_event_names_its_own_line() {
    let events = "[[event]]\nat-s = 1\nkill = \"fra-1\"\nperiod-s = 2\n\
                  [[event]]\nat-s = [5, 9]\nflap = [\"fra\", \"ams\"]\nperiod-s = 2\nfor-s = 9\n";
    let error = with(events).expect_err("a period of a kill").to_string();
    let expected = "line 17: event 1 (kill, at-s = 1): \"period-s\" means nothing here, it goes \
                    with flap; leave it out";
    assert_eq!(error, expected);
    let inline = "event = [{ at-s = 1, kill = \"fra-1\" },\n{ at-s = 2, kill = \"ams-1\" }]\n";
    let error = Scenario::parse(&format!("{inline}{SMALL}")).expect_err("no instance").to_string();
    assert!(error.starts_with("line 2: event 2 (kill, at-s = 2): "), "{error}");
}

/// The keys each kind of event needs, and a value for each key that may accompany one.
fn sample(key: &str) -> &'static str {
    match key {
        "at-s" => "5",
        "cut" | "heal" | "restore" | "flap" => "[\"fra\", \"ams\"]",
        "degrade" => "{ between = [\"fra\", \"ams\"], rtt-ms = 90 }",
        "rolling-restart" => "\"fra\"",
        "isolate" | "to" => "\"ams\"",
        "join" => "\"ams-2\"",
        "how" => "\"near\"",
        "through" => "\"fra-2\"",
        "settings" => "{ discovery = { suspicion = \"9s\" } }",
        "one-way" | "without-state" => "true",
        "times" => "2",
        "stall-ms" => "70",
        _ if key.ends_with("-s") => "20",
        _ => "\"fra-1\"",
    }
}

/// An event with these keys.
fn text_of(keys: &[&str]) -> String {
    let lines = keys.iter().map(|key| format!("{key} = {}\n", sample(key)));
    format!("[[event]]\n{}", lines.collect::<String>())
}

/// The full meaning of an event: its happenings, and the settings it brings.
fn meaning(text: &str) -> Result<String, Error> {
    let scenario = with(text)?;
    let plan = timeline::expand(&scenario, 1)?;
    let plan: Vec<_> = plan.iter().map(|it| (it.at, &it.happening)).collect();
    Ok(format!("{plan:?} {:?}", Overrides::new(&scenario)?))
}

/// The keys of an event, as the format has them.
fn keys_of_events() -> Vec<String> {
    let schema = schemars::schema_for!(Event).to_value();
    schema["properties"].as_object().expect("keys").keys().cloned().collect()
}

#[test]
fn each_key_beside_each_event_has_a_meaning_or_is_refused() {
    let all = keys_of_events();
    let is_kind = |key: &str| KINDS.iter().any(|kind| kind.key == key);
    for kind in &KINDS {
        assert!(all.iter().any(|key| key == kind.key), "{} is a key", kind.key);
        for key in all.iter().map(String::as_str).filter(|key| !is_kind(key)) {
            let mut plain: Vec<&str> = vec!["at-s", kind.key];
            plain.extend(kind.needs.iter().filter(|needed| **needed != key));
            let same_kind = |it: &&Beside| it.kind.is_none_or(|of| of == kind.key);
            let beside = BESIDE.iter().filter(same_kind).find(|it| it.key == key);
            plain.extend(beside.map(|it| it.other).filter(|_| key != "every-s"));
            plain.retain(|it| *it != key);
            let place = format!("{key} beside {}", kind.key);
            let mut both = plain.clone();
            both.push(key);
            // Each of the two has no effect without the other.
            both.extend(["every-s", "times"].iter().filter(|_| matches!(key, "every-s" | "times")));
            both.sort_unstable();
            both.dedup();
            let (without, with) = (meaning(&text_of(&plain)), meaning(&text_of(&both)));
            if key == "at-s" || kind.needs.contains(&key) {
                let error = without.expect_err(&place).to_string();
                let words = format!("{} needs \"{key}\"", kind.key);
                assert!(error.contains(&words), "{place}: {error}");
                with.unwrap_or_else(|error| panic!("{place}: {error}"));
            } else if kind.takes.contains(&key) || COMMON.contains(&key) {
                let without = without.unwrap_or_else(|error| panic!("{place}: {error}"));
                let with = with.unwrap_or_else(|error| panic!("{place}: {error}"));
                assert!(with != without, "{place} is accepted and means nothing");
            } else {
                let error = with.expect_err(&place).to_string();
                let about =
                    format!("event 1 ({}, at-s = 5): \"{key}\" means nothing here", kind.key);
                assert!(error.contains(&about), "{place}: {error}");
                let takers = keys::takers(key);
                assert!(!takers.is_empty(), "{key} goes with nothing");
                assert!(takers.iter().all(|taker| error.contains(taker)), "{place}: {error}");
            }
        }
    }
}

#[test]
fn keys_that_mean_nothing_without_another_are_refused() {
    let path = |keys: &str| format!("[[path]]\nbetween = [\"fra\", \"ams\"]\n{keys}");
    let degrade = |keys: &str| {
        format!("[[event]]\nat-s = 1\ndegrade = {{ between = [\"fra\", \"ams\"], {keys} }}")
    };
    let site = |keys: &str| format!("[[site]]\nname = \"shop\"\nnodes = 1\n{keys}");
    for (wrong, right, words) in [
        (
            path("queue-ms = 9"),
            path("queue-ms = 9\nrate-mbit = 1"),
            ["path 1 (fra and ams)", "rate-mbit"],
        ),
        (
            path("loss-burst-ms = 80"),
            path("loss-burst-ms = 80\nloss-percent = 1"),
            ["loss-burst-ms", "loss-percent"],
        ),
        (
            path("jitter = \"uniform\""),
            path("jitter = \"uniform\"\njitter-ms = 1"),
            ["jitter", "jitter-ms"],
        ),
        (
            degrade("queue-ms = 9"),
            degrade("queue-ms = 9, rate-mbit = 1"),
            ["event 1 (degrade", "rate-mbit"],
        ),
        (
            "[[path]]\nbetween = [\"fra\", \"fra\"]\none-way = true".into(),
            path("one-way = true"),
            ["path 1", "one-way"],
        ),
        (
            site("nat-timeout-s = 9"),
            site("nat-timeout-s = 9\nnat = true"),
            ["site 3 (shop)", "\"nat\""],
        ),
        (site("nat-timeout-s = 9\nnat = false"), site("nat = false"), ["nat-timeout-s", "\"nat\""]),
        (
            "[[event]]\nat-s = 1\ncrash = \"fra-3\"\nwithout-state = true".into(),
            "[[event]]\nat-s = 1\ncrash = \"fra-3\"\nwithout-state = true\nfor-s = 3".into(),
            ["event 1 (crash", "for-s"],
        ),
        (
            "[[event]]\nat-s = 1\ncrash = \"all any\"\ntimes = 3".into(),
            "[[event]]\nat-s = [1, 9]\ncrash = \"all any\"\ntimes = 3".into(),
            ["times", "every-s"],
        ),
    ] {
        let error = with(&wrong).expect_err(&wrong).to_string();
        for word in words {
            assert!(error.contains(word), "{wrong}\n-> {error}\nlacks {word}");
        }
        assert!(error.starts_with("line 1") && error.contains("leave it out"), "{error}");
        with(&right).unwrap_or_else(|error| panic!("{right}\n-> {error}"));
    }
}

#[test]
fn the_way_outside_means_nothing_without_a_fallback() {
    let outside = format!("fallback-rtt-ms = 9\n{SMALL}");
    let error = Scenario::parse(&outside).expect_err("no fallback").to_string();
    assert!(error.starts_with("line 1: \"fallback-rtt-ms\" means nothing"), "{error}");
    let more = "[settings.service.kube-apiserver]\nfallback = [\"k8s.example.com:6443\"]\n";
    Scenario::parse(&format!("{outside}{more}")).expect("a fallback");
}

#[test]
fn settings_are_read_by_the_daemons_own_parser() {
    let scenario = with("[settings.discovery]\nsuspicion = \"9s\"").expect("good");
    let overrides = Overrides::new(&scenario).expect("good");
    assert_eq!(overrides.site(1).discovery.suspicion, Duration::from_secs(9));
    assert_eq!(overrides.site(1).site.as_str(), "ams");
}
