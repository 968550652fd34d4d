//! Problems of a node, the mesh or its clients: one catalogue with stable ids.
//!
//! A finding is the [`Kind`] of a problem and its details on this node. `meshport doctor`,
//! `meshport status` and log lines are views of this list, and docs/troubleshoot.md has a section
//! for each entry. Ids are never reused. 1xx is about this machine, 2xx about the mesh, 3xx about
//! services and Kubernetes.

mod catalogue;

use std::borrow::Cow;
use std::fmt;

use meshport_config::words;

pub use self::catalogue::*;

/// The page with a section for each kind, from the root of the repository.
pub const PAGE: &str = "docs/troubleshoot.md";

words! {
    /// The severity of a finding.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Severity {
        /// Nothing fails because of it yet.
        Warning => "warning",
        /// Something does not work.
        Error => "error",
    }
}

/// An entry of the list. Its texts are sentences without the full stop at the end.
#[derive(Debug, PartialEq, Eq)]
pub struct Kind {
    /// `MP` and three digits.
    pub id: &'static str,
    /// How bad it is unless a finding overrides it.
    pub severity: Severity,
    /// The problem.
    pub title: &'static str,
    /// The text of a check that does not find the problem.
    pub healthy: &'static str,
    /// Its consequences.
    pub meaning: &'static str,
    /// The remedy.
    pub remedy: &'static str,
}

impl Kind {
    /// A finding of this kind. `detail` is the problem here, in words that make sense by
    /// themselves.
    pub fn found(&'static self, detail: impl Into<String>) -> Finding {
        Finding {
            kind: self,
            severity: self.severity,
            detail: detail.into(),
            remedy: self.remedy.into(),
        }
    }

    /// The finding as an error: something does not work because of it.
    pub fn broken(&'static self, detail: impl Into<String>) -> Finding {
        Finding { severity: Severity::Error, ..self.found(detail) }
    }

    /// The finding as a warning: nothing fails because of it yet.
    pub fn mild(&'static self, detail: impl Into<String>) -> Finding {
        Finding { severity: Severity::Warning, ..self.found(detail) }
    }

    /// Its section: page and anchor.
    pub fn anchor(&self) -> String {
        format!("{PAGE}#{}", self.id.to_ascii_lowercase())
    }
}

/// The kind with this id, in any case.
pub fn by_id(id: &str) -> Option<&'static Kind> {
    ALL.iter().copied().find(|kind| kind.id.eq_ignore_ascii_case(id))
}

/// As a log line; the details are in its fields.
impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}. {} ({})", self.title, self.remedy, self.id)
    }
}

/// A problem of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The kind of problem.
    pub kind: &'static Kind,
    /// The severity on this node.
    pub severity: Severity,
    /// The problem on this node.
    pub detail: String,
    /// The remedy on this node.
    pub remedy: Cow<'static, str>,
}

impl Finding {
    /// Replaces a placeholder in capitals in the remedy with a value, so that commands can be
    /// copied.
    #[must_use]
    pub fn naming(self, word: &str, value: &str) -> Self {
        Self { remedy: self.remedy.replace(word, value).into(), ..self }
    }
}

/// As one warning of `meshport status`.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}. {} ({})", self.detail, self.remedy, self.kind.id)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn ids_are_unique_in_order_and_of_one_form() {
        let ids: Vec<&str> = ALL.iter().map(|kind| kind.id).collect();
        let sorted: BTreeSet<&str> = ids.iter().copied().collect();
        assert_eq!(ids, sorted.into_iter().collect::<Vec<_>>());
        for id in ids {
            let digits = id.strip_prefix("MP").expect("it begins with MP");
            assert!(digits.len() == 3 && digits.parse::<u16>().is_ok(), "{id}");
            assert!(matches!(&digits[..1], "1" | "2" | "3"), "{id}");
            assert_eq!(by_id(&id.to_lowercase()).map(|kind| kind.id), Some(id));
        }
        assert_eq!(by_id("MP999"), None);
    }

    #[test]
    fn texts_are_sentences_without_their_end() {
        for Kind { id, title, healthy, meaning, remedy, .. } in ALL {
            for text in [title, healthy, meaning, remedy] {
                assert!(!text.is_empty() && !text.ends_with(['.', ' ']), "{id}: {text}");
                assert!(!text.contains("  ") && text.trim_start() == *text, "{id}: {text}");
            }
            for begun in [meaning, remedy] {
                assert!(begun.starts_with(|c: char| c.is_uppercase() || c == '`'), "{id}: {begun}");
            }
        }
    }

    /// Each kind has a section with its texts, in order, and there is no section for a removed
    /// kind.
    #[test]
    fn the_page_has_a_section_for_each_kind() {
        let page = include_str!("../../../docs/troubleshoot.md");
        let mut sections = page.split("\n### MP").skip(1);
        for kind in ALL {
            let section = sections.next().unwrap_or_else(|| panic!("{} has no section", kind.id));
            let said: Vec<&str> = section.split_whitespace().collect();
            let (first, rest) = kind.title.split_at(1);
            let Kind { severity, meaning, remedy, .. } = kind;
            let expected = format!(
                "{} **{}{rest}** ({}). {meaning}. {remedy}.",
                &kind.id[2..],
                first.to_uppercase(),
                severity.word()
            );
            assert!(said.join(" ").starts_with(&expected), "expected: ### MP{expected}");
        }
        assert_eq!(sections.next(), None, "a section without a kind");
    }

    #[test]
    fn a_finding_is_a_warning_with_its_id() {
        let found = CREDENTIAL_ENDS.found("it ends in 2 d");
        assert_eq!(found.severity, Severity::Warning);
        assert_eq!(CREDENTIAL_ENDS.broken("").severity, Severity::Error);
        let text = found.to_string();
        assert!(text.starts_with("it ends in 2 d. ") && text.ends_with(" (MP203)"), "{text}");
        let named = KEY_USED_TWICE.found("two").naming("NODE", "cp-1");
        assert!(named.to_string().contains("`meshport revoke cp-1`"), "{named}");
        assert_eq!(CREDENTIAL_ENDS.anchor(), "docs/troubleshoot.md#mp203");
    }
}
