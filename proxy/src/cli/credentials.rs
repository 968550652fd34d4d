//! `meshport credentials`: lists all credentials that the daemon knows, and checks their expiry.

use clap::Args;

use super::lifetime::Lifetime;
use super::query::QueryArgs;
use super::{clock, output, render};
use meshport_daemon::Error;
use meshport_daemon::admin::credentials::CredentialRow;
use meshport_daemon::admin::queries::CredentialsRequest;

/// `meshport credentials`
#[derive(Debug, Args)]
pub(crate) struct CredentialsArgs {
    /// Exit with 1 if this node's own credential expires within this time
    #[arg(long, value_name = "TIME", default_value = "30d")]
    pub(crate) within: Lifetime,
    /// Exit with 1 if any node's credential expires within this time, not only this node's
    #[arg(long)]
    pub(crate) any: bool,
    #[command(flatten)]
    pub(crate) query: QueryArgs,
}

pub(crate) fn run(args: &CredentialsArgs) -> Result<(), Error> {
    let rows = args.query.daemon.ask(&CredentialsRequest)?;
    let now = clock::wall().0;
    output::either(args.query.json, &rows, |rows| render::credentials(rows, now, output::style()))?;
    match ending(&rows, args, now) {
        0 => Ok(()),
        1 => Err(Error::Negative(format!(
            "a credential expires within {}, or has expired; run `meshport renew` on that node",
            args.within
        ))),
        many => Err(Error::Negative(format!(
            "{many} credentials expire within {}, or have expired; run `meshport renew` on those \
             nodes",
            args.within
        ))),
    }
}

/// The number of relevant credentials that expire too soon.
fn ending(rows: &[CredentialRow], args: &CredentialsArgs, now: u64) -> usize {
    let limit = now.saturating_add(args.within.seconds());
    let counts = |row: &&CredentialRow| args.any || row.own;
    rows.iter().filter(counts).filter_map(|row| row.expires_at).filter(|at| at.0 < limit).count()
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use meshport_config::UnixSeconds;

    use super::*;
    use meshport_daemon::admin::credentials::Validity;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: CredentialsArgs,
    }

    fn row(own: bool, expires_at: Option<u64>) -> CredentialRow {
        CredentialRow {
            node: None,
            name: None,
            site: None,
            roles: None,
            invite: None,
            authority: None,
            own,
            issued_at: None,
            expires_at: expires_at.map(UnixSeconds),
            revoked_at: None,
            successor: None,
            left: false,
            validity: Validity::Valid,
            secret_number: None,
        }
    }

    #[test]
    fn the_local_end_counts_or_any_and_what_is_revoked_never() {
        let day = 86_400;
        let rows = [row(true, Some(100 * day)), row(false, Some(5 * day)), row(false, None)];
        let ending = |flags: &[&str]| {
            let words = std::iter::once("meshport").chain(flags.iter().copied());
            ending(&rows, &Line::parse_from(words).args, 0)
        };
        assert_eq!(ending(&[]), 0);
        assert_eq!(ending(&["--any"]), 1);
        assert_eq!(ending(&["--within", "101d"]), 1);
        assert_eq!(ending(&["--within", "101d", "--any"]), 2);
        assert_eq!(ending(&["--within", "4d", "--any"]), 0);
    }
}
