//! `meshport revoke --issuer`: revokes what a member may sign, and what it signed since a given
//! time.

use meshport_config::{AuthorityKey, Mandate, Revocation, Revoked, Turn, UnixSeconds};

use super::{RevokeArgs, Wanted};
use crate::cli::clock;
use crate::cli::lifetime::Lifetime;
use meshport_daemon::Error;
use meshport_daemon::admin::client::AdminClient;

/// Prefix of a mandate's line.
const LINE: &str = "meshport-mandate-";

/// A revocation for each key that signs credentials dated after `--since`.
pub(super) fn sign(
    target: &str,
    args: &RevokeArgs,
    client: &AdminClient,
    authority: &AuthorityKey,
) -> Result<Vec<Revocation>, Error> {
    let now = clock::wall();
    let since = UnixSeconds(now.0.saturating_sub(args.since.map_or(0, Lifetime::seconds)));
    let turns: Vec<Turn> = if target.starts_with(LINE) {
        Mandate::from_text(target)?.since(since).collect()
    } else {
        let node = super::node(target, Wanted::Member, &args.daemon, client)?;
        let all = args.daemon.state()?.turns_of(&node)?;
        all.into_iter().filter(|turn| turn.until >= since).collect()
    };
    if turns.is_empty() {
        return Err(Error::Usage(format!(
            "nothing to revoke: no valid mandate for {target} was made here. Run this with the \
             state folder where `meshport delegate` was run, or pass the mandate's line on \
             standard input"
        )));
    }
    let revoke = |turn: Turn| Revocation::issue(authority, Revoked::Invite(turn.key), now);
    Ok(turns.into_iter().map(revoke).collect())
}
