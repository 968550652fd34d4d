//! Maps a node of the cluster to its member of the mesh.
//!
//! By name: the credential with that name. A node chooses its own name unless the invite fixes it,
//! so a fixed name takes precedence, and two equal claims are refused. Otherwise by address: the
//! member whose tunnel comes from an address of the Node object, unless it has the name of another
//! node. Announced addresses are not used, since a worker could announce another's.

use std::net::IpAddr;

use meshport_config::{Allow, Credential, NodeId, Role};

use super::nodes::{NodeObject, Nodes};
use super::refusal::Refusal;
use super::reply::Refused;

/// Whether apiservers may reach the kubelet and pods on the holder's machine.
pub fn serves_kubelet(credential: &Credential) -> bool {
    let roles = &credential.roles;
    roles.contains(&Role::Node) && !roles.contains(&Role::NoKubelet)
}

/// The member, of `members` without nodes that have left, that corresponds to `object`. `tunnel`
/// returns the source address of a member's tunnel, if it has one.
///
/// # Errors
/// [`Refused`] if no member matches, two match, or the match serves no kubelet.
pub fn member<'a>(
    object: &NodeObject,
    nodes: &Nodes,
    members: &[&'a Credential],
    tunnel: impl Fn(&NodeId) -> Option<IpAddr>,
) -> Result<&'a Credential, Refused> {
    let all = members.iter().copied();
    let is_named = |it: &&Credential| it.name.as_str() == object.name;
    let named: Vec<&Credential> = all.clone().filter(is_named).collect();
    let is_vouched = |it: &&Credential| Allow::Name(it.name.clone()).covers(it);
    let vouched: Vec<&Credential> = named.iter().copied().filter(is_vouched).collect();
    let best = match (vouched.is_empty(), named.is_empty()) {
        (false, _) => vouched,
        (true, false) => named,
        (true, true) => {
            let goes_elsewhere = |it: &Credential| nodes.get(it.name.as_str()).is_some();
            let at = |it: &Credential| tunnel(&it.node).map(|ip| ip.to_canonical());
            let is_there = |it: &&Credential| {
                !goes_elsewhere(it) && at(it).is_some_and(|ip| object.addresses.contains(&ip))
            };
            all.filter(is_there).collect()
        }
    };
    match best.as_slice() {
        [] => {
            let said = format!("{} is in the cluster but not in the mesh", object.name);
            Err(Refused::new(Refusal::NoMember, said))
        }
        [one] if serves_kubelet(one) => Ok(one),
        [one] => {
            let said = format!("{}: its credential does not allow a way back", one.name);
            Err(Refused::new(Refusal::NoKubelet, said))
        }
        [one, two, ..] => {
            let [one, two] = [one, two].map(|it| format!("{} ({})", it.name, it.node.short()));
            let said = format!("the members {one} and {two} may both be the node {}", object.name);
            Err(Refused::new(Refusal::Ambiguous, said))
        }
    }
}

#[cfg(test)]
mod tests {
    use meshport_config::{
        AuthorityKey, Delegation, DelegationKey, Grant, NodeKey, RecordKey, Subject, UnixSeconds,
    };

    use super::*;
    use crate::testing::credential;

    fn object(name: &str, ip: [u8; 4]) -> NodeObject {
        NodeObject { addresses: vec![ip.into()], ..NodeObject::named(name) }
    }

    /// The member among these, each with the source address of its tunnel.
    fn found<'a>(
        object: &NodeObject,
        nodes: &Nodes,
        members: &[(&'a Credential, Option<[u8; 4]>)],
    ) -> Result<&'a Credential, Refused> {
        let tunnel = |node: &NodeId| {
            let (_, at) = members.iter().find(|(credential, _)| credential.node == *node)?;
            at.map(IpAddr::from)
        };
        let all: Vec<&Credential> = members.iter().map(|(credential, _)| *credential).collect();
        member(object, nodes, &all, tunnel)
    }

    /// A node that has chosen this name itself.
    fn self_named(number: u8, name: &str) -> Credential {
        let signer = DelegationKey::from_bytes([3; 32]);
        let grant = Grant {
            roles: "node".parse().expect("roles"),
            site: None,
            name: None,
            not_before: UnixSeconds(0),
            join_until: UnixSeconds(u64::from(u32::MAX)),
            credential_ttl_s: u64::from(u32::MAX),
        };
        let authority = AuthorityKey::from_bytes([9; 32]);
        let invite = Delegation::issue(&authority, signer.public(), grant).expect("an invite");
        let key = NodeKey::from_bytes([number; 32]);
        let subject = Subject {
            node: key.public(),
            record_key: RecordKey::from_bytes([7; 32]).public(),
            name: name.parse().expect("a name"),
            site: "fra".parse().expect("a site"),
            roles: "node".parse().expect("roles"),
            succession: None,
        };
        let (from, until) = (UnixSeconds(1), UnixSeconds(1_000_000));
        let issued = Credential::issue_by_delegation(&invite, &signer, subject, from, until);
        issued.and_then(|issued| issued.countersign(&key)).expect("a credential")
    }

    #[test]
    fn a_node_is_the_member_of_its_name_wherever_its_tunnel_comes_from() {
        let (seven, eight) = (credential(7, "node"), credential(8, "node"));
        let object = object("node-7", [10, 0, 0, 7]);
        let nodes = Nodes::new([object.clone()]);
        let members = [(&seven, None), (&eight, Some([10, 0, 0, 7]))];
        assert_eq!(found(&object, &nodes, &members), Ok(&seven));
    }

    #[test]
    fn without_the_name_its_tunnel_decides_unless_it_has_another_nodes_name() {
        let eight = credential(8, "node");
        let object = object("ip-10-0-0-7", [10, 0, 0, 7]);
        let members = [(&eight, Some([10, 0, 0, 7]))];
        let nodes = Nodes::new([object.clone()]);
        assert_eq!(found(&object, &nodes, &members), Ok(&eight));
        let nodes = Nodes::new([object.clone(), NodeObject::named("node-8")]);
        let refused = found(&object, &nodes, &members).expect_err("it is another node");
        assert_eq!(refused.why, Refusal::NoMember);
    }

    #[test]
    fn a_name_that_the_authority_gave_counts_before_one_that_was_chosen() {
        let (given, thief) = (credential(7, "node"), self_named(66, "node-7"));
        let object = object("node-7", [10, 0, 0, 7]);
        let nodes = Nodes::new([object.clone()]);
        let members = [(&thief, Some([10, 0, 0, 7])), (&given, None)];
        assert_eq!(found(&object, &nodes, &members), Ok(&given));
        let other = self_named(67, "node-7");
        let refused = found(&object, &nodes, &[(&thief, None), (&other, None)]);
        let refused = refused.expect_err("either may be it");
        assert_eq!(refused.why, Refusal::Ambiguous);
        assert!(refused.said.contains(&thief.node.short()), "{}", refused.said);
        assert!(refused.said.contains(&other.node.short()), "{}", refused.said);
    }

    #[test]
    fn a_member_that_serves_no_kubelet_is_refused() {
        for roles in ["relay", "operator", "node,no-kubelet"] {
            let seven = credential(7, roles);
            let object = object("node-7", [10, 0, 0, 7]);
            let nodes = Nodes::new([object.clone()]);
            let refused = found(&object, &nodes, &[(&seven, None)]);
            assert_eq!(refused.expect_err(roles).why, Refusal::NoKubelet);
        }
    }
}
