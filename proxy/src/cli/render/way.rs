//! `meshport explain --node`: the way back to a node.

use meshport_core::units::clean;
use meshport_daemon::admin::wayback::WayReport;

/// A line for each known fact.
pub(crate) fn way(node: &str, report: &WayReport) -> String {
    let list = |all: &[String]| match all.is_empty() {
        true => "none known".to_owned(),
        false => all.join(", "),
    };
    let mut lines = vec![
        ("node", node.to_owned()),
        ("member", report.who.clone().unwrap_or_else(|| "none".into())),
        ("kubelet", format!("port {}", report.kubelet_port)),
        ("addresses", list(&report.addresses)),
        ("pods", list(&report.pod_cidrs)),
        ("paths", list(&report.paths)),
    ];
    lines.extend(report.problem.iter().map(|problem| ("problem", problem.clone())));
    if !report.has_socket {
        lines.push(("socket", "none here: `egress.socket` is not set".into()));
    } else if report.known_nodes == 0 {
        lines.push(("nodes", "Kubernetes was not queried: no cluster-kubeconfig".into()));
    }
    let line = |(what, said): (&str, String)| format!("{what:<11}{}\n", clean(&said));
    lines.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_shown_with_its_member_its_paths_and_what_is_wrong() {
        let report = WayReport {
            kubelet_port: 10_250,
            addresses: vec!["10.0.0.7".into()],
            who: Some("worker-7 in fra".into()),
            paths: vec!["direct".into(), "through relay-1".into()],
            problem: Some("worker-7 in fra has been down for 40 s".into()),
            has_socket: true,
            known_nodes: 3,
            ..WayReport::default()
        };
        let expected = "\
node       worker-7
member     worker-7 in fra
kubelet    port 10250
addresses  10.0.0.7
pods       none known
paths      direct, through relay-1
problem    worker-7 in fra has been down for 40 s
";
        assert_eq!(way("worker-7", &report), expected);
        let bare = way("a", &WayReport::default());
        assert!(bare.contains("member     none\n") && bare.contains("egress.socket"), "{bare}");
    }
}
