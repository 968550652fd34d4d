//! New keys of a node: both keys and the credential in one file, whose name is the commit point.
//!
//! Three files cannot be replaced at once. So the new ones are first written completely to
//! `node.next`. Once the file has that name, the node has its new identity, and moving the parts
//! into place is repeated until it succeeds. Before that, nothing has changed.

use std::fmt;
use std::str::FromStr;

use meshport_config::{Credential, Issued, NodeKey, RecordKey, UnixSeconds};
use zeroize::Zeroizing;

use super::folder::Existing;
use super::{Identity, NODE_KEY, StateDir};
use crate::Error;

pub(super) const NEXT: &str = "node.next";
/// The last line: a truncated file lacks it.
const END: &str = "end";
const FROM_SCRATCH: &str = "Remove the file to keep the node's current keys, then run `meshport \
                            rotate-key` again";

/// The next identity of a node.
#[derive(Clone)]
pub struct NextIdentity {
    /// The WireGuard key.
    pub node_key: NodeKey,
    /// Signs the node's records.
    pub record_key: RecordKey,
    /// Its signed credential.
    pub credential: Credential,
}

impl NextIdentity {
    /// Checks that the parts belong together.
    pub fn check(&self) -> Result<(), meshport_config::Error> {
        self.credential.check_keys(&self.node_key.public(), &self.record_key.public())
    }

    /// The text form: a line for each part and an end line. Secret.
    pub fn to_text(&self) -> Zeroizing<String> {
        let (node, record) = (self.node_key.to_text(), self.record_key.to_text());
        let credential = self.credential.to_text();
        let length = node.len() + record.len() + credential.len() + END.len() + 4;
        let mut text = Zeroizing::new(String::with_capacity(length));
        for line in [node.as_str(), record.as_str(), credential.as_str(), END] {
            text.push_str(line);
            text.push('\n');
        }
        text
    }
}

impl FromStr for NextIdentity {
    type Err = meshport_config::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let malformed = Self::Err::Malformed { what: "a node's new keys" };
        let mut lines = text.trim().lines();
        let mut line = || lines.next().ok_or(malformed.clone());
        let (node, record, credential, end) = (line()?, line()?, line()?, line()?);
        if end != END || lines.next().is_some() {
            return Err(malformed);
        }
        let (node_key, record_key): (NodeKey, RecordKey) = (node.parse()?, record.parse()?);
        let credential = match Credential::from_text(credential) {
            // From an earlier version of meshport; the key that must sign it is in the same file.
            Err(Self::Err::NotCountersigned) => {
                Issued::from_text(credential)?.countersign(&node_key)?
            }
            outcome => outcome?,
        };
        let next = Self { node_key, record_key, credential };
        next.check()?;
        // Its validity is checked later; a damaged credential must not replace an intact one.
        next.credential.verify(&next.credential.mesh, next.credential.issued_at)?;
        Ok(next)
    }
}

impl fmt::Debug for NextIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let node = self.credential.node;
        f.debug_struct("NextIdentity").field("node", &node).finish_non_exhaustive()
    }
}

impl StateDir {
    /// Commits the node to new keys. The file gets the owner of the current ones.
    pub fn store_next(&self, next: &NextIdentity) -> Result<(), Error> {
        self.folder.write_like(NEXT, next.to_text().as_bytes(), NODE_KEY)
    }

    /// The new keys to which the node is committed, until they are in place.
    fn next(&self) -> Result<Option<NextIdentity>, Error> {
        self.load(NEXT, FROM_SCRATCH)
    }

    /// Moves the new keys of a committed node into place. Call it only under the lock.
    ///
    /// # Errors
    /// [`Error::State`] when the file is damaged, [`Error::Io`] when something cannot be written;
    /// the next call continues.
    pub fn settle_next(&self) -> Result<(), Error> {
        let Some(next) = self.next()? else { return Ok(()) };
        let NextIdentity { node_key, record_key, credential } = &next;
        if let Some(end) = credential.ends_former() {
            let mut all = self.revocations(&credential.mesh)?;
            all.add(end);
            self.store_revocations(&all)?;
        }
        self.store_node_key(node_key, Existing::Replace)?;
        self.store_record_key(record_key, Existing::Replace)?;
        self.store_credential(credential, Existing::Replace)?;
        self.folder.remove(NEXT)
    }

    /// As [`StateDir::settle_next`], and returns the identity after it. A failure to write is
    /// returned with it: the node is committed to its new keys anyway, and the next start completes
    /// the move.
    ///
    /// # Errors
    /// As [`StateDir::identity`], and when the file with new keys is damaged.
    pub fn settled_identity(&self, now: UnixSeconds) -> Result<(Identity, Option<Error>), Error> {
        let unsettled = match self.settle_next() {
            Ok(()) => return Ok((self.identity(now)?, None)),
            Err(error @ Error::Io { .. }) => error,
            Err(error) => return Err(error),
        };
        let Some(next) = self.next()? else { return Ok((self.identity(now)?, Some(unsettled))) };
        self.in_force(&next.credential, now)?;
        Ok((self.completed(next)?, Some(unsettled)))
    }

    /// Removes unused new keys, for a node that is created again.
    pub fn remove_next(&self) -> Result<(), Error> {
        self.folder.remove(NEXT)
    }
}
