//! Events of this node's Node object, as `kubectl describe node` shows them.

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Uri};
use meshport_config::{NodeName, UnixSeconds};
use meshport_core::journal::{Event, Kind};
use serde_json::json;

use super::PostError;
use crate::kubernetes::access::Access;
use crate::kubernetes::roster::{ListError, Source};

/// Where Events of objects without a namespace are kept.
const PATH: &str = "/api/v1/namespaces/default/events";
/// The component that writes the events.
const COMPONENT: &str = "meshport";

/// An Event (core/v1) of the Node object with this node's name. Its `uid` is the name, as in the
/// kubelet's own Events.
pub(super) fn body(node: &NodeName, kind: Kind, event: &Event, at: UnixSeconds) -> Vec<u8> {
    let (node, at) = (node.as_str(), at.to_string());
    let service = event.service.as_ref().map(|it| format!("{it}: ")).unwrap_or_default();
    let (reason, severity) = match kind {
        Kind::Route => ("MeshRouteChanged", "Normal"),
        Kind::Instance => ("MeshInstanceChanged", "Normal"),
        _ => ("MeshSessionsReset", "Warning"),
    };
    super::json(&json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": { "generateName": format!("{node}."), "namespace": "default" },
        "involvedObject": { "apiVersion": "v1", "kind": "Node", "name": node, "uid": node },
        "reason": reason,
        "message": format!("{service}{}", event.detail),
        "type": severity,
        "source": { "component": COMPONENT, "host": node },
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
        "reportingComponent": COMPONENT,
        "reportingInstance": node,
    }))
}

/// Creates these Events one by one, up to the first failure.
pub(super) async fn post(source: &Source, bodies: Vec<Vec<u8>>) -> Result<(), PostError> {
    // Read each time: tokens and certificates are replaced in place.
    let access = Access::read(&source.kubeconfig).await.map_err(ListError::from)?;
    for body in bodies {
        let mut request = Request::new(Full::new(Bytes::from(body)));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = Uri::from_static(PATH);
        let json = HeaderValue::from_static("application/json");
        request.headers_mut().insert(CONTENT_TYPE, json);
        match source.exchange(&access, request).await? {
            (200..=299, _) => {}
            (401, _) => return Err(ListError::Unauthorized.into()),
            (403, _) => return Err(PostError::Forbidden),
            (status, _) => return Err(ListError::Status(status).into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use meshport_config::ServiceName;
    use meshport_core::journal::Journal;
    use serde_json::Value;

    use super::*;
    use crate::clock;

    fn written(kind: Kind, detail: &str, now: Instant) -> Value {
        let mut journal = Journal::default();
        journal.note_service(kind, &ServiceName::kube_apiserver(), detail, now);
        let (kind, event) = journal.iter().next().expect("it was noted");
        let name = "worker-7.fra".parse().expect("a name");
        serde_json::from_slice(&body(&name, kind, event, UnixSeconds(1_800_000_000)))
            .expect("it is JSON")
    }

    #[test]
    fn an_event_names_the_node_what_happened_and_when() {
        let event = written(Kind::Route, "cp-1 to cp-2: refusing", clock::now());
        assert_eq!(event["involvedObject"]["name"], "worker-7.fra");
        assert_eq!(event["message"], "kube-apiserver: cp-1 to cp-2: refusing");
        assert_eq!(event["reason"], "MeshRouteChanged");
        assert_eq!(event["lastTimestamp"], "2027-01-15T08:00:00Z");
        assert_eq!(event["metadata"]["generateName"], "worker-7.fra.");
        let reset = written(Kind::Reset, "3 to cp-1: it hangs", clock::now());
        assert_eq!(
            (&reset["type"], &reset["reason"]),
            (&"Warning".into(), &"MeshSessionsReset".into())
        );
    }
}
