use meshport_daemon::admin::metrics::{Value, by_name};

use super::*;

fn sample(name: &str, labels: &[&str], value: f64) -> Sample {
    let metric = by_name(name).expect("a metric");
    let labels = labels.iter().map(|text| (*text).to_owned()).collect();
    Sample { metric, labels, value: Value::Number(value) }
}

#[test]
fn what_overflows_is_noticed() {
    let dropped = |reason, value| sample("meshport_discovery_dropped_total", &[reason], value);
    let open = |side, value| sample("meshport_sessions_open", &["any", side], value);
    let fine = [
        dropped("malformed", 9.0),
        dropped("events", 0.0),
        open("client", 10.0),
        open("served", 11.0),
        open("relayed", 2.0),
        sample("meshport_leaves", &[], 3.0),
    ];
    assert_eq!(overflow(&fine, MAX_MEMBERS, 10.0, 2.0), None);
    assert!(overflow(&fine, MAX_MEMBERS + 1, 10.0, 2.0).is_some());
    for (bad, word) in [
        (dropped("transmits", 1.0), "transmits"),
        (open("client", 11.0), "client"),
        (open("relayed", 3.0), "relayed"),
        (sample("meshport_leaves", &[], 1e9), "leaves"),
    ] {
        let what = overflow(&[bad], 1, 10.0, 2.0).unwrap_or_default();
        assert!(what.contains(word), "{what}");
    }
}

#[test]
fn a_count_that_does_not_add_up_is_noticed() {
    let page = |counts: [f64; 5]| {
        let [accepted, outcomes @ ..] = counts;
        let names = ["connected", "failed", "abandoned", "over-limit"];
        let one = |(name, value)| sample("meshport_sessions_total", &["any", name], value);
        let accepted = sample("meshport_sessions_accepted_total", &["any"], accepted);
        let outcomes = names.into_iter().zip(outcomes).map(one);
        outcomes.chain([accepted]).collect::<Vec<_>>()
    };
    let good = page([10.0, 6.0, 1.0, 2.0, 1.0]);
    assert_eq!(unbalanced(&good, 0, 6), None);
    // A session whose instance sent nothing after the connection.
    assert_eq!(unbalanced(&good, 0, 5), None);
    let says = |what: Option<String>, word: &str| {
        assert!(what.as_ref().is_some_and(|what| what.contains(word)), "{what:?}");
    };
    says(unbalanced(&good, 1, 6), "1 sessions are still open");
    says(unbalanced(&good, 0, 7), "7 sessions, 6");
    says(unbalanced(&page([10.0, 6.0, 1.0, 2.0, 0.0]), 0, 6), "10 clients accepted");
}
