//! Members in the saved directory of a state folder, for verbs that run without a daemon.

use meshport_config::{MAX_ENDPOINTS, MeshId, NodeId, Seed, UnixSeconds};
use meshport_daemon::Error;
use meshport_daemon::admin::api::SeedRow;
use meshport_discovery::{SavedMember, members_of};
use meshport_state::StateDir;

/// The members that were present when the directory was saved and that announce addresses, this
/// node first; none if nothing was saved.
///
/// # Errors
/// [`Error::State`] if a file of the folder is damaged or belongs to another mesh.
pub(super) fn members(state: &StateDir, now: UnixSeconds) -> Result<Vec<SeedRow>, Error> {
    let me = state.credential()?.map(|credential| credential.node);
    let mut rows: Vec<SeedRow> = all(state, now)?.iter().filter_map(|it| row(it, me)).collect();
    rows.sort_by(|a, b| (!a.own, &a.site, &a.name).cmp(&(!b.own, &b.site, &b.name)));
    Ok(rows)
}

/// All nodes of the saved directory that are not revoked.
pub(super) fn all(state: &StateDir, now: UnixSeconds) -> Result<Vec<SavedMember>, Error> {
    let mesh = match state.credential()? {
        Some(credential) => Some(credential.mesh),
        None => state.authority_key()?.map(|authority| authority.public()),
    };
    let (Some(mesh), Some(bytes)) = (mesh, state.directory()?) else { return Ok(Vec::new()) };
    let mut members = members_of(&bytes, &mesh, now).map_err(|error| Error::State {
        path: state.path().join("directory"),
        what: error.to_string(),
        remedy: "The daemon rewrites it".into(),
    })?;
    let revoked = state.revocations(&mesh)?;
    members.retain(|it| revoked.covering(&it.credential).is_none());
    Ok(members)
}

/// The saved directory of a state folder, if it is of this mesh.
pub(super) fn directory_of(state: &StateDir, mesh: &MeshId) -> Option<Vec<u8>> {
    let credential = state.credential().ok().flatten()?;
    (credential.mesh == *mesh).then(|| state.directory().ok().flatten()).flatten()
}

fn row(member: &SavedMember, me: Option<NodeId>) -> Option<SeedRow> {
    let SavedMember { credential, endpoints, is_away } = member;
    let own = me == Some(credential.node);
    if *is_away && !own {
        return None;
    }
    let endpoints = endpoints.iter().filter_map(|at| (*at).try_into().ok());
    let seed = Seed::new(credential.node, endpoints.take(MAX_ENDPOINTS).collect()).ok()?;
    Some(SeedRow::new(seed, credential, own))
}
