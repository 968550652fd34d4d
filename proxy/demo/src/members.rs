//! Makes the members of the demo's mesh as an operator does: the first by `init`, the others by its
//! invites, each with its own state folder and configuration file.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use meshport_config::{
    AuthorityKey, Credential, Endpoint, Grant, Invite, InviteParams, Join, MeshSecret, NodeKey,
    NodeName, RecordKey, Role, Roles, Seed, ServiceName, SiteName, Subject, UnixSeconds,
};
use rand_core::OsRng;

use super::plan::{NodePlan, Part};
use meshport_daemon::Error;
use meshport_state::{Existing, StateDir};

/// How long the demo's credentials are valid, in seconds: longer than a forgotten `--keep-running`.
const CREDENTIAL_TTL_S: u64 = 31 * 24 * 3600;
/// How long its invites can be used, in seconds.
const INVITE_TTL_S: u64 = 3600;

/// The mesh being made.
#[derive(Debug)]
pub(super) struct NewMesh {
    authority: AuthorityKey,
    secret: MeshSecret,
    /// The first member and its address.
    seed: Option<Seed>,
    now: UnixSeconds,
}

/// Files of a member.
#[derive(Debug, Clone)]
pub(super) struct MemberFiles {
    pub(super) state: PathBuf,
    pub(super) config: PathBuf,
    pub(super) socket: PathBuf,
    pub(super) log: PathBuf,
}

impl NewMesh {
    /// A mesh without members.
    pub(super) fn new(now: UnixSeconds) -> Self {
        let authority = AuthorityKey::generate(&mut OsRng);
        Self { authority, secret: MeshSecret::generate(&mut OsRng), seed: None, now }
    }

    /// Makes keys and credential of a member that is reached at `public`, in a state folder.
    pub(super) fn add(
        &mut self,
        plan: &NodePlan,
        state: &Path,
        public: SocketAddr,
    ) -> Result<(), Error> {
        let state = StateDir::create(state)?;
        let (node, record) = (NodeKey::generate(&mut OsRng), RecordKey::generate(&mut OsRng));
        let credential = match self.seed.clone() {
            None => {
                state.store_authority_key(&self.authority, Existing::Keep)?;
                let endpoint: Endpoint = public.to_string().parse()?;
                self.seed = Some(Seed::new(node.public(), vec![endpoint])?);
                self.init(plan, &node, &record)?
            }
            Some(seed) => {
                let invite = self.invite(plan, seed)?;
                state.store_seeds(&invite.seeds)?;
                invite.accept(&node, &record, Join::default(), self.now)?
            }
        };
        state.store_mesh_secret(&self.secret, Existing::Keep)?;
        state.store_node_key(&node, Existing::Keep)?;
        state.store_record_key(&record, Existing::Keep)?;
        Ok(state.store_credential(&credential, Existing::Keep)?)
    }

    fn init(
        &self,
        plan: &NodePlan,
        node: &NodeKey,
        record: &RecordKey,
    ) -> Result<Credential, Error> {
        let subject = Subject {
            node: node.public(),
            record_key: record.public(),
            name: name(plan)?,
            site: site(plan)?,
            roles: roles(plan)?,
            succession: None,
        };
        let expires_at = self.now.saturating_add(CREDENTIAL_TTL_S);
        let issued =
            Credential::issue_by_authority(&self.authority, subject, self.now, expires_at)?;
        Ok(issued.countersign(node)?)
    }

    /// The line goes through its text form, as it would when sent to another machine.
    fn invite(&self, plan: &NodePlan, seed: Seed) -> Result<Invite, Error> {
        let grant = Grant {
            roles: roles(plan)?,
            site: Some(site(plan)?),
            name: Some(name(plan)?),
            not_before: self.now,
            join_until: self.now.saturating_add(INVITE_TTL_S),
            credential_ttl_s: CREDENTIAL_TTL_S,
        };
        let mesh_secret = self.secret.clone();
        let params = InviteParams { grant, mesh_secret, seeds: vec![seed] };
        let invite = Invite::create(&self.authority, params, &mut OsRng)?;
        Ok(Invite::parse(&invite.to_text()?)?)
    }
}

fn name(plan: &NodePlan) -> Result<NodeName, Error> {
    Ok(plan.name().parse()?)
}

fn site(plan: &NodePlan) -> Result<SiteName, Error> {
    Ok(plan.site_name().parse()?)
}

fn roles(plan: &NodePlan) -> Result<Roles, Error> {
    let offers = Role::Origin(ServiceName::kube_apiserver());
    let offers = (plan.part == Part::Origin).then_some(offers);
    Ok(Roles::new(offers.into_iter().chain([Role::Node]))?)
}

