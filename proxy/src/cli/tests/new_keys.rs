//! New keys of a node: what they require, and which node they succeed.

use meshport_mesh::is_same_shard;

use super::*;

#[test]
fn new_keys_take_an_issuer_and_the_key_they_follow() {
    let (machines, line) = Machines::with_line(&[]);
    machines.join("second", &line, NAMED).expect("it joins");
    let later = NOW.saturating_add(DAY / 2);
    let make = |machine: &str, words: &[&str]| {
        let words = [&["rotate-key"], words].concat();
        let Verb::RotateKey(args) = verb(&words) else { panic!("it is rotate-key") };
        rotate_key::make(&machines.state(machine), &args, later)
    };
    for (machine, words) in [("first", &[][..]), ("second", &[line.as_str()])] {
        let state = machines.state(machine);
        let before = state.identity(later).expect("whole");
        let next = make(machine, words).expect("signed");
        let (known, new) = (&before.credential, &next.credential);
        assert_eq!((&known.name, &known.site), (&new.name, &new.site));
        assert_ne!((known.node, known.record_key), (new.node, new.record_key));
        assert!(is_same_shard(&known.node, &new.node), "its peers' sessions stay where they are");
        let end = new.ends_former().expect("it has a former one");
        assert!(end.covers(known) && !end.covers(new));
        assert_eq!(state.identity(later).expect("whole").credential, before.credential);
        state.store_next(&next).expect("stored");
        state.settle_next().expect("stored");
        assert_eq!(&state.identity(later).expect("whole").credential, new);
        // A renewal keeps naming its predecessor.
        let Verb::Renew(args) = verb(&[&["renew"], words].concat()) else { panic!("it is renew") };
        let (_, renewed) = renew::sign(&state, &args, later).expect("good");
        assert_eq!(renewed.ends_former().as_ref(), Some(&end));
    }
    // A machine that joins from scratch does not become the node of an earlier attempt.
    let state = machines.state("second");
    let known = state.credential().expect("whole").expect("there is one");
    let next = make("second", &[&line]).expect("signed");
    let (new, node) = (Joined::of(&next.credential), next.credential.node);
    for who in [rotate_key::Who::New(new), rotate_key::Who::AsBefore { node }] {
        let said = rotate_key::Outcome { who, former: None, is_new: true, in_force: false };
        let said = serde_json::to_string(&said).expect("it is plain");
        assert_eq!(said.matches(&format!(r#""node":"{node}""#)).count(), 1, "{said}");
    }
    state.store_next(&next).expect("stored");
    machines.join("second", &line, FORCED).expect("it joins again");
    state.settle_next().expect("nothing is left");
    assert_eq!(state.identity(later).expect("whole").credential.node, known.node);
    // Not without a signature, not in another name or mesh, not for an operator's machine.
    assert!(message(make("second", &[])).contains("meshport rotate-key INVITE"));
    let named = machines.invite("first", &[HERE, &["--name", "other"]].concat());
    let operator = machines.invite("first", &[HERE, &["--role", "operator"]].concat());
    let (_others, foreign) = Machines::with_line(&[]);
    for line in [named, operator].map(|it| it.expect("a line").invite).iter().chain([&foreign]) {
        assert!(make("second", &[line]).is_err());
    }
    machines.state("second").identity(later).expect("nothing was written");
}
