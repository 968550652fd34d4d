//! The network namespaces in which these tests run.

use meshport_tests::netns::{Namespace, cable};

#[test]
#[ignore = "needs root: part of ./tests/run interop"]
fn two_hosts_reach_each_other() {
    let (a, b) = (Namespace::new(), Namespace::new());
    cable(&a, "10.77.0.1/24", &b, "10.77.0.2/24");
    assert!(a.succeeds("ping", &["-c", "1", "-W", "5", "10.77.0.2"]));
    assert!(!a.succeeds("ping", &["-c", "1", "-W", "1", "10.77.0.3"]));
}
