//! Signs a new credential for this machine's node: with the authority's key or an invite, and with
//! the node's own key.

use std::path::PathBuf;

use clap::Args;
use meshport_config::{
    Credential, Invite, Join, NodeKey, RecordKey, Subject, Succession, UnixSeconds,
};

use super::lifetime::Lifetime;
use super::{authority, line};
use meshport_daemon::Error;
use meshport_state::StateDir;

/// The flags that select the signer.
#[derive(Debug, Args)]
pub(crate) struct SignerArgs {
    /// File with an invite for this node's site and roles, or - for standard input [default: the
    /// authority's key signs]
    #[arg(value_name = "INVITE")]
    invite: Option<String>,
    /// The authority's key [default: authority.key in the state folder]
    #[arg(long, value_name = "FILE", conflicts_with = "invite")]
    authority: Option<PathBuf>,
    /// How long the new credential is valid; not allowed with an invite, which sets this
    #[arg(long, value_name = "TIME", default_value = "365d", conflicts_with = "invite")]
    credential_ttl: Lifetime,
}

/// The node that the new credential is for.
pub(super) struct Holder<'a> {
    /// The credential that it replaces: name and site stay, and the roles too unless an invite sets
    /// them.
    pub(super) former: &'a Credential,
    pub(super) node: &'a NodeKey,
    pub(super) record: &'a RecordKey,
    pub(super) succession: Option<Succession>,
    /// When it is issued.
    pub(super) at: UnixSeconds,
}

impl SignerArgs {
    /// Signs a credential for the holder, which gets all roles of an invite. `verb` is the command
    /// to name in a remedy.
    pub(super) fn sign(
        &self,
        state: &StateDir,
        verb: &str,
        holder: Holder<'_>,
    ) -> Result<Credential, Error> {
        let Holder { former, node, record, succession, at } = holder;
        let (name, site) = (former.name.clone(), former.site.clone());
        if let Some(word) = &self.invite {
            let invite = Invite::parse(line::read(word)?.trim())?;
            check_kind(&invite, former)?;
            let join = Join { name: Some(name), site: Some(site), roles: None, succession };
            return Ok(invite.accept(node, record, join, at)?);
        }
        let otherwise = format!(
            "create an invite on the machine that has it and use that here: meshport {verb} \
             INVITE_FILE"
        );
        let file = self.authority.as_deref();
        let key = authority::key(file, || state.authority_key(), &otherwise)?;
        let (node_id, record_key) = (node.public(), record.public());
        let roles = former.roles.clone();
        let subject = Subject { node: node_id, record_key, name, site, roles, succession };
        let until = at.saturating_add(self.credential_ttl.seconds());
        Ok(Credential::issue_by_authority(&key, subject, at, until)?.countersign(node)?)
    }
}

/// An invite turns no operator's machine into a node, and no node into an operator's machine.
fn check_kind(invite: &Invite, former: &Credential) -> Result<(), Error> {
    if invite.delegation.grant.roles.is_leaf() == former.roles.is_leaf() {
        return Ok(());
    }
    Err(Error::Usage(
        "this invite does not fit this machine: one with only the role operator is for an \
         operator's machine, any other for a node"
            .into(),
    ))
}
