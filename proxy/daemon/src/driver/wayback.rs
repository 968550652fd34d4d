//! The driver's answers about targets of the way back.

use meshport_config::{Endpoint, Host, NodeId};
use meshport_core::node::{Destination, Known};
use meshport_core::route::Line;
use meshport_core::wayback::nodes::NodeObject;
use meshport_core::wayback::{Refusal, Refused};

use crate::Error;
use crate::admin::wayback::{WayReport, WayRequest};
use crate::clock;
use crate::driver::Driver;
use crate::driver::answers::{Answer, Asker};
use crate::wayback::tunnel;

/// The node that serves a target, and the paths to it.
#[derive(Debug)]
pub(crate) struct FindTarget(pub(crate) Endpoint);

impl Answer for FindTarget {
    type Reply = Result<Destination, Refused>;

    fn answer(self, driver: &mut Driver, to: Asker<Self::Reply>) {
        // The requester may be gone.
        let _ = to.send(Ok(find(driver, &self.0)));
    }
}

fn find(driver: &Driver, target: &Endpoint) -> Result<Destination, Refused> {
    let back = &driver.state.process.way_back;
    let (nodes, egress) = (back.nodes(), back.egress());
    let known = Known {
        nodes: nodes.as_deref(),
        addresses: &egress.nodes,
        services: &egress.service_cidrs,
        own: &driver.state.identity.credential,
        tunnel: |node: &NodeId| tunnel(&driver.mesh, node),
    };
    driver.core.find_target(target, &known, clock::wall())
}

impl Answer for WayRequest {
    type Reply = WayReport;

    fn answer(self, driver: &mut Driver, to: Asker<Self::Reply>) {
        let back = &driver.state.process.way_back;
        let nodes = back.nodes();
        let object = nodes.as_ref().and_then(|nodes| nodes.get(&self.node)).cloned();
        let object = object.unwrap_or_else(|| NodeObject::named(self.node.as_str()));
        let mut report = WayReport {
            kubelet_port: object.kubelet_port,
            addresses: object.addresses.iter().map(ToString::to_string).collect(),
            pod_cidrs: object.pod_cidrs.iter().map(ToString::to_string).collect(),
            has_socket: back.egress().socket.is_some(),
            known_nodes: nodes.map_or(0, |nodes| nodes.len() as u64),
            ..WayReport::default()
        };
        let target = Endpoint::new(Host::Name(self.node), object.kubelet_port);
        let found = match target {
            Ok(target) => find(driver, &target),
            Err(error) => Err(Refused::new(Refusal::Unknown, error.to_string())),
        };
        match found {
            Ok(Destination { who, paths, .. }) => {
                let node = paths.first().and_then(Line::origin);
                report.problem = node.and_then(|node| driver.core.absence(&node, clock::now()));
                report.who = Some(who);
                report.paths = paths.iter().map(|line| in_words(driver, line)).collect();
            }
            Err(Refused { why: Refusal::Unknown, said }) => {
                let _ = to.send(Err(Error::Usage(said)));
                return;
            }
            Err(refused) => report.problem = Some(refused.said),
        }
        let _ = to.send(Ok(report));
    }
}

fn in_words(driver: &Driver, line: &Line) -> String {
    match line {
        Line::Direct(node) if driver.mesh.is_own(node) => "on this machine".into(),
        Line::Direct(_) => "direct".into(),
        Line::Relayed { relay, .. } => {
            format!("through {}", driver.reporter().name(relay))
        }
        Line::Outside(address) => address.to_string(),
    }
}

/// Explains why this node is absent; `None` if it is present.
#[derive(Debug)]
pub(crate) struct IsAbsent(pub(crate) NodeId);

impl Answer for IsAbsent {
    type Reply = Option<String>;

    fn answer(self, driver: &mut Driver, to: Asker<Self::Reply>) {
        let _ = to.send(Ok(driver.core.absence(&self.0, clock::now())));
    }
}
