//! `meshport status`: this node, its services with their origins, who is absent, what to look at.

use std::fmt::Write;

use super::table::{Column, Table, left, right, wrapped};
use super::units::{age, clean, counted, milliseconds};
use crate::admin::api::{AbsentMember, Offering, OriginRef, OriginStatus, ServiceStatus, Status};
use crate::admin::credentials::SecretStatus;

const ORIGINS: [Column; 9] = [
    left("", 0),
    left("ORIGIN", 0),
    left("SITE", 0),
    left("STATE", 0),
    right("RTT", 0),
    left("PATH", 2),
    right("SESSIONS", 3),
    right("AGE", 4),
    left("LACKS", 0),
];
const ABSENT: [Column; 4] = [left("MEMBER", 0), left("SITE", 0), left("IS", 0), left("FOR", 0)];

/// The whole page.
pub(crate) fn status(status: &Status, now: u64, width: Option<usize>) -> String {
    let mut text = header(status, now, width);
    for service in &status.services {
        text.push('\n');
        text.push_str(&service_block(service, width));
    }
    if !status.absent.is_empty() {
        text.push_str("\nAbsent\n");
        text.push_str(&absent(&status.absent, width));
    }
    if !status.warnings.is_empty() {
        text.push_str("\nWarnings\n");
        for warning in &status.warnings {
            text.push_str(&wrapped(warning, 2, width));
        }
    }
    text
}

fn header(status: &Status, now: u64, width: Option<usize>) -> String {
    let me = &status.me;
    let members = &status.members;
    let mut lines = wrapped(
        &format!(
            "{} in site {} ({}), up {}, meshport {}",
            me.name,
            me.site,
            status.roles,
            age(status.uptime_s),
            status.version
        ),
        0,
        width,
    );
    let mut mesh = format!("mesh on {}: {} alive", status.mesh_listen, members.alive);
    for (count, word) in [(members.down, "down"), (members.left, "left")] {
        if count > 0 {
            write!(mesh, ", {count} {word}").expect("writing to a String does not fail");
        }
    }
    let credential = match status.credential_expires_at.0.checked_sub(now) {
        None | Some(0) => "credential has expired".to_owned(),
        Some(left) => format!("credential ends in {}", age(left)),
    };
    lines.push_str(&wrapped(&format!("{mesh}; {credential}"), 0, width));
    if let Some(ends) = status.secret.former_ends_at {
        let SecretStatus { number, lagging, .. } = &status.secret;
        let left = age(ends.0.saturating_sub(now));
        let who = match lagging {
            0 => "all known members have it".to_owned(),
            1 => "one member may lack it".to_owned(),
            many => format!("{many} members may lack it"),
        };
        let text = format!("mesh secret {number}, the former one opens tunnels for {left}; {who}");
        lines.push_str(&wrapped(&text, 0, width));
    }
    if let Some(former) = &status.former_key {
        let (key, left) = (former.node.short(), age(former.ends_at.0.saturating_sub(now)));
        let text = format!("a new key is in use; the former one ({key}) answers for {left}");
        lines.push_str(&wrapped(&text, 0, width));
    }
    lines
}

fn service_block(service: &ServiceStatus, width: Option<usize>) -> String {
    let mut text = wrapped(&title(service), 0, width);
    let sessions = format!(
        "{} open, {} since start, {} found no origin",
        counted(service.sessions_open, "session"),
        service.sessions_total,
        service.sessions_failed
    );
    if !service.listen.is_empty() {
        text.push_str(&wrapped(&first_choice(service), 2, width));
        text.push_str(&wrapped(&sessions, 2, width));
    }
    if let Some(offering) = &service.offering {
        text.push_str(&wrapped(&offered(offering), 2, width));
    }
    if !service.origins.is_empty() {
        let mut table = Table::new(&ORIGINS);
        for origin in &service.origins {
            table.row(origin_row(origin));
        }
        text.push_str(&table.render(2, width));
    }
    text
}

/// The name, where clients connect and how origins are chosen.
pub(super) fn title(service: &ServiceStatus) -> String {
    let listen: Vec<String> = service.listen.iter().map(ToString::to_string).collect();
    match listen.is_empty() {
        true => format!("{}, offered only", service.name),
        false => format!("{} at {}, policy {}", service.name, listen.join(" and "), service.policy),
    }
}

fn first_choice(service: &ServiceStatus) -> String {
    match &service.chosen {
        Some(chosen) => {
            let rtt = service
                .origins
                .iter()
                .find(|origin| origin.who.node == chosen.who.node)
                .and_then(|origin| origin.rtt_ms);
            let distance = rtt.map_or_else(String::new, |rtt| format!(", {}", milliseconds(rtt)));
            let place = origin_place(&chosen.who);
            format!("uses {place}{distance}: {}, for {}", chosen.why, age(chosen.since_s))
        }
        None if service.origins.is_empty() => "uses no origin: none is known".into(),
        None => format!("uses no origin: none of {} is usable", service.origins.len()),
    }
}

pub(super) fn origin_place(who: &OriginRef) -> String {
    let name = match (&who.site, &who.relay) {
        (Some(site), _) => format!("{} in {site}", who.name),
        (None, _) => who.name.clone(),
    };
    who.relay.iter().fold(name, |name, relay| format!("{name} through {relay}"))
}

fn offered(offering: &Offering) -> String {
    let detail = match clean(&offering.detail) {
        detail if detail.is_empty() || detail == offering.state => String::new(),
        detail => format!(" ({detail})"),
    };
    format!(
        "offers {}: {} for {}{detail}, {} of other nodes",
        offering.address,
        offering.state,
        age(offering.since_s),
        counted(offering.sessions, "session")
    )
}

fn origin_row(origin: &OriginStatus) -> [String; 9] {
    [
        if origin.chosen { "*".into() } else { String::new() },
        origin.who.name.to_string(),
        origin.who.place().to_owned(),
        origin.state.clone(),
        origin.rtt_ms.map_or_else(|| "-".into(), milliseconds),
        path(origin),
        origin.sessions.to_string(),
        age(origin.state_since_s),
        origin.lacks.clone(),
    ]
}

/// The path with its loss, where it loses some but not all.
pub(super) fn path(origin: &OriginStatus) -> String {
    let way = match (&origin.who.relay, origin.path.as_str()) {
        (Some(relay), "relayed") => format!("through {relay}"),
        (_, path) => path.to_owned(),
    };
    match origin.loss_percent {
        Some(loss) if (1..100).contains(&loss) => format!("{way}, {loss} % loss"),
        _ => way,
    }
}

fn absent(members: &[AbsentMember], width: Option<usize>) -> String {
    let mut table = Table::new(&ABSENT);
    for member in members {
        table.row([
            member.who.name.to_string(),
            member.who.site.to_string(),
            member.liveness.clone(),
            age(member.since_s),
        ]);
    }
    table.render(2, width)
}
