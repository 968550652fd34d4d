//! Asks members about this node, for `meshport doctor`: see [`meshport_core::inquiry`].
//!
//! Asks at most [`MAX_ASKED`] members in parallel, each within [`LIMIT`]; requests a call-back from
//! up to [`MAX_CALLERS`] of them, at different sites. `egress::inquiry` answers.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use meshport_config::{NodeId, SiteName};
use meshport_core::inquiry::{
    Account, Asked, Call, CallToken, Heard, LocalFacts, MAX_TESTIMONY_BYTES, Question, Testimony,
    judge,
};
use meshport_mesh::Mesh;
use rand::rngs::StdRng;
use rand::{RngCore, SeedableRng};
use tokio::sync::{Semaphore, broadcast, oneshot};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::Error;
use crate::admin::api::{FindingRow, NodeRef};
use crate::admin::inquire::{InquiryReport, MemberAnswer};
use crate::clock;
use crate::exchange::{self, Unanswered};

/// How long one member may take, including a new tunnel if needed.
pub(crate) const LIMIT: Duration = Duration::from_secs(2);
/// Members asked at once: enough to tell whether a member is the odd one out or this node.
pub(crate) const MAX_ASKED: usize = 16;
/// Members that call back: one would suffice, but each may be behind a firewall.
const MAX_CALLERS: usize = 4;
/// How long after an answer a call-back may arrive: it is repeated within this time.
const CALL_PATIENCE: Duration = Duration::from_millis(500);
/// One inquiry at a time: they share the expected tokens, and only people start them.
static UNDER_WAY: Semaphore = Semaphore::const_new(1);
/// Call-backs queued between the driver and the inquiry.
pub(crate) const MAX_CALLS: usize = 16;

/// A call-back that arrived.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Called {
    pub(crate) token: CallToken,
    pub(crate) from: SocketAddr,
}

/// The members to ask, and the facts that their answers are compared with.
pub(crate) struct Inquiry {
    pub(crate) mesh: Mesh,
    pub(crate) members: Vec<NodeRef>,
    pub(crate) own: LocalFacts,
    pub(crate) calls: broadcast::Receiver<Called>,
    /// New at every inquiry; tokens are drawn from it.
    pub(crate) seed: [u8; 32],
}

/// A member and the questions for it.
struct Errand {
    who: NodeRef,
    question: Question,
}

/// The result for one member.
struct Return {
    who: NodeRef,
    heard: Result<Answered, Heard>,
}

/// An answer and when it arrived.
struct Answered {
    testimony: Testimony,
    rtt: Duration,
    /// Estimate of this machine's time of day when the answer was sent.
    wall: Duration,
}

/// Asks all of them, then answers.
pub(crate) fn start(inquiry: Inquiry, to: oneshot::Sender<Result<InquiryReport, Error>>) {
    let Ok(permit) = UNDER_WAY.try_acquire() else {
        // A requester that is gone needs no answer.
        let _ = to.send(Err(Error::Refused("another inquiry is under way; try again".into())));
        return;
    };
    tokio::spawn(async move {
        let _permit = permit;
        let _ = to.send(Ok(inquiry.run().await));
    });
}

impl Inquiry {
    async fn run(mut self) -> InquiryReport {
        let errands = self.errands();
        let tokens: BTreeMap<NodeId, CallToken> =
            errands.iter().filter_map(|it| Some((it.who.node, it.question.call?))).collect();
        let expected: Vec<CallToken> = tokens.values().copied().collect();
        self.mesh.expect_calls(&expected);
        let mut asked = JoinSet::new();
        for (at, errand) in errands.into_iter().enumerate() {
            let mesh = self.mesh.clone();
            asked.spawn(async move { (at, errand.run(&mesh).await) });
        }
        let mut returns = asked.join_all().await;
        returns.sort_by_key(|(at, _)| *at);
        let returns: Vec<Return> = returns.into_iter().map(|(_, it)| it).collect();
        let sent = returns.iter().filter(|it| it.is_calling()).count();
        let arrived = self.arrived(sent).await;
        self.mesh.expect_calls(&[]);
        let has_called =
            |node: &NodeId| tokens.get(node).is_some_and(|token| arrived.contains(token));
        self.report(returns, has_called)
    }

    /// The first members of different sites are asked to call back.
    fn errands(&mut self) -> Vec<Errand> {
        let mut random = StdRng::from_seed(self.seed);
        let mut sites: BTreeSet<SiteName> = BTreeSet::new();
        let mut callers = 0;
        let mut members = std::mem::take(&mut self.members);
        members.truncate(MAX_ASKED);
        // One member of each site before a second member of any.
        members.sort_by_cached_key(|who| !sites.insert(who.site.clone()));
        let errand = |who| {
            let call = (callers < MAX_CALLERS).then(|| {
                let mut token = CallToken::default();
                random.fill_bytes(&mut token);
                token
            });
            callers += 1;
            Errand { who, question: Question { call } }
        };
        members.into_iter().map(errand).collect()
    }

    /// The tokens that came back, once all have or the time is up.
    async fn arrived(&mut self, sent: usize) -> BTreeSet<CallToken> {
        let mut arrived = BTreeSet::new();
        let take = async {
            while arrived.len() < sent {
                match self.calls.recv().await {
                    Ok(Called { token, from }) => {
                        tracing::debug!(%from, "a member has called back");
                        arrived.insert(token);
                    }
                    // Some were dropped, or the daemon is stopping.
                    Err(_) => return,
                }
            }
        };
        tokio::select! {
            () = take => {}
            () = sleep(CALL_PATIENCE) => {}
        }
        arrived
    }

