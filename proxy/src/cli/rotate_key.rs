//! `meshport rotate-key`: new keys for the node of this machine, while its sessions continue.
//!
//! A node is its key, so this makes a new node with the same name. The authority's key or an invite
//! signs its credential, and so does the new key; the current key signs its consent to be
//! succeeded. A running daemon stores all this and uses it; otherwise it is written for the next
//! start.

use std::time::Duration;

use clap::Args;
use meshport_config::{NodeId, NodeKey, RecordKey, Succession, UnixSeconds};
use meshport_mesh::is_same_shard;
use rand_core::OsRng;
use serde::Serialize;

use super::join::Joined;
use super::lifetime::Lifetime;
use super::query::DaemonArgs;
use super::renew::{check, no_node};
use super::signer::{Holder, SignerArgs};
use super::{clock, output};
use meshport_daemon::Error;
use meshport_daemon::admin::credentials::{FormerKey, RotateKeyReport, RotateKeyRequest};
use meshport_state::{NextIdentity, StateDir};

/// Keys generated until one fits; that all of them fail has a probability of 10^-37.
const SUCCESSOR_TRIES: usize = 1000;

/// `meshport rotate-key`
#[derive(Debug, Args)]
pub(crate) struct RotateKeyArgs {
    #[command(flatten)]
    pub(crate) signer: SignerArgs,
    /// How long the previous key also works, for peers that are unreachable meanwhile
    #[arg(long, value_name = "TIME", default_value = "10m")]
    pub(crate) overlap: Lifetime,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) daemon: DaemonArgs,
}

/// The result of the rotation.
#[derive(Debug, Serialize)]
pub(crate) struct Outcome {
    /// The node with its new key.
    #[serde(flatten)]
    pub(crate) who: Who,
    /// The previous key, while a running daemon still answers for it.
    pub(crate) former: Option<FormerKey>,
    /// False if the previous rotation is incomplete, so that no new one was started.
    pub(crate) is_new: bool,
    /// Whether a running daemon uses it.
    pub(crate) in_force: bool,
}

/// The node's identity after the command.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum Who {
    /// The rights in its new credential.
    New(Joined),
    /// The node as the previous rotation left it.
    AsBefore {
        /// Its new key.
        node: NodeId,
    },
}

impl Who {
    fn node(&self) -> &NodeId {
        match self {
            Self::New(Joined { node, .. }) | Self::AsBefore { node } => node,
        }
    }
}

pub(crate) fn run(args: &RotateKeyArgs) -> Result<(), Error> {
    let state = args.daemon.state()?;
    let next = make(&state, args, clock::wall())?;
    let outcome = hand_over(args, &state, &next)?;
    let advice = match (outcome.is_new, outcome.in_force) {
        (false, _) => "",
        (true, true) => {
            "No session ends. Seeds and invites that name the former key stop working after the \
             overlap."
        }
        (true, false) => "No daemon answers here; the next start uses it.",
    };
    output::with_advice(args.json, &outcome, &said(&outcome), advice)
}

fn said(outcome: &Outcome) -> String {
    let Outcome { who, former, is_new, .. } = outcome;
    let node = who.node();
    let former = former.as_ref().map_or_else(String::new, |FormerKey { node, ends_at }| {
        format!("; the previous one ({}) answers until {ends_at}", node.short())
    });
    match is_new {
        true => format!("key {} is now this node's key{former}\n", node.short()),
        false => {
            format!("key {} is already this node's key{former}. Nothing changes\n", node.short())
        }
    }
}

/// New keys, and a credential for them with the current key's consent.
pub(crate) fn make(
    state: &StateDir,
    args: &RotateKeyArgs,
    now: UnixSeconds,
) -> Result<NextIdentity, Error> {
    let former = state.credential()?.ok_or_else(|| no_node(state))?;
    let key = state.node_key()?.ok_or_else(|| no_node(state))?;
    former.check_keys(&key.public(), &former.record_key)?;
    if former.roles.is_leaf() {
        return Err(Error::Usage(
            "this is an operator's machine: join again with a new invite for a new key".into(),
        ));
    }
    let node_key = successor(&key)?;
    let record_key = RecordKey::generate(&mut OsRng);
    let succession = Some(Succession::agree(&key, &node_key.public(), &former.mesh, now));
    let holder =
        Holder { former: &former, node: &node_key, record: &record_key, succession, at: now };
    let credential = args.signer.sign(state, "rotate-key", holder)?;
    check(state, &credential, &former.mesh, now)?;
    Ok(NextIdentity { node_key, record_key, credential })
}

/// A key whose peers' shard is that of the current key's sessions; one in twelve is.
fn successor(key: &NodeKey) -> Result<NodeKey, Error> {
    let keys = std::iter::repeat_with(|| NodeKey::generate(&mut OsRng)).take(SUCCESSOR_TRIES);
    let of_same_shard = |next: &NodeKey| is_same_shard(&key.public(), &next.public());
    let none = || Error::Usage("no usable key was generated; run the command again".into());
    keys.into_iter().find(of_same_shard).ok_or_else(none)
}

/// Passes the new key to the daemon, otherwise writes it to the state folder.
fn hand_over(
    args: &RotateKeyArgs,
    state: &StateDir,
    next: &NextIdentity,
) -> Result<Outcome, Error> {
    let overlap = Duration::from_secs(args.overlap.seconds());
    let request = RotateKeyRequest {
        identity: std::mem::take(&mut *next.to_text()),
        overlap_s: overlap.as_secs(),
    };
    let new = Who::New(Joined::of(&next.credential));
    match args.daemon.ask_if_running(&request, state, "the key is unchanged")? {
        Some(RotateKeyReport { node, former, is_new }) => {
            let who = if is_new { new } else { Who::AsBefore { node } };
            Ok(Outcome { who, former, is_new, in_force: true })
        }
        None => {
            let _lock = state.lock()?;
            state.store_next(next)?;
            Ok(Outcome { who: new, former: None, is_new: true, in_force: false })
        }
    }
}
