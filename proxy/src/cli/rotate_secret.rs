//! `meshport rotate-secret`: a new secret for the mesh, while sessions continue.
//!
//! The authority's key signs it; a running daemon stores it and passes it to the members. Without a
//! daemon it is written for the next start, and in a folder without a node for later invites.

use std::path::PathBuf;

use clap::Args;
use meshport_config::{MeshId, MeshSecret, MeshSecrets, NextSecret, UnixSeconds};
use rand_core::OsRng;
use serde::Serialize;

use super::lifetime::Lifetime;
use super::query::DaemonArgs;
use super::{authority, clock, line, output};
use meshport_daemon::Error;
use meshport_daemon::admin::credentials::{RotateReport, RotateRequest};
use meshport_state::{Existing, StateDir};

/// `meshport rotate-secret`
#[derive(Debug, Args)]
pub(crate) struct RotateSecretArgs {
    /// How long the previous secret also works; members that are away all that time must join again
    #[arg(long, value_name = "TIME", default_value = "7d", conflicts_with = "import")]
    pub(crate) overlap: Lifetime,
    /// Only print a line for --import on a node. It contains the secret
    #[arg(long)]
    pub(crate) print: bool,
    /// Import what --print printed: a file, or - for standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["print", "authority"])]
    pub(crate) import: Option<String>,
    /// The authority's key [default: authority.key in the state folder]
    #[arg(long, value_name = "FILE")]
    pub(crate) authority: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) daemon: DaemonArgs,
}

/// The result of the rotation.
#[derive(Debug, Serialize)]
pub(crate) struct Outcome {
    #[serde(flatten)]
    pub(crate) report: RotateReport,
    /// Whether a running daemon uses it and passes it on.
    pub(crate) in_force: bool,
}

pub(crate) fn run(args: &RotateSecretArgs) -> Result<(), Error> {
    let (state, now) = (args.daemon.state()?, clock::wall());
    let next = match &args.import {
        Some(word) => Some(NextSecret::from_text(&line::read(word)?)?),
        None => sign(&state, args, now)?,
    };
    if let (Some(next), true) = (&next, args.print) {
        // Without a node the folder serves to make invites, which need the new secret too.
        if state.credential()?.is_none() {
            write(&state, next, now)?;
        }
        output::answer(&format!("{}\n", *next.to_text()?))?;
        output::advice(
            "Treat the line as a password. On any node of the mesh, with the line in a file: \
             meshport rotate-secret --import - < FILE",
        );
        return Ok(());
    }
    let outcome = match next {
        Some(next) => hand_over(args, &state, &next, now)?,
        None => Outcome { report: report(&secrets(&state)?, false, now), in_force: false },
    };
    let advice = match (outcome.report.is_new, outcome.in_force) {
        (false, _) => "",
        (true, true) => "No session ends. Members that may lack it: meshport status",
        (true, false) => "No daemon answers here; the next start uses it and passes it on.",
    };
    output::with_advice(args.json, &outcome, &said(&outcome), advice)
}

fn said(Outcome { report, .. }: &Outcome) -> String {
    let RotateReport { number, former_ends_at, is_new } = report;
    let former = match former_ends_at {
        Some(at) => format!("the previous one works until {at}"),
        None => "no other one is accepted".to_owned(),
    };
    match is_new {
        true => format!("mesh secret {number} is in use; {former}\n"),
        false => format!("mesh secret {number} is already in use; {former}. Nothing changes\n"),
    }
}

/// Signs a new secret with the next number; `None` during the overlap of the last rotation, unless
/// a clock that was ahead has set its end.
pub(crate) fn sign(
    state: &StateDir,
    args: &RotateSecretArgs,
    now: UnixSeconds,
) -> Result<Option<NextSecret>, Error> {
    let (file, folder) = (args.authority.as_deref(), || state.authority_key());
    let authority = authority::key(file, folder, authority::SIGN_ELSEWHERE)?;
    let mut held = secrets(state)?;
    held.retire(now);
    let of_rotation = held.rotation().map(|rotation| rotation.mesh);
    let of_node = state.credential()?.map(|credential| credential.mesh);
    if let Some(mesh) = of_rotation.or(of_node).filter(|mesh| *mesh != authority.public()) {
        return Err(Error::Usage(format!(
            "the authority's key is of mesh {}, but the folder {} belongs to mesh {mesh}; name \
             the matching one with --authority or --state-dir",
            authority.public(),
            state.path().display(),
        )));
    }
    let is_ahead = held.rotation().is_some_and(|rotation| rotation.is_ahead(now));
    if let Some(at) = held.retires_at().filter(|_| !is_ahead) {
        return match args.print {
            true => Err(Error::Usage(format!(
                "the overlap of the last rotation ends at {at}, and a node holds at most two \
                 secrets. Wait until then"
            ))),
            false => Ok(None),
        };
    }
    let until = now.saturating_add(args.overlap.seconds());
    let (number, secret) = (held.number() + 1, MeshSecret::generate(&mut OsRng));
    Ok(Some(NextSecret::issue(&authority, number, secret, now, until)))
}

