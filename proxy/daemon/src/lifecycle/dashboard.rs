//! Serves any node's dashboard on a loopback address of an operator's machine.
//!
//! A leaf has tunnels to a few members. One of them answers for itself or relays the request to the
//! requested node ([`meshport_core::remote_view`]). The leaf first tries the node itself, then the
//! nearest member, then the others by id. The page itself is part of this program.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::header::{CACHE_CONTROL, ETAG, HeaderValue, IF_NONE_MATCH};
use hyper::{Method, Request, StatusCode};
use meshport_config::{NodeId, NodeName};
use meshport_core::remote_view::{
    MAX_REPLY_BYTES, Reply as ViewReply, Request as ViewRequest, Tag,
};
use meshport_core::route::Route;
use meshport_core::wire::Answer;
use meshport_mesh::Mesh;
use serde::Deserialize;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::admin::local_server::{self, parameter};
use crate::admin::page::{Addition, Page};
use crate::admin::reply::{Reply, complaint, json};
use crate::exchange::{self, Unanswered};

/// Maximum number of members tried for one view, one at a time.
const MAX_ASKED: usize = 3;
/// Timeout per member, including a new tunnel from it to the node.
const LIMIT: Duration = Duration::from_secs(6);
/// Maximum number of cached names: twice the number in a view.
const MAX_NAMES: usize = 2 * crate::admin::view::MAX_NODES;

/// Why there is no view.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ViewError {
    /// No member has a tunnel with this machine.
    #[error("no member of the mesh answers")]
    NoMember,
    /// No node in the views that were read has that name.
    #[error("no member that answered knows a node named {0}")]
    UnknownNode(String),
    /// The node does not let this machine read its view.
    #[error("the node refuses: this machine's credential lacks the role operator there")]
    NotAllowed,
    /// The node, or the member that should relay the request, runs an earlier version.
    #[error("it runs an earlier version of meshport, whose dashboard is local only")]
    Older,
    /// None of the members tried can reach the node.
    #[error("{0}")]
    Unreachable(String),
}

/// Reads views through a leaf's mesh. Clones share the cache.
#[derive(Debug, Clone)]
pub struct Viewer {
    mesh: Mesh,
    routes: watch::Receiver<Arc<Route>>,
    names: Arc<Mutex<BTreeMap<NodeName, NodeId>>>,
}

/// The part of a view that is parsed here: its nodes.
#[derive(Deserialize)]
struct Names {
    nodes: Vec<Named>,
}

#[derive(Deserialize)]
struct Named {
    node: NodeId,
    name: NodeName,
    liveness: String,
}

impl Viewer {
    pub(super) fn new(mesh: Mesh, routes: watch::Receiver<Arc<Route>>) -> Self {
        Self { mesh, routes, names: Arc::default() }
    }

    /// The view of the node with this name, or of the nearest member without one. The reply has no
    /// document if its tag is still `tag`.
    pub async fn view(&self, node: Option<&str>, tag: Tag) -> Result<ViewReply, ViewError> {
        let node = match node {
            None => None,
            Some(text) => Some(self.find(text).await?),
        };
        self.ask_members(node, tag).await
    }

    async fn find(&self, text: &str) -> Result<NodeId, ViewError> {
        let unknown = || ViewError::UnknownNode(text.to_owned());
        let name: NodeName = text.parse().map_err(|_| unknown())?;
        if let Some(known) = self.known(&name) {
            return Ok(known);
        }
        self.ask_members(None, 0).await?;
        self.known(&name).ok_or_else(unknown)
    }

