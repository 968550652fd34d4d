//! Entries of a service's `allow` list.

use std::fmt;
use std::str::FromStr;

use crate::credential::{Credential, Delegation};
use crate::ids::{NodeId, NodeName, Role, SiteName};
use crate::text::TextError;

/// One entry of a service's list `allow`. The text forms are `role:ROLE`, `site:SITE`, and
/// `node:NAME` or `node:NODEID`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Allow {
    /// Every node with this role.
    Role(Role),
    /// Every node of this site.
    Site(SiteName),
    /// The node of this name.
    Name(NodeName),
    /// The node with this key.
    Node(NodeId),
}

impl Allow {
    /// The default list: all nodes and operators.
    pub fn everyone() -> Vec<Self> {
        vec![Self::Role(Role::Node), Self::Role(Role::Operator)]
    }

    /// A warning about a list that admits no node, or fewer than it seems to.
    ///
    /// Only nodes and operators use services, and a list does not grant a role: an entry for
    /// another role matches nodes that have it in addition.
    pub fn doubt(list: &[Self]) -> Option<String> {
        const REMEDY: &str = "for all nodes and operators omit `allow` or write [\"role:node\", \
                              \"role:operator\"]; for some, \"site:SITE\" or \"node:NAME\"";
        if list.is_empty() {
            return Some(format!(
                "an empty list refuses all other nodes and serves only clients of this machine; \
                 {REMEDY}"
            ));
        }
        let is_user = |role: &Role| matches!(role, Role::Node | Role::Operator);
        let opens_nothing = |it: &Self| matches!(it, Self::Role(role) if !is_user(role));
        if !list.iter().all(opens_nothing) {
            return None;
        }
        let roles: Vec<String> = list.iter().map(ToString::to_string).collect();
        Some(format!(
            "{} alone admits nobody: only nodes and operators use services, so it matches only \
             those that have this role in addition. If that is intended, ignore this warning; \
             {REMEDY}",
            roles.join(", ")
        ))
    }

    /// Whether the entry matches the holder of a verified credential.
    ///
    /// A name or a site counts only if the invite fixed it; otherwise the joining node chose it.
    pub fn covers(&self, credential: &Credential) -> bool {
        let vouched =
            |names: fn(&Delegation) -> bool| credential.delegation.as_ref().is_none_or(names);
        match self {
            Self::Role(role) => credential.roles.contains(role),
            Self::Site(site) => credential.site == *site && vouched(|it| it.grant.site.is_some()),
            Self::Name(name) => credential.name == *name && vouched(|it| it.grant.name.is_some()),
            Self::Node(node) => credential.node == *node,
        }
    }
}

impl fmt::Display for Allow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Role(role) => write!(f, "role:{role}"),
            Self::Site(site) => write!(f, "site:{site}"),
            Self::Name(name) => write!(f, "node:{name}"),
            Self::Node(node) => write!(f, "node:{node}"),
        }
    }
}

