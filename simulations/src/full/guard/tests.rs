use super::*;

fn sample(name: &'static str, labels: &[(&'static str, &str)], value: f64) -> Sample {
    let labels = labels.iter().map(|(key, text)| (*key, (*text).to_owned())).collect();
    Sample { name, help: "", counter: false, labels, value }
}

#[test]
fn what_overflows_is_noticed() {
    let event = |event, value| sample("discovery_events", &[("event", event)], value);
    let open = |side, value| sample("sessions_open", &[("side", side)], value);
    let fine = [
        event("sent_packets", 9.0),
        event("dropped_events", 0.0),
        open("client", 10.0),
        open("served", 11.0),
        open("relayed", 2.0),
        sample("leaves", &[], 3.0),
    ];
    assert_eq!(overflow(&fine, MAX_MEMBERS, 10.0, 2.0), None);
    assert!(overflow(&fine, MAX_MEMBERS + 1, 10.0, 2.0).is_some());
    for (bad, word) in [
        (event("dropped_transmits", 1.0), "dropped_transmits"),
        (open("client", 11.0), "client"),
        (open("relayed", 3.0), "relayed"),
        (sample("leaves", &[], 1e9), "leaves"),
    ] {
        let what = overflow(&[bad], 1, 10.0, 2.0).unwrap_or_default();
        assert!(what.contains(word), "{what}");
    }
}

#[test]
fn what_overflows_has_a_metric_of_that_name() {
    let counters = serde_json::to_value(meshport_discovery::Counters::default()).expect("counters");
    for name in OVERFLOWS {
        assert!(counters.get(name).is_some(), "{name} is no counter");
    }
}

#[test]
fn a_count_that_does_not_add_up_is_noticed() {
    let page = |counts: [f64; 5]| {
        let events = ["accepted", "connected", "failed", "abandoned", "over-limit"];
        let one =
            |(event, value)| sample("sessions", &[("service", "any"), ("event", event)], value);
        events.into_iter().zip(counts).map(one).collect::<Vec<_>>()
    };
    let good = page([10.0, 6.0, 1.0, 2.0, 1.0]);
    assert_eq!(unbalanced(&good, 0, 6), None);
    // One whose instance said nothing after its node had connected it.
    assert_eq!(unbalanced(&good, 0, 5), None);
    let says = |what: Option<String>, word: &str| {
        assert!(what.as_ref().is_some_and(|what| what.contains(word)), "{what:?}");
    };
    says(unbalanced(&good, 1, 6), "1 sessions are open");
    says(unbalanced(&good, 0, 7), "7 sessions, 6");
    says(unbalanced(&page([10.0, 6.0, 1.0, 2.0, 0.0]), 0, 6), "10 clients accepted");
}