    fn known(&self, name: &NodeName) -> Option<NodeId> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner).get(name).copied()
    }

    async fn ask_members(&self, node: Option<NodeId>, tag: Tag) -> Result<ViewReply, ViewError> {
        let mut last = ViewError::NoMember;
        for member in self.members(node) {
            let request = ViewRequest::new(node.filter(|node| *node != member), tag);
            let asked = timeout(LIMIT, self.ask(member, &request)).await;
            let late = |_| ViewError::Unreachable(format!("no answer within {LIMIT:?}"));
            match asked.map_err(late).flatten() {
                Ok(reply) => {
                    self.remember(&reply);
                    return Ok(reply);
                }
                // The node itself answered; other members would get the same answer.
                Err(error @ ViewError::NotAllowed) => return Err(error),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// The members to try, among those with a tunnel: the node itself, the first hop to the nearest
    /// origin, then the others.
    fn members(&self, node: Option<NodeId>) -> Vec<NodeId> {
        let peers = self.mesh.peers().into_iter().filter(|peer| peer.session && peer.admitted);
        let mut members: Vec<NodeId> = peers.map(|peer| peer.node).collect();
        let nearest = {
            let route = self.routes.borrow();
            route.choice().and_then(|first| first.origin.line.first_hop())
        };
        members.sort_by_key(|member| (Some(*member) != node, Some(*member) != nearest, *member));
        members.truncate(MAX_ASKED);
        members
    }

    async fn ask(&self, member: NodeId, request: &ViewRequest) -> Result<ViewReply, ViewError> {
        let broken = |why: String| ViewError::Unreachable(why);
        let opened = self.mesh.open_stream(member).await;
        let mut stream = opened.map_err(|error| broken(error.to_string()))?;
        let request = request.encode();
        let asked = exchange::ask(&mut stream, request, MAX_REPLY_BYTES, ViewReply::decode).await;
        asked.map_err(|why| match why {
            Unanswered::Older | Unanswered::Refused(Answer::BadRequest) => ViewError::Older,
            Unanswered::Refused(Answer::NotAllowed) => ViewError::NotAllowed,
            Unanswered::Refused(Answer::NoPath) => {
                broken("the member that was asked cannot reach the node".into())
            }
            Unanswered::Refused(answer) => broken(format!("the node answers {answer}")),
            Unanswered::Broken(why) => broken(why),
        })
    }

    fn remember(&self, reply: &ViewReply) {
        let Some(document) = &reply.document else { return };
        // The document of a later version may have another schema; then its names stay unknown.
        let Ok(Names { mut nodes }) = serde_json::from_str(document) else { return };
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        if names.len() + nodes.len() > MAX_NAMES {
            names.clear();
        }
        // A previous node may have had the same name: the live one wins.
        nodes.sort_by_key(|it| it.liveness == "alive");
        names.extend(nodes.into_iter().map(|it| (it.name, it.node)));
    }
}

/// Serves the page; never returns.
pub async fn serve(listener: TcpListener, viewer: Viewer) {
    let page = Arc::new(Page::with(Addition {
        style: include_str!("../admin/page/dashboard.css"),
        body: include_str!("../admin/page/dashboard.html"),
        script: include_str!("../admin/page/dashboard.js"),
    }));
    local_server::serve(listener, move |request| {
        let (page, viewer) = (page.clone(), viewer.clone());
        async move { answer(&page, &viewer, &request).await }
    })
    .await;
}

async fn answer<B>(page: &Page, viewer: &Viewer, request: &Request<B>) -> Reply {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return complaint(StatusCode::METHOD_NOT_ALLOWED, "only GET is allowed here");
    }
    match request.uri().path() {
        "/" => page.answer(),
        "/view" => {
            let node = parameter(request.uri().query(), "node");
            let known = request.headers().get(IF_NONE_MATCH).and_then(tag_of).unwrap_or(0);
            match viewer.view(node.as_deref(), known).await {
                Ok(reply) => document(reply),
                Err(error) => {
                    let status = match error {
                        ViewError::UnknownNode(_) => StatusCode::NOT_FOUND,
                        ViewError::NotAllowed => StatusCode::FORBIDDEN,
                        ViewError::Older => StatusCode::NOT_IMPLEMENTED,
                        ViewError::NoMember | ViewError::Unreachable(_) => StatusCode::BAD_GATEWAY,
                    };
                    complaint(status, &error.to_string())
                }
            }
        }
        _ => complaint(StatusCode::NOT_FOUND, "no such page; available: / /view"),
    }
}

fn document(reply: ViewReply) -> Reply {
    let mut answer = match reply.document {
        Some(document) => json(StatusCode::OK, document),
        None => {
            let mut answer = Reply::default();
            *answer.status_mut() = StatusCode::NOT_MODIFIED;
            answer
        }
    };
    if let Ok(tag) = HeaderValue::from_str(&format!("W/\"{:016x}\"", reply.tag)) {
        answer.headers_mut().insert(ETAG, tag);
        answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    }
    answer
}

/// Parses a tag from a header that this program wrote.
fn tag_of(header: &HeaderValue) -> Option<Tag> {
    let text = header.to_str().ok()?.strip_prefix("W/\"")?.strip_suffix('"')?;
    Tag::from_str_radix(text, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_round_trips_through_its_header() {
        for tag in [1, 0x0123_4567_89ab_cdef, Tag::MAX] {
            let answer = document(ViewReply { tag, document: None });
            assert_eq!(answer.status(), StatusCode::NOT_MODIFIED);
            assert_eq!(tag_of(&answer.headers()[ETAG]), Some(tag));
        }
        for other in ["", "W/\"\"", "\"7\"", "W/\"7", "*"] {
            assert_eq!(tag_of(&HeaderValue::from_static(other)), None, "{other}");
        }
    }
}