impl FromStr for Allow {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, TextError> {
        match text.split_once(':') {
            Some(("role", role)) => role.parse().map(Self::Role),
            Some(("site", site)) => site.parse().map(Self::Site),
            Some(("node", node)) => {
                node.parse().map(Self::Node).or_else(|_| node.parse().map(Self::Name))
            }
            _ => Err(TextError::form(
                "whom to allow",
                text,
                "role:ROLE, site:SITE, node:NAME or node:NODEID",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{NOW, TestRng, grant, invite_with};
    use crate::{Grant, Join, NodeKey, RecordKey, parse};

    /// A credential of `worker-7` under an invite that leaves open what is none here.
    fn joined(site: Option<&str>, name: Option<&str>) -> Credential {
        let mut rng = TestRng::new(4);
        let site = site.map(|it| it.parse().unwrap());
        let grant = Grant {
            roles: "node,origin:web".parse().unwrap(),
            site: site.clone(),
            name: name.map(|it| it.parse().unwrap()),
            ..grant()
        };
        let (_, invite) = invite_with(grant, &mut rng);
        let (node, record) = (NodeKey::generate(&mut rng), RecordKey::generate(&mut rng));
        let (name, fra) = ("worker-7".parse().unwrap(), "fra".parse().unwrap());
        let join =
            Join { name: Some(name), site: site.is_none().then_some(fra), ..Join::default() };
        invite.accept(&node, &record, join, NOW).unwrap()
    }

    fn covers(entry: &str, credential: &Credential) -> bool {
        let allow: Allow = entry.parse().unwrap();
        assert_eq!(allow.to_string(), entry);
        allow.covers(credential)
    }

    #[test]
    fn an_entry_means_a_role_a_site_or_a_node() {
        let credential = joined(Some("fra"), Some("worker-7"));
        let id = format!("node:{}", credential.node);
        for good in ["role:node", "role:origin:web", "site:fra", "node:worker-7", &id] {
            assert!(covers(good, &credential), "{good}");
        }
        let other = format!("node:{}", NodeId::from_bytes([9; 32]));
        for bad in
            ["role:relay", "role:operator", "role:origin:db", "site:ber", "node:worker-8", &other]
        {
            assert!(!covers(bad, &credential), "{bad}");
        }
    }

    #[test]
    fn what_the_joiner_chose_itself_opens_nothing() {
        let credential = joined(None, None);
        assert!(covers("role:node", &credential));
        assert!(!covers("site:fra", &credential) && !covers("node:worker-7", &credential));
        assert!(covers(&format!("node:{}", credential.node), &credential));
        let named = joined(None, Some("worker-7"));
        assert!(covers("node:worker-7", &named) && !covers("site:fra", &named));
    }

    #[test]
    fn a_list_says_where_it_is_wrong() {
        let table = "site = \"fra\"\n[service.kube-apiserver]\n";
        let problem = |text: &str| {
            let mut list = parse(&format!("{table}{text}")).expect_err("it has a problem");
            assert_eq!(list.len(), 1, "{text}: {list:#?}");
            let it = list.remove(0);
            assert_eq!(it.key, "service.kube-apiserver.allow");
            format!("{}: found {}, expected {}", it.line, it.found, it.expected)
        };
        let origin = "origin = \"127.0.0.1:1\"\n";
        let wrong = problem(&format!("{origin}allow = [\"role:node\", \"worker-7\"]"));
        assert!(
            wrong.starts_with("4: found \"worker-7\"") && wrong.contains("site:fra"),
            "{wrong}"
        );
        let twice = problem(&format!("{origin}allow = [\"site:a\", \"site:a\"]"));
        assert!(twice.contains("only once"), "{twice}");
        let idle = problem("allow = [\"site:fra\"]");
        assert!(idle.starts_with("3:") && idle.contains("origin as well"), "{idle}");
        let none = parse(&format!("{table}{origin}allow = []")).expect("it shuts all out");
        assert!(none.services["kube-apiserver"].allow.is_empty());
        let plain = parse(table).expect("nothing is wrong");
        assert_eq!(plain.services["kube-apiserver"].allow, Allow::everyone());
    }

    #[test]
    fn a_list_that_lets_nobody_in_is_doubted() {
        let doubt = |list: &[&str]| {
            let list: Vec<Allow> = list.iter().map(|it| it.parse().unwrap()).collect();
            Allow::doubt(&list)
        };
        let none = doubt(&[]).expect("it shuts all out");
        assert!(none.contains("refuses all other nodes") && none.contains("role:node"), "{none}");
        for list in [&["role:relay"][..], &["role:relay", "role:origin:web"]] {
            let doubt = doubt(list).expect("no client has these roles alone");
            assert!(
                doubt.starts_with(&list.join(", ")) && doubt.contains("in addition"),
                "{doubt}"
            );
        }
        for list in [["role:relay", "role:node"], ["role:relay", "site:fra"]] {
            assert_eq!(doubt(&list), None, "{list:?}");
        }
        assert_eq!(doubt(&["role:operator"]), None);
        assert_eq!(Allow::doubt(&Allow::everyone()), None);
    }

    #[test]
    fn anything_else_is_refused() {
        for text in ["", "fra", "site:", "site:Fra", "role:admin", "node:", "user:x", "node:A B"] {
            assert!(text.parse::<Allow>().is_err(), "{text}");
        }
    }
}
