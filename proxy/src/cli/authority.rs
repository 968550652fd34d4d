//! `meshport authority`: shows the authority's key or endorses another; finds the key for other
//! verbs.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use clap::Args;
use meshport_config::{AuthorityKey, MeshId, UnixSeconds, VerifyKey};
use rand_core::OsRng;
use serde::Serialize;

use super::query::DaemonArgs;
use super::{clock, output, runtime};
use meshport_daemon::Error;
use meshport_daemon::admin::queries::CredentialsRequest;
use meshport_state::read_authority_key;

/// Remedy if the key is not here.
const NAME_IT: &str = "run this where it is";

/// `meshport authority`
#[derive(Debug, Args)]
pub(crate) struct AuthorityArgs {
    /// Make another key for this mesh, endorsed by the one here, and write it to a new file
    #[arg(long, value_name = "FILE")]
    add: Option<PathBuf>,
    /// The authority's key [default: authority.key in the state folder]
    #[arg(long, value_name = "FILE")]
    authority: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    daemon: DaemonArgs,
}

/// An authority key as it is shown.
#[derive(Debug, Serialize)]
struct Shown {
    /// The mesh.
    mesh: MeshId,
    /// The public part of the key.
    key: VerifyKey,
    /// From the mesh's first key to this one; empty for the first.
    endorsements: Vec<ShownEndorsement>,
    /// Credentials that are signed under it; absent if no daemon answers.
    credentials: Option<usize>,
    /// The file of a new key.
    #[serde(skip_serializing_if = "Option::is_none")]
    written: Option<PathBuf>,
}

#[derive(Debug, Serialize)]
struct ShownEndorsement {
    /// The key that is endorsed.
    key: VerifyKey,
    /// When it was endorsed.
    at: UnixSeconds,
}

impl Shown {
    fn of(key: &AuthorityKey) -> Self {
        let endorsements = key.chain().endorsements().iter();
        Self {
            mesh: key.public(),
            key: key.key(),
            endorsements: endorsements
                .map(|it| ShownEndorsement { key: it.key, at: it.at })
                .collect(),
            credentials: None,
            written: None,
        }
    }

    fn text(&self) -> String {
        let mut text = format!("mesh         {}\nkey          {}\n", self.mesh, self.key);
        match &self.endorsements[..] {
            [] => text.push_str("endorsed     the mesh's first key needs no endorsement\n"),
            all => all.iter().for_each(|it| {
                text.push_str(&format!("endorsed     {} at {}\n", it.key, it.at));
            }),
        }
        let credentials = match self.credentials {
            Some(1) => "1 node has a credential signed under it".to_owned(),
            Some(many) => format!("{many} nodes have a credential signed under it"),
            None => "not known: no daemon answers here".to_owned(),
        };
        text.push_str(&format!("credentials  {credentials}\n"));
        text
    }
}

pub(crate) fn run(args: &AuthorityArgs) -> Result<(), Error> {
    let folder = || Ok::<_, Error>(args.daemon.state()?.authority_key()?);
    let key = key(args.authority.as_deref(), folder, NAME_IT)?;
    if let Some(file) = &args.add {
        return add(&key, file, args.json);
    }
    let mut shown = Shown::of(&key);
    // A credential's chain does not contain the first key.
    let signer = key.chain().keys().last();
    let client = args.daemon.client()?;
    if let Ok(rows) = runtime()?.block_on(client.ask(&CredentialsRequest)) {
        let is_under = rows.iter().filter(|it| it.revoked_at.is_none() && it.authority == signer);
        shown.credentials = Some(is_under.count());
    }
    output::either(args.json, &shown, Shown::text)
}

fn add(by: &AuthorityKey, file: &Path, json: bool) -> Result<(), Error> {
    let key = by.endorse(clock::wall(), &mut OsRng)?;
    let cannot = |error: std::io::Error| {
        Error::Usage(format!("cannot write the new key to {}: {error}", file.display()))
    };
    let mut out =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(file).map_err(cannot)?;
    let written = out.write_all(key.to_text().as_bytes()).and_then(|()| out.write_all(b"\n"));
    written.and_then(|()| out.sync_all()).map_err(cannot)?;
    let shown = Shown { written: Some(file.to_owned()), ..Shown::of(&key) };
    let text = format!("{}: another authority key of mesh {}\n", file.display(), by.public());
    let advice = format!(
        "It signs everything that the first key can: keep it offline, apart from the others. If \
         it is stolen: meshport revoke authority:{} --with-nodes",
        key.key()
    );
    output::with_advice(json, &shown, &text, &advice)
}

/// Remedy on a machine without the key, for commands with --print and --import.
pub(super) const SIGN_ELSEWHERE: &str =
    "sign on the machine that has it with --print, and use the line here with --import";

/// The authority's key, from a file or the `folder`. `otherwise` is the remedy if neither has it.
pub(super) fn key<E: Into<Error>>(
    file: Option<&Path>,
    folder: impl FnOnce() -> Result<Option<AuthorityKey>, E>,
    otherwise: &str,
) -> Result<AuthorityKey, Error> {
    let key = match file {
        Some(path) => read_authority_key(path)?,
        None => folder().map_err(Into::into)?,
    };
    key.ok_or_else(|| {
        Error::Usage(format!(
            "the authority's key is not here; name its file with --authority, or {otherwise}"
        ))
    })
}
