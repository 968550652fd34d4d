//! Access control for streams: based on verified credentials alone, and denied by default.
//!
//! | stream | needs |
//! | --- | --- |
//! | to the local instance | `node` or `operator`, and an entry of the service's `allow` |
//! | to be carried on by this node | `node` or `operator` of the opener |
//! | carried here by a relay | `relay` of it, and the first row of the node it carries for |
//! | carried on to another node | `origin:SERVICE` of that node |
//!
//! A relay names the node it carries for and presents that node's credential. That is only a claim:
//! a node with the role `relay` can open streams in the name of any existing node.

use meshport_config::{Allow, Credential, Role, ServiceName, UnixSeconds};

/// Why a stream is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Denial {
    /// No valid credential of the peer is known.
    #[error("its credential is not known")]
    Unknown,
    /// Its credential has expired. The tunnel may outlive that by up to one handshake; streams do
    /// not.
    #[error("its credential has expired")]
    Ended,
    /// It may not use services at all.
    #[error("its credential has neither the role node nor the role operator")]
    NoUser,
    /// The service does not admit it.
    #[error("no entry of the service's allow list matches it")]
    NotAllowed,
    /// It carries streams of others without the role for it.
    #[error("its credential lacks the role relay")]
    NoRelay,
    /// The credential of the node it carries for is not accepted.
    #[error("the credential of the node it relays for is not valid")]
    BadClient,
    /// It requests something that only operators may read.
    #[error("its credential lacks the role operator")]
    NoOperator,
    /// The node it wants to reach does not offer the service.
    #[error("the target node may not offer the service")]
    NoOrigin,
}

/// Whether the holder of a credential may use services at all.
pub fn may_use(holder: &Credential, now: UnixSeconds) -> Result<(), Denial> {
    if holder.expires_at <= now {
        return Err(Denial::Ended);
    }
    let roles = &holder.roles;
    if !roles.contains(&Role::Node) && !roles.contains(&Role::Operator) {
        return Err(Denial::NoUser);
    }
    Ok(())
}

/// Whether the holder of a credential may use a service with this list `allow`.
pub fn may_enter(holder: &Credential, allow: &[Allow], now: UnixSeconds) -> Result<(), Denial> {
    may_use(holder, now)?;
    match allow.iter().any(|entry| entry.covers(holder)) {
        true => Ok(()),
        false => Err(Denial::NotAllowed),
    }
}

/// Whether the holder of a credential may carry streams of others.
pub fn may_relay(holder: &Credential, now: UnixSeconds) -> Result<(), Denial> {
    match holder.roles.contains(&Role::Relay) {
        _ if holder.expires_at <= now => Err(Denial::Ended),
        true => Ok(()),
        false => Err(Denial::NoRelay),
    }
}

/// Whether streams for a service may be carried on to the holder of a credential.
pub fn may_serve(holder: &Credential, service: &ServiceName) -> Result<(), Denial> {
    match holder.roles.may_offer(service) {
        true => Ok(()),
        false => Err(Denial::NoOrigin),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::credential;

    const NOW: UnixSeconds = UnixSeconds(1_800_000_000);

    fn enters(roles: &str, allow: &[&str]) -> Result<(), Denial> {
        let allow: Vec<Allow> = allow.iter().map(|it| it.parse().expect("whom to allow")).collect();
        may_enter(&credential(4, roles), &allow, NOW)
    }

    /// Every role for every kind of stream: what is not listed is denied.
    #[test]
    fn roles_open_what_they_name_and_nothing_else() {
        let service = ServiceName::kube_apiserver();
        let everyone = Allow::everyone();
        for (roles, uses, relays, serves) in [
            ("node", true, false, false),
            ("operator", true, false, false),
            ("relay", false, true, false),
            ("origin:kube-apiserver", false, false, true),
            ("origin:other", false, false, false),
            ("origin:other,relay", false, true, false),
            ("node,relay,origin:kube-apiserver", true, true, true),
        ] {
            let holder = credential(4, roles);
            assert_eq!(may_use(&holder, NOW).is_ok(), uses, "{roles}");
            assert_eq!(may_enter(&holder, &everyone, NOW).is_ok(), uses, "{roles}");
            assert_eq!(may_relay(&holder, NOW).is_ok(), relays, "{roles}");
            assert_eq!(may_serve(&holder, &service).is_ok(), serves, "{roles}");
            // An expired credential no longer opens anything.
            let later = holder.expires_at;
            assert_eq!(may_enter(&holder, &everyone, later), Err(Denial::Ended));
            assert_eq!(may_relay(&holder, later), Err(Denial::Ended));
        }
    }

    #[test]
    fn a_list_admits_only_its_entries() {
        assert_eq!(enters("node", &["role:node"]), Ok(()));
        assert_eq!(enters("node", &["site:fra"]), Ok(()));
        assert_eq!(enters("operator", &["site:ber", "node:node-4"]), Ok(()));
        for list in [&[][..], &["site:ber"], &["role:operator", "node:node-5"]] {
            assert_eq!(enters("node", list), Err(Denial::NotAllowed), "{list:?}");
        }
        // A list does not grant a role.
        assert_eq!(enters("relay", &["role:relay", "site:fra"]), Err(Denial::NoUser));
    }
}
