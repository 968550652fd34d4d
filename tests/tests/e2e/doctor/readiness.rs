//! Origins that answer but are not ready.

use super::*;

fn detail(world: &World) -> Option<String> {
    let status = world.at("worker").status()?;
    let findings = status["findings"].as_array()?.clone();
    let found = findings.into_iter().find(|it| it["id"] == "MP311")?;
    found["detail"].as_str().map(str::to_owned)
}

#[test]
fn that_no_origin_is_ready_is_an_error_until_one_is() {
    let mut lab = lab();
    lab.world.set_ready("cp-a", false);
    wait::until("the worker uses the other one", SETTLE, || {
        (lab.world.at("worker").chosen()? == "cp-b").then_some(())
    });
    assert_eq!(detail(&lab.world), None, "one is ready");

    lab.world.set_ready("cp-b", false);
    until_known(&lab.world, "worker", "MP311");
    let both = "kube-apiserver: none of its 2 origins is ready; sessions go to ";
    wait::until("both are known to be unready", SETTLE, || {
        detail(&lab.world)?.starts_with(both).then_some(())
    });
    let none = examine(&mut lab, "worker", "no apiserver is ready");
    assert_eq!((none.ids(), none.code), (vec!["MP311"], Some(1)));
    assert!(none.detail("MP311").starts_with(both), "{}", none.detail("MP311"));
    assert_eq!(lab.world.get("worker", "/version").status, 200, "it still serves");

    lab.world.set_ready("cp-a", true);
    wait::until("it is over", SETTLE, || detail(&lab.world).is_none().then_some(()));
    assert_eq!(lab.world.at("worker").chosen().as_deref(), Some("cp-a"));
    let log = lab.world.node_mut("worker").process().output();
    let [begins, ends] = ["no origin is ready; sessions go to", "an origin is ready again"]
        .map(|text| log.find(text).unwrap_or_else(|| panic!("no {text:?} in {log}")));
    assert!(begins < ends, "{log}");
}