/// Passes it to the daemon, otherwise writes it to the state folder.
fn hand_over(
    args: &RotateSecretArgs,
    state: &StateDir,
    next: &NextSecret,
    now: UnixSeconds,
) -> Result<Outcome, Error> {
    let request = RotateRequest { next: std::mem::take(&mut *next.to_text()?) };
    Ok(match args.daemon.ask_if_running(&request, state, "the secret is unchanged")? {
        Some(report) => Outcome { report, in_force: true },
        None => Outcome { report: write(state, next, now)?, in_force: false },
    })
}

/// Writes it if no daemon runs.
pub(crate) fn write(
    state: &StateDir,
    next: &NextSecret,
    now: UnixSeconds,
) -> Result<RotateReport, Error> {
    let _lock = state.lock()?;
    let held = secrets(state)?;
    let mesh = mesh(state)?.unwrap_or(next.rotation().mesh);
    match held.take(next, &mesh)? {
        Some(taken) => {
            taken.check_times(now)?;
            // The daemon may run as another user, which owns the file.
            state.store_mesh_secrets(&taken, Existing::ReplaceForOwner)?;
            Ok(report(&taken, true, now))
        }
        None => Ok(report(&held, false, now)),
    }
}

fn report(secrets: &MeshSecrets, is_new: bool, now: UnixSeconds) -> RotateReport {
    // An expired secret stays in the file until a daemon trusts its clock, or until the next
    // rotation.
    let former_ends_at = secrets.retires_at().filter(|at| *at > now);
    RotateReport { number: secrets.number(), former_ends_at, is_new }
}

fn secrets(state: &StateDir) -> Result<MeshSecrets, Error> {
    state.mesh_secrets()?.ok_or_else(|| Error::State {
        path: state.path().join("mesh.secret"),
        what: "is missing".into(),
        remedy: "Name the state folder of `meshport init` or of a node with --state-dir".into(),
    })
}

/// The mesh of the folder's node, or of its authority.
fn mesh(state: &StateDir) -> Result<Option<MeshId>, Error> {
    let of_node = state.credential()?.map(|credential| credential.mesh);
    let of_authority = state.authority_key()?.map(|authority| authority.public());
    Ok(of_node.or(of_authority))
}

#[cfg(test)]
mod tests {
    use meshport_config::AuthorityKey;

    use super::*;

    const NOW: UnixSeconds = UnixSeconds(1_800_000_000);
    const DAY_S: i64 = 86_400;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: RotateSecretArgs,
    }

    #[test]
    fn a_rotation_by_a_wrong_clock_is_refused_or_can_be_followed_by_another() {
        let folder = tempfile::tempdir().expect("a folder");
        let state = StateDir::create(folder.path().join("state")).expect("made");
        let authority = AuthorityKey::generate(&mut OsRng);
        state.store_authority_key(&authority, Existing::Keep).expect("stored");
        let first = MeshSecret::generate(&mut OsRng);
        state.store_mesh_secret(&first, Existing::Keep).expect("stored");
        let Line { args } = clap::Parser::parse_from(["meshport"]);
        let at = |days: i64| UnixSeconds(NOW.0.saturating_add_signed(days * DAY_S));
        let signed = |by| sign(&state, &args, by).expect("signed");

        for (by, why) in [(at(-30), "would be shut out"), (at(400), "Correct the wrong clock")] {
            let next = signed(by).expect("a new one");
            let error = write(&state, &next, NOW).expect_err("a clock is wrong");
            assert!(error.to_string().contains(why), "{error}");
            assert_eq!(error.exit_code(), 4);
        }
        // As earlier versions have written it.
        let ahead = signed(at(400)).expect("a new one");
        write(&state, &ahead, at(400)).expect("no clock contradicts it");
        let next = signed(NOW).expect("the overlap of 407 days is not waited for");
        let report = write(&state, &next, NOW).expect("its times are right");
        assert_eq!((report.number, report.former_ends_at), (2, Some(at(7))));
        assert!(signed(NOW).is_none(), "one at a time");
    }
}