    fn report(&self, returns: Vec<Return>, has_called: impl Fn(&NodeId) -> bool) -> InquiryReport {
        let (mut asked, mut members) = (Vec::new(), Vec::new());
        for Return { who, heard } in returns {
            let has_called = has_called(&who.node);
            let rtt = heard.as_ref().ok().map(|it| it.rtt);
            let heard = match heard {
                Ok(Answered { testimony, wall, .. }) => {
                    let ahead_s = ahead_s(testimony.wall_s, wall);
                    Heard::Answer(Box::new(Account { testimony, ahead_s, has_called }))
                }
                Err(heard) => heard,
            };
            let name = who.name.to_string();
            members.push(self.row(who, &heard, rtt));
            asked.push(Asked { name, heard });
        }
        let findings = judge(&self.own, &asked);
        InquiryReport {
            members,
            udp_in: udp_in(&self.own, &asked),
            findings: findings.iter().map(FindingRow::from).collect(),
        }
    }

    fn row(&self, who: NodeRef, heard: &Heard, rtt: Option<Duration>) -> MemberAnswer {
        let mtu_to_bytes = self.mesh.path_mtu(&who.node);
        let empty = MemberAnswer {
            who,
            outcome: "older".into(),
            problem: None,
            version: None,
            rtt_ms: rtt.map(|rtt| (rtt.as_secs_f64() * 1e6).round() / 1e3),
            clock_ahead_s: None,
            sees_this_node_at: None,
            mtu_to_bytes: None,
            mtu_from_bytes: None,
            call: None,
        };
        match heard {
            Heard::Older => empty,
            Heard::Silent(why) => {
                MemberAnswer { outcome: "silent".into(), problem: Some(why.clone()), ..empty }
            }
            Heard::Answer(account) => MemberAnswer {
                outcome: "answered".into(),
                version: Some(account.testimony.version.clone()),
                clock_ahead_s: Some(account.ahead_s),
                sees_this_node_at: account.testimony.sees_you_at,
                mtu_to_bytes,
                mtu_from_bytes: account.testimony.mtu,
                call: Some(call(account).into()),
                ..empty
            },
        }
    }
}

/// Seconds by which a member's clock is ahead.
fn ahead_s(theirs_s: u64, ours: Duration) -> i64 {
    let [theirs, ours] = [theirs_s, ours.as_secs()].map(|it| i64::try_from(it).unwrap_or(i64::MAX));
    theirs.saturating_sub(ours)
}

fn call(account: &Account) -> &'static str {
    match account.testimony.call {
        Call::Sent(_) if account.has_called => "arrived",
        Call::Sent(_) => "lost",
        Call::NotAsked => "not asked for",
        Call::TooOften => "too soon after the last one",
        Call::NoAddress => "it knows no address of this node",
    }
}

fn udp_in(own: &LocalFacts, asked: &[Asked]) -> String {
    let accounts = || {
        asked.iter().filter_map(|it| match &it.heard {
            Heard::Answer(account) => Some(account),
            Heard::Older | Heard::Silent(_) => None,
        })
    };
    let sent = |it: &Account| matches!(it.testimony.call, Call::Sent(_));
    if accounts().any(|it| it.has_called) {
        "reached".into()
    } else if !accounts().any(|it| sent(it)) {
        let has_just = accounts().any(|it| it.testimony.call == Call::TooOften);
        let said = "members called back a moment ago; ask again in a few seconds";
        if has_just { said.into() } else { "no member called back".into() }
    } else if own.is_behind_nat {
        "members see this node behind NAT".into()
    } else {
        "not-reached".into()
    }
}

impl Return {
    fn is_calling(&self) -> bool {
        self.heard.as_ref().is_ok_and(|it| matches!(it.testimony.call, Call::Sent(_)))
    }
}

impl Errand {
    async fn run(self, mesh: &Mesh) -> Return {
        let Self { who, question } = self;
        let heard = timeout(LIMIT, ask(mesh, who.node, &question)).await;
        let late = |_| Err(Heard::Silent(format!("no answer within {LIMIT:?}")));
        Return { who, heard: heard.unwrap_or_else(late) }
    }
}

async fn ask(mesh: &Mesh, node: NodeId, question: &Question) -> Result<Answered, Heard> {
    let opened = mesh.open_stream(node).await;
    let mut stream = opened.map_err(|error| Heard::Silent(error.to_string()))?;
    // Start the clock here, after any handshake.
    let (begun, wall) = (clock::now(), clock::since_1970());
    let question = question.encode();
    let decode = Testimony::decode;
    let testimony = exchange::ask(&mut stream, question, MAX_TESTIMONY_BYTES, decode).await?;
    let rtt = clock::now().saturating_duration_since(begun);
    Ok(Answered { testimony, rtt, wall: wall + rtt / 2 })
}

impl From<Unanswered> for Heard {
    fn from(why: Unanswered) -> Self {
        match why {
            Unanswered::Older => Self::Older,
            why => Self::Silent(why.to_string()),
        }
    }
}
