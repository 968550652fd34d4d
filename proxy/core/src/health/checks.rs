//! The failing checks of an apiserver's `/readyz`, from its answer.
//!
//! An answer other than 200 lists every check on a separate line, with and without `?verbose`:
//! `[+]ping ok` or `[-]etcd failed: reason withheld`. So no second request is needed. The text
//! comes from outside: only well-formed names are accepted, at most [`MAX_CHECKS`] of at most
//! [`MAX_CHECK_BYTES`].

use std::fmt;

/// Failing checks that are named, as fit in a line of `status`; the others are counted.
pub const MAX_CHECKS: usize = 4;
/// Bytes of a name: `poststarthook/start-kube-apiserver-identity-lease-garbage-collector` has 67.
pub const MAX_CHECK_BYTES: usize = 80;
/// Bytes of an answer that are read: 200 lines with the longest names.
pub const MAX_CHECKS_BODY: usize = 16 * 1024;

/// The failing checks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FailingChecks {
    names: Vec<String>,
    /// How many more there are.
    unnamed: usize,
}

impl FailingChecks {
    /// The failing checks in the body of an answer, of which [`MAX_CHECKS_BODY`] bytes are read.
    pub fn parse(body: &[u8]) -> Self {
        let mut checks = Self::default();
        let body = &body[..body.len().min(MAX_CHECKS_BODY)];
        for name in body.split(|byte| *byte == b'\n').filter_map(failing) {
            match name {
                _ if checks.names.iter().any(|known| known == name) => {}
                name if checks.names.len() < MAX_CHECKS => checks.names.push(name.to_owned()),
                _ => checks.unnamed += 1,
            }
        }
        checks
    }

    /// Whether none is known to fail.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// How many fail, as far as they were listed.
    pub fn count(&self) -> usize {
        self.names.len() + self.unnamed
    }
}

impl fmt::Display for FailingChecks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names.join(", "))?;
        match self.unnamed {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

/// The name in a line about a failed check.
fn failing(line: &[u8]) -> Option<&str> {
    let rest = line.strip_prefix(b"[-]")?;
    let end = rest.iter().position(|byte| *byte == b' ')?;
    let name = rest.get(..end).filter(|_| rest[end..].starts_with(b" failed"))?;
    let is_fine = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_./:".contains(byte);
    let is_name = (1..=MAX_CHECK_BYTES).contains(&name.len()) && name.iter().all(is_fine);
    std::str::from_utf8(name).ok().filter(|_| is_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_failing_checks_of_an_apiserver_are_named() {
        let body = b"[+]ping ok\n[-]etcd failed: reason withheld\n[+]log ok\n\
                     [-]poststarthook/rbac/bootstrap-roles failed: reason withheld\n\
                     readyz check failed\n";
        let checks = FailingChecks::parse(body);
        assert_eq!(checks.to_string(), "etcd, poststarthook/rbac/bootstrap-roles");
        assert_eq!((checks.count(), checks.is_empty()), (2, false));
    }

    #[test]
    fn what_is_no_list_of_checks_names_none() {
        let long = format!("[-]{} failed\n", "x".repeat(MAX_CHECK_BYTES + 1));
        for body in [
            "",
            "Internal Server Error",
            "etcd failed",
            "[-]etcd",
            "[-]etcd ok",
            "[-] failed",
            "[-]\u{1b}[31metcd failed: x",
            "[-]\u{202e}etcd failed",
            " [-]etcd failed",
            "[-]etcd\tfailed",
            &long,
        ] {
            let checks = FailingChecks::parse(body.as_bytes());
            assert!(checks.is_empty() && checks.to_string().is_empty(), "{body:?}: {checks}");
        }
        assert!(FailingChecks::parse(b"[-]\xff\xfe failed\n").is_empty());
    }

    #[test]
    fn many_checks_are_counted() {
        let lines: String = (0..9).map(|number| format!("[-]c{number} failed: x\r\n")).collect();
        let twice = format!("{}{lines}", "[-]c0 failed\n".repeat(2));
        let checks = FailingChecks::parse(twice.as_bytes());
        assert_eq!(checks.to_string(), "c0, c1, c2, c3 and 5 more");
        let endless = "[-]c0 failed\n".repeat(MAX_CHECKS_BODY);
        assert_eq!(FailingChecks::parse(endless.as_bytes()).count(), 1);
    }
}
