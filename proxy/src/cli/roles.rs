//! Roles given by a user: a service may have any name, so a misspelt one is accepted with a
//! warning.

use meshport_config::Role;

use super::output;

/// Prints a warning for each `origin:SERVICE` whose service is close to a common one.
pub(crate) fn warn_of_misspelt(roles: &[Role]) {
    misspelt(roles).iter().for_each(|warning| output::advice(warning));
}

fn misspelt(roles: &[Role]) -> Vec<String> {
    let warning = |role: &Role| match role {
        Role::Origin(service) => service.misspelt().map(|meant| {
            format!(
                "warning: {role} allows a service named {service}; did you mean origin:{meant}?"
            )
        }),
        _ => None,
    };
    roles.iter().filter_map(warning).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_service_of_a_role_is_pointed_out() {
        let warnings = |roles: &str| {
            let roles: Vec<Role> =
                roles.split(',').map(|role| role.parse().expect("a role")).collect();
            misspelt(&roles)
        };
        let [warning] = &warnings("node,origin:kube-api-server")[..] else { panic!("one") };
        assert!(warning.ends_with("did you mean origin:kube-apiserver?"), "{warning}");
        assert!(warnings("node,relay,origin:kube-apiserver,origin:registry").is_empty());
    }
}
