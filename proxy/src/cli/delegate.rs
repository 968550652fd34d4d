//! `meshport delegate`: lets a member renew the credentials of others, and installs the mandate
//! there.
//!
//! The authority's key signs a mandate, one line that is a secret: its holder can renew credentials
//! within its bounds. The operator takes it to the member like an invite and installs it with
//! `--install`; the authority's key stays where it is.

use std::path::PathBuf;

use clap::Args;
use meshport_config::{Mandate, Role, Roles, SiteName, Terms, UnixSeconds};
use rand_core::OsRng;
use serde::Serialize;

use super::lifetime::Lifetime;
use super::query::DaemonArgs;
use super::renew::no_node;
use super::{authority, clock, line, output, revoke, roles};
use meshport_daemon::Error;
use meshport_daemon::admin::credentials::MandateRequest;
use meshport_state::StateDir;

/// Remedy if the key is not here.
const ELSEWHERE: &str = "run this on the machine that has it, and install the line here: meshport \
                         delegate --install FILE";

/// `meshport delegate`
#[derive(Debug, Args)]
pub(crate) struct DelegateArgs {
    /// The member that may renew credentials: its name, NodeId or short NodeId
    #[arg(value_name = "NODE", required_unless_present = "install")]
    target: Option<String>,
    /// A role that renewed credentials may have, such as node, origin:SERVICE or issuer; may be
    /// repeated. A node with any other role is not renewed
    #[arg(long = "role", value_name = "ROLE", value_delimiter = ',', default_value = "node")]
    roles: Vec<Role>,
    /// The only site whose nodes it may renew [default: any]
    #[arg(long)]
    site: Option<SiteName>,
    /// How long a renewed credential is valid
    #[arg(long, value_name = "TIME", default_value = "30d")]
    credential_ttl: Lifetime,
    /// How long the mandate is valid
    #[arg(long, value_name = "TIME", default_value = "365d")]
    ttl: Lifetime,
    /// Install a mandate on this machine: a file with the line, or - for standard input
    #[arg(long, value_name = "FILE",
        conflicts_with_all = ["target", "roles", "site", "credential_ttl", "ttl", "authority"])]
    install: Option<String>,
    /// The authority's key [default: authority.key in the state folder]
    #[arg(long, value_name = "FILE")]
    authority: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    daemon: DaemonArgs,
}

/// A mandate as it is shown.
#[derive(Debug, Serialize)]
struct Outcome {
    /// The line; only when it is made.
    #[serde(skip_serializing_if = "Option::is_none")]
    mandate: Option<String>,
    /// The node that may renew others.
    issuer: String,
    /// The roles that renewed nodes may have.
    roles: Roles,
    /// The only site they may be in; absent if any.
    site: Option<SiteName>,
    /// How long renewed credentials are valid, at most.
    credential_ttl_s: u64,
    /// When the mandate expires.
    until: UnixSeconds,
}

impl Outcome {
    fn of(terms: Terms, mandate: Option<String>) -> Self {
        let Terms { issuer, roles, site, lifetime_s, until, .. } = terms;
        Self {
            mandate,
            issuer: issuer.to_string(),
            roles,
            site,
            credential_ttl_s: lifetime_s,
            until,
        }
    }
}

pub(crate) fn run(args: &DelegateArgs) -> Result<(), Error> {
    match &args.install {
        Some(file) => install(args, file),
        None => make(args),
    }
}

fn make(args: &DelegateArgs) -> Result<(), Error> {
    roles::warn_of_misspelt(&args.roles);
    let state = args.daemon.state()?;
    let authority = authority::key(args.authority.as_deref(), || state.authority_key(), ELSEWHERE)?;
    let client = args.daemon.client()?;
    let target = args.target.as_deref().unwrap_or_default();
    let from = clock::wall();
    let terms = Terms {
        issuer: revoke::node(target, revoke::Wanted::Member, &args.daemon, &client)?,
        roles: Roles::new(args.roles.iter().cloned())?,
        site: args.site.clone(),
        lifetime_s: args.credential_ttl.seconds(),
        from,
        until: from.saturating_add(args.ttl.seconds()),
    };
    let mandate = Mandate::create(&authority, &terms, &mut OsRng)?;
    // Recorded first: a mandate that could not be revoked must not be given out.
    state.note_mandate(&mandate)?;
    let text = mandate.to_text()?;
    let advice = format!(
        "This line is a secret. On {target}, which needs the role issuer: meshport delegate \
         --install - < FILE"
    );
    let outcome = Outcome::of(mandate.terms(), Some(text.to_string()));
    output::with_advice(args.json, &outcome, &format!("{}\n", *text), &advice)
}

fn install(args: &DelegateArgs, file: &str) -> Result<(), Error> {
    // Never the line itself: other users can read the command line.
    let text = match file {
        "-" => line::standard_input()?,
        file => line::of_file(file.as_ref())?,
    };
    let mandate = Mandate::from_text(text.trim())?;
    let state = args.daemon.state()?;
    let node = state.node_key()?.ok_or_else(|| no_node(&state))?;
    let own = state.credential_to_renew(&node)?.ok_or_else(|| no_node(&state))?;
    mandate.verify(&own.mesh)?;
    let (expected, found) = (own.node, mandate.issuer());
    if expected != found {
        return Err(meshport_config::Error::ForeignMandate { expected, found }.into());
    }
    let in_force = hand_over(args, &state, &mandate)?;
    let outcome = Outcome::of(mandate.terms(), None);
    let site =
        outcome.site.as_ref().map_or_else(|| "any site".to_owned(), |it| format!("site {it}"));
    let text = format!(
        "{} may renew credentials with the roles {} in {site} until {}\n",
        own.name, outcome.roles, outcome.until
    );
    let advice = match (own.roles.contains(&Role::Issuer), in_force) {
        (false, _) => {
            "This node lacks the role issuer, so no node asks it: renew it with an invite that has \
             --role issuer and its other roles"
        }
        (true, true) => "The running daemon uses it now.",
        (true, false) => "No daemon answers here; the next start uses it.",
    };
    output::with_advice(args.json, &outcome, &text, advice)
}

/// Passes the mandate to the daemon, otherwise writes it to the state folder. Returns whether a
/// daemon uses it.
fn hand_over(args: &DelegateArgs, state: &StateDir, mandate: &Mandate) -> Result<bool, Error> {
    let request = MandateRequest { mandate: std::mem::take(&mut *mandate.to_text()?) };
    let report = args.daemon.ask_if_running(&request, state, "the mandate is not installed")?;
    if !report.as_ref().is_some_and(|it| it.is_stored) {
        state.store_mandate(mandate)?;
    }
    Ok(report.is_some())
}
