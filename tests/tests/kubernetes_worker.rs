//! A worker of a real cluster: kubectl and a controller manager that know nothing but
//! `https://127.0.0.1:7445`.

use std::time::Duration;

use meshport_tests::kubernetes::{
    Beat, Cluster, LOCAL, Plan, SETTLE_LIMIT, WORKER, Watch, Watchers,
};
use meshport_tests::wait;

#[test]
#[ignore = "needs root and tests/kubernetes/build; ./tests/run kubernetes-smoke"]
fn kubectl_gets_applies_and_watches() {
    let mut cluster = Cluster::new(Plan::default());
    let kubectl = cluster.kubectl(WORKER);
    kubectl.apply("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: mine}\ndata: {a: b}\n");
    assert_eq!(kubectl.ok(&["get", "configmap", "mine", "-o", "jsonpath={.data.a}"]), "b");

    let _beat = Beat::start(&cluster, 2);
    let watch = Watch::start(&kubectl);
    let python = Watchers::start(&cluster, WORKER, LOCAL, 2);
    assert!(watch.ends().is_empty(), "kubectl ended by itself");
    drop(python);

    cluster.start_controllers("controllers", WORKER);
    kubectl.ok(&["create", "namespace", "made"]);
    wait::until("the controllers fill a new namespace", SETTLE_LIMIT, || {
        kubectl
            .run(&["-n", "made", "get", "serviceaccount", "default"])
            .status
            .success()
            .then_some(())
    });
    assert!(cluster.process("controllers").is_running());
    assert!(
        watch.arrivals().longest_gap(wait::now() - Duration::from_secs(2), wait::now())
            < Duration::from_secs(2)
    );
}
