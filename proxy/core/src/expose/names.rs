//! Selects the service for a listener's client by TLS server name.

use meshport_config::{ExposeSettings, NamePattern, ServiceName};

/// The names of one listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    /// Exact names first, so that they win.
    rules: Vec<Rule>,
    other: Option<ServiceName>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Rule {
    name: NamePattern,
    service: ServiceName,
}

impl From<&ExposeSettings> for Names {
    fn from(settings: &ExposeSettings) -> Self {
        let each = settings.rules.iter().flat_map(|(service, rule)| {
            rule.sni.iter().map(|name| Rule { name: name.clone(), service: service.clone() })
        });
        let mut rules: Vec<Rule> = each.collect();
        rules.sort_by_key(|rule| rule.name.is_wildcard());
        Self { rules, other: settings.service.clone() }
    }
}

impl Names {
    /// The service of all clients; `None` if it depends on the server name.
    pub fn only(&self) -> Option<&ServiceName> {
        self.other.as_ref().filter(|_| self.rules.is_empty())
    }

    /// The service for a client that sends this server name, or none; `None` if it is refused.
    pub fn service(&self, name: Option<&str>) -> Option<&ServiceName> {
        let named = |name: &str| self.rules.iter().find(|rule| rule.name.matches(name));
        let rule = name.and_then(named);
        rule.map(|rule| &rule.service).or(self.other.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use meshport_config::ExposeRule;

    use super::*;

    fn names(rules: &[(&str, &[&str])], other: Option<&str>) -> Names {
        let rule = |(service, sni): &(&str, &[&str])| {
            let sni = sni.iter().map(|name| name.parse().expect("a name")).collect();
            (service.parse().expect("a service"), ExposeRule { sni })
        };
        let settings = ExposeSettings {
            service: other.map(|name| name.parse().expect("a service")),
            rules: rules.iter().map(rule).collect(),
            ..ExposeSettings::default()
        };
        Names::from(&settings)
    }

    fn chosen<'a>(names: &'a Names, name: &str) -> Option<&'a str> {
        names.service(Some(name)).map(ServiceName::as_str)
    }

    #[test]
    fn a_whole_name_wins_over_a_wildcard_in_any_order_of_services() {
        for (wild, whole) in [("a", "b"), ("b", "a")] {
            let both: [(&str, &[&str]); 2] =
                [(wild, &["*.example.com"]), (whole, &["api.example.com"])];
            let names = names(&both, None);
            assert_eq!(chosen(&names, "api.example.com"), Some(whole));
            assert_eq!(chosen(&names, "x.example.com"), Some(wild));
            assert_eq!(chosen(&names, "x.y.example.com"), None);
        }
    }

    #[test]
    fn others_go_to_the_default_or_nowhere() {
        let rules: [(&str, &[&str]); 1] = [("prod", &["*.prod.example.com"])];
        let strict = names(&rules, None);
        assert_eq!((strict.service(None), chosen(&strict, "a.dev.example.com")), (None, None));
        assert_eq!(strict.only(), None);
        let open = names(&rules, Some("dev"));
        assert_eq!(open.service(None).map(ServiceName::as_str), Some("dev"));
        assert_eq!(chosen(&open, "a.dev.example.com"), Some("dev"));
        assert_eq!(chosen(&open, "A.PROD.example.com"), Some("prod"));
        assert_eq!(open.only(), None);
        assert_eq!(names(&[], Some("dev")).only().map(ServiceName::as_str), Some("dev"));
    }
}