/// Writes a member's configuration. `apiserver` is what an origin offers, and the authority that
/// has signed its certificate.
pub(super) fn write_config(
    plan: &NodePlan,
    files: &MemberFiles,
    public: SocketAddr,
    apiserver: Option<(SocketAddr, &Path)>,
) -> Result<(), Error> {
    let text = config(plan, files, public, apiserver);
    let path = &files.config;
    fs::write(path, text).map_err(Error::io(format!("write {}", path.display())))
}

fn config(
    plan: &NodePlan,
    files: &MemberFiles,
    public: SocketAddr,
    apiserver: Option<(SocketAddr, &Path)>,
) -> String {
    let (name, site) = (plan.name(), plan.site_name());
    let (state, socket) = (quoted(&files.state), quoted(&files.socket));
    let mut text = format!(
        "# {name} of `meshport demo`. Port 0 is a free port; `meshport status` says which.\n\
         site = \"{site}\"\n\
         name = \"{name}\"\n\
         state-dir = {state}\n\
         \n\
         [mesh]\n\
         listen = \"127.0.0.1:0\"\n\
         # Where the emulated WAN takes packets for this node.\n\
         advertise = [\"{public}\"]\n\
         \n\
         [admin]\n\
         socket = {socket}\n\
         http = \"127.0.0.1:0\"\n\
         \n\
         [service.kube-apiserver]\n\
         listen = [\"127.0.0.1:0\"]\n"
    );
    if let Some((address, authority)) = apiserver {
        let authority = quoted(authority);
        text.push_str(&format!(
            "origin = \"{address}\"\n\
             \n\
             [service.kube-apiserver.health]\n\
             ca-file = {authority}\n"
        ));
    }
    text
}

/// A path as a TOML string.
fn quoted(path: &Path) -> String {
    toml::Value::String(path.to_string_lossy().into_owned()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: UnixSeconds = UnixSeconds(1_700_000_000);

    fn files(folder: &Path) -> MemberFiles {
        let place = |name: &str| folder.join(name);
        MemberFiles {
            state: place("state \"quoted\""),
            config: place("c.toml"),
            socket: place("s.sock"),
            log: place("log"),
        }
    }

    #[test]
    fn every_member_has_the_expected_identity() {
        let folder = tempfile::tempdir().unwrap();
        let mut new_mesh = NewMesh::new(NOW);
        let mut seeds = Vec::new();
        for (index, plan) in NodePlan::all().enumerate() {
            let state = folder.path().join(plan.name());
            let public = SocketAddr::from(([127, 0, 0, 1], 7000 + u16::try_from(index).unwrap()));
            new_mesh.add(&plan, &state, public).unwrap();
            let state = StateDir::open(state).unwrap();
            let credential = state.identity(NOW).unwrap().credential;
            assert_eq!(credential.name.as_str(), plan.name());
            assert_eq!(credential.site.as_str(), plan.site_name());
            let offers = credential.roles.may_offer(&ServiceName::kube_apiserver());
            assert_eq!(offers, plan.part == Part::Origin);
            assert_eq!(credential.mesh, new_mesh.authority.public());
            assert_eq!(state.authority_key().unwrap().is_some(), index == 0);
            seeds.push(state.seeds().unwrap());
        }
        assert!(seeds[0].is_empty());
        assert!(seeds[1..].iter().all(|seeds| seeds.len() == 1 && *seeds == seeds[..1]));
        assert_eq!(seeds[1], seeds[5]);
    }

    #[test]
    fn the_configurations_are_valid_and_say_what_is_meant() {
        let folder = tempfile::tempdir().unwrap();
        let files = files(folder.path());
        let public: SocketAddr = "127.0.0.1:7001".parse().unwrap();
        let apiserver: SocketAddr = "127.0.0.1:6443".parse().unwrap();
        let authority = folder.path().join("ca.crt");
        for plan in NodePlan::all() {
            let offered = (plan.part == Part::Origin).then_some((apiserver, authority.as_path()));
            let settings = meshport_config::parse(&config(&plan, &files, public, offered)).unwrap();
            assert_eq!(settings.state_dir, files.state);
            assert_eq!(settings.mesh.advertise[0].to_string(), "127.0.0.1:7001");
            let service = &settings.services[&ServiceName::kube_apiserver()];
            assert_eq!(service.origin.is_some(), plan.part == Part::Origin);
            assert_eq!(service.health.ca_file.is_some(), plan.part == Part::Origin);
            assert!(service.listen.iter().all(|address| address.port() == 0));
        }
    }
}
