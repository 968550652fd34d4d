//! `meshport credentials`: one row per credential, and the revocations.

use super::style::{Style, Tone};
use super::table::{Cell, Column, Table, left, right};
use meshport_core::units::age;
use meshport_daemon::admin::credentials::{CredentialRow, Validity};

const CREDENTIALS: [Column; 9] = [
    left("", 0),
    left("NAME", 0),
    left("SITE", 3),
    left("ROLES", 2),
    right("AGE", 4),
    right("EXPIRES IN", 0),
    left("STATUS", 0),
    right("SECRET", 5),
    left(KEY, 1),
];
const KEY: &str = "KEY";

fn status(row: &CredentialRow) -> Cell {
    match row.revoked_at {
        Some(at) if row.successor.is_some() => format!("replaced {at}").into(),
        Some(at) if row.left => format!("left {at}").into(),
        Some(at) => Cell::new(format!("{} {at}", row.validity.word()), tone(row.validity)),
        None => Cell::new(row.validity.word(), tone(row.validity)),
    }
}

fn tone(validity: Validity) -> Tone {
    match validity {
        Validity::Valid => Tone::Plain,
        Validity::EndsSoon => Tone::Warn,
        Validity::Ended | Validity::Revoked => Tone::Bad,
    }
}

/// The table; the daemon's own credential is marked.
pub(crate) fn credentials(rows: &[CredentialRow], now: u64, style: impl Into<Style>) -> String {
    let mut columns = CREDENTIALS;
    if rows.iter().any(|row| row.name.is_none()) {
        // Only the key tells which one it is.
        columns.iter_mut().filter(|it| it.title == KEY).for_each(|it| it.spare = 0);
    }
    let mut table = Table::new(&columns);
    let text = |it: Option<String>| it.unwrap_or_else(|| "-".into());
    for row in rows {
        let key = match (&row.node, &row.invite) {
            (Some(node), _) => node.short(),
            (None, invite) => text(invite.as_ref().map(|key| format!("invite {key}"))),
        };
        table.row([
            if row.own { "*" } else { "" }.into(),
            text(row.name.as_ref().map(ToString::to_string)).into(),
            text(row.site.as_ref().map(ToString::to_string)).into(),
            text(row.roles.as_ref().map(ToString::to_string)).into(),
            text(row.issued_at.map(|at| age(now.saturating_sub(at.0)))).into(),
            text(row.expires_at.map(|at| age(at.0.saturating_sub(now)))).into(),
            status(row),
            text(row.secret_number.map(|number| number.to_string())).into(),
            key.into(),
        ]);
    }
    table.render(0, style)
}

#[cfg(test)]
mod tests {
    use meshport_config::UnixSeconds;

    use super::*;
    use meshport_core::testing::credential;
    use meshport_daemon::admin::credentials::Validity;

    #[test]
    fn own_others_and_revoked_stand_in_one_table() {
        let (now, day) = (1_800_000_000, 86_400);
        let row = |number, days: u64, own| {
            let it = credential(number, "node");
            let expires_at = UnixSeconds(now + days * day);
            CredentialRow {
                node: Some(it.node),
                name: Some(it.name),
                site: Some(it.site),
                roles: Some(it.roles),
                invite: None,
                authority: None,
                own,
                issued_at: Some(UnixSeconds(now - 2 * day)),
                expires_at: Some(expires_at),
                revoked_at: None,
                successor: None,
                left: false,
                validity: Validity::of(expires_at, UnixSeconds(now)),
                secret_number: own.then_some(3),
            }
        };
        let revoked = CredentialRow {
            name: None,
            site: None,
            roles: None,
            issued_at: None,
            expires_at: None,
            revoked_at: Some(UnixSeconds(now - day)),
            validity: Validity::Revoked,
            ..row(3, 9, false)
        };
        let replaced = CredentialRow { successor: row(1, 1, true).node, ..revoked.clone() };
        let narrow = |rows: &[CredentialRow]| {
            let text = credentials(rows, now, Some(40));
            text.lines().next().expect("a header").ends_with("KEY")
        };
        let named = [row(1, 200, true), row(2, 12, false)];
        assert!(!narrow(&named), "each has a name");
        assert!(narrow(&[named[0].clone(), revoked.clone()]));
        let ended = CredentialRow { validity: Validity::Ended, ..row(4, 0, false) };
        let style = Style { width: None, colour: true };
        let text = credentials(&[&named[..], &[revoked.clone(), ended]].concat(), now, style);
        for painted in ["\x1b[33mexpires soon", "\x1b[31mrevoked", "\x1b[31mexpired\x1b"] {
            assert!(text.contains(painted), "{painted:?}: {text:?}");
        }
        let left = CredentialRow { left: true, ..revoked.clone() };
        assert!(!credentials(std::slice::from_ref(&left), now, style).contains("\x1b[31m"));
        let rows = [row(1, 200, true), row(2, 12, false), revoked, replaced, left];
        let text = credentials(&rows, now, None);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].starts_with("*  node-1  fra   node") && lines[1].contains("valid"));
        assert!(lines[0].contains("SECRET") && lines[1].contains("   3  "), "{text}");
        assert!(lines[2].contains("12d") && lines[2].contains("expires soon"), "{text}");
        assert!(lines[3].contains("revoked 2027-01-14T08:00:00Z"), "{text}");
        assert!(lines[4].contains("replaced 2027-01-14T08:00:00Z"), "{text}");
        assert!(lines[5].contains("left 2027-01-14T08:00:00Z"), "{text}");
        assert_eq!(row(1, 0, false).validity, Validity::Ended);
    }
}
