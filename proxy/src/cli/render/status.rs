//! `meshport status`: this node, its services with their origins, absent members, and warnings.

use std::cmp::Reverse;
use std::fmt::Write;

use super::style::{Style, Tone, of_state};
use super::table::{Cell, Column, Table, item, left, right, toned, wrapped};
use meshport_core::units::{age, clean, counted, milliseconds};
use meshport_daemon::admin::api::{
    AbsentMember, ExposedStatus, OfferedStatus, Offering, OriginRef, OriginStatus, ServiceStatus,
    Status, VirtualAddressStatus,
};
use meshport_daemon::admin::credentials::SecretStatus;
use meshport_daemon::admin::view;

const ORIGINS: [Column; 9] = [
    left("", 0),
    left("ORIGIN", 0),
    left("SITE", 0),
    left("STATE", 0),
    right("RTT", 0),
    left("PATH", 2),
    right("SESSIONS", 3),
    right("AGE", 4),
    left("PROBLEM", 0),
];
const ABSENT: [Column; 4] = [left("MEMBER", 0), left("SITE", 0), left("STATE", 0), left("FOR", 0)];

/// The title of the warnings, which come last.
pub(crate) const WARNINGS: &str = "Warnings";

/// The whole page.
pub(crate) fn status(status: &Status, now: u64, style: impl Into<Style>) -> String {
    let style = style.into();
    let mut text = header(status, now, style);
    for service in &status.services {
        text.push('\n');
        text.push_str(&service_block(service, style));
    }
    for exposed in &status.edge.exposed {
        text.push('\n');
        text.push_str(&exposed_block(exposed, style));
    }
    for address in &status.edge.virtual_addresses {
        text.push('\n');
        text.push_str(&address_block(address, style));
    }
    for offered in &status.edge.offered {
        text.push('\n');
        text.push_str(&offered_block(offered, style));
    }
    if !status.absent.is_empty() {
        text.push_str("\nAbsent\n");
        text.push_str(&absent(&status.absent, style));
    }
    if !status.warnings.is_empty() {
        text.push_str(&format!("\n{WARNINGS}\n"));
        for warning in &status.warnings {
            text.push_str(&item(warning, Tone::Warn, 2, style));
        }
    }
    text
}

fn header(status: &Status, now: u64, style: Style) -> String {
    // An earlier release does not tell its time.
    let now = status.process.now_s.unwrap_or(now);
    let me = &status.me;
    let members = &status.members;
    let mut lines = wrapped(
        &format!(
            "{} in site {} ({}), up {}, meshport {}",
            me.name,
            me.site,
            status.roles,
            age(status.process.uptime_s),
            status.process.version
        ),
        0,
        style,
    );
    let mut mesh = format!("mesh on {}: {} alive", status.process.mesh_listen, members.alive);
    for (count, word) in [(members.down, "down"), (members.left, "left")] {
        if count > 0 {
            write!(mesh, ", {count} {word}").expect("writing to a String does not fail");
        }
    }
    let (credential, tone) = match status.credential_expires_at.0.saturating_sub(now) {
        0 => ("credential has expired".to_owned(), Tone::Bad),
        left if status.findings.iter().any(|it| it.id == "MP203") => {
            (format!("credential expires in {}", age(left)), Tone::Warn)
        }
        left => (format!("credential expires in {}", age(left)), Tone::Plain),
    };
    lines.push_str(&toned(&format!("{mesh}; {credential}"), tone, 0, style));
    if members.releases.len() > 1 {
        let mut most_first: Vec<_> = members.releases.iter().collect();
        most_first.sort_by_key(|(_, many)| Reverse(*many));
        let counts = most_first.into_iter().map(|(release, many)| format!("{release} ({many})"));
        let text = format!("members run {}", counts.collect::<Vec<_>>().join(", "));
        lines.push_str(&wrapped(&text, 0, style));
    }
    if let Some(ends) = status.secret.former_ends_at {
        let SecretStatus { number, lagging, .. } = &status.secret;
        let left = age(ends.0.saturating_sub(now));
        let who = match lagging {
            0 => "all known members have the new one".to_owned(),
            1 => "one member may lack the new one".to_owned(),
            many => format!("{many} members may lack the new one"),
        };
        let text = format!("mesh secret {number}, the previous one works for {left}; {who}");
        lines.push_str(&wrapped(&text, 0, style));
    }
    if let Some(former) = &status.former_key {
        let (key, left) = (former.node.short(), age(former.ends_at.0.saturating_sub(now)));
        let text = format!("a new key is in use; the previous one ({key}) answers for {left}");
        lines.push_str(&wrapped(&text, 0, style));
    }
    if let Some(back) = &status.way_back {
        let nodes = [(back.nodes_down, "down"), (back.nodes_missing, "not in the mesh")];
        let nodes = nodes.iter().filter(|(count, _)| *count > 0);
        let nodes: String = nodes.map(|(count, word)| format!(", {count} {word}")).collect();
        let text = format!(
            "way back: {} reached{nodes}; {} open, {} refused since start",
            counted(back.nodes_there, "node"),
            counted(back.streams_open, "stream"),
            back.refused
        );
        lines.push_str(&wrapped(&text, 0, style));
    }
    lines
}

fn service_block(service: &ServiceStatus, style: Style) -> String {
    let mut text = wrapped(&title(service), 0, style);
    let sessions = format!(
        "{} open, {} since start, {} found no origin",
        counted(service.sessions_open, "session"),
        service.sessions_total,
        service.sessions_failed
    );
    if !service.listen.is_empty() {
        let (choice, tone) = first_choice(service);
        text.push_str(&toned(&choice, tone, 2, style));
        text.push_str(&wrapped(&sessions, 2, style));
    }
    if let Some(offering) = &service.offering {
        text.push_str(&toned(&offered(offering), of_state(&offering.state), 2, style));
    }
    if !service.origins.is_empty() {
        let mut table = Table::new(&ORIGINS);
        for origin in &service.origins {
            table.row(origin_row(origin));
        }
        text.push_str(&table.render(2, style));
    }
    text
}

/// A listener for clients that run no meshport.
fn exposed_block(exposed: &ExposedStatus, style: Style) -> String {
    let names: Vec<&str> = exposed.services.iter().map(AsRef::as_ref).collect();
    let listen: Vec<String> = exposed.listen.iter().map(ToString::to_string).collect();
    let title =
        format!("exposed {} at {}, to {}", exposed.name, listen.join(" and "), names.join(", "));
    let mut text = wrapped(&title, 0, style);
    if !exposed.closed.is_empty() {
        let closed: Vec<String> = exposed.closed.iter().map(ToString::to_string).collect();
        let closed = format!("closed, since no origin answers: {}", closed.join(" and "));
        text.push_str(&toned(&closed, Tone::Bad, 2, style));
    }
    if !exposed.lost.is_empty() {
        let lost: Vec<String> = exposed.lost.iter().map(ToString::to_string).collect();
        let lost = format!("lost, as MP101 explains: {}", lost.join(" and "));
        text.push_str(&toned(&lost, Tone::Bad, 2, style));
    }
    let counts = format!(
        "{} open, {} since start",
        counted(exposed.sessions_open, "connection"),
        counted(exposed.sessions_total, "session")
    );
    text.push_str(&wrapped(&counts, 2, style));
    if !exposed.refused.is_empty() {
        let each = exposed.refused.iter().map(|(reason, count)| format!("{count} {reason}"));
        let refused = format!("refused: {}", each.collect::<Vec<_>>().join(", "));
        text.push_str(&wrapped(&refused, 2, style));
    }
    text
}

/// A service that a program on this machine offers.
fn offered_block(it: &OfferedStatus, style: Style) -> String {
    let title = format!(
        "offered {}, to {}, for {}s unless renewed",
        it.name,
        it.allow.join(", "),
        it.ends_in_s
    );
    let mut text = wrapped(&title, 0, style);
    if it.instances.is_empty() {
        text.push_str(&toned("no instance is ready", Tone::Bad, 2, style));
    } else {
        let count = counted(it.instances.len() as u64, "instance");
        let instances = format!("{count}: {}", it.instances.join(", "));
        text.push_str(&wrapped(&instances, 2, style));
    }
    text
}

/// A virtual address of this node's group.
fn address_block(it: &VirtualAddressStatus, style: Style) -> String {
    let title = format!(
        "virtual address {} ({}) on {}, group {}, for {}",
        it.name, it.address, it.interface, it.group, it.service
    );
    let mut text = wrapped(&title, 0, style);
    let age = age(it.for_s);
    let state = match &it.holder {
        Some(holder) if it.state == "standby" => format!("standby for {age}; {holder} holds it"),
        _ => format!("{} for {age}", it.state),
    };
    text.push_str(&wrapped(&state, 2, style));
    if !it.others.is_empty() {
        let others = format!("others of the group: {}", it.others.join(", "));
        text.push_str(&wrapped(&others, 2, style));
    } else if it.obstacle.is_none() {
        // With one, this node may not hear them.
        text.push_str(&wrapped("no other node of the group is reachable", 2, style));
    }
    if let Some(obstacle) = &it.obstacle {
        text.push_str(&toned(&format!("cannot hold it: {obstacle}"), Tone::Bad, 2, style));
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

fn first_choice(service: &ServiceStatus) -> (String, Tone) {
    match &service.chosen {
        Some(chosen) => {
            let rtt = service
                .origins
                .iter()
                .find(|origin| origin.who.node == chosen.who.node)
                .and_then(|origin| origin.rtt_ms);
            let distance = rtt.map_or_else(String::new, |rtt| format!(", {}", milliseconds(rtt)));
            let place = origin_place(&chosen.who);
            let healthy = service.origins.iter().any(|it| it.chosen && it.lacks.is_empty());
            let tone = if healthy { Tone::Plain } else { Tone::Warn };
            let (why, since) = (&chosen.why, age(chosen.since_s));
            let shared = sharing(service);
            let text = format!("uses {place}{distance}: {why}, for {since}{shared}");
            (text, tone)
        }
        None if service.origins.is_empty() => ("uses no origin: none is known".into(), Tone::Bad),
        None => {
            let all = service.origins.len();
            (format!("uses no origin: none of {all} is usable"), Tone::Bad)
        }
    }
}

/// The origins that share new sessions with the first choice.
pub(super) fn sharing(service: &ServiceStatus) -> String {
    shared_with(&service.policy, service.origins.iter())
}

/// As [`sharing`], of these origins.
pub(super) fn shared_with<'a>(
    policy: &str,
    origins: impl Iterator<Item = &'a OriginStatus>,
) -> String {
    let others = origins.filter(|it| it.shares && !it.chosen);
    view::shared_with(policy, others.map(|it| it.who.name.as_str()))
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

fn origin_row(origin: &OriginStatus) -> [Cell; 9] {
    [
        mark(origin).into(),
        origin.who.name.as_str().into(),
        origin.who.site_or_dash().into(),
        Cell::new(origin.state.as_str(), of_state(&origin.state)),
        origin.rtt_ms.map_or_else(|| "-".into(), milliseconds).into(),
        path(origin),
        origin.sessions.to_string().into(),
        age(origin.state_since_s).into(),
        lacks(origin, origin.lacks.as_str()),
    ]
}

/// Whether new sessions go to an origin.
pub(super) fn mark(origin: &OriginStatus) -> &'static str {
    match (origin.chosen, origin.shares) {
        (true, _) => "*",
        (false, true) => "+",
        (false, false) => "",
    }
}

/// What an origin lacks, in the colour of its consequence.
pub(super) fn lacks(origin: &OriginStatus, text: &str) -> Cell {
    let tone = match (origin.lacks.is_empty(), origin.usable) {
        (true, _) => Tone::Plain,
        (false, true) => Tone::Warn,
        (false, false) => Tone::Bad,
    };
    Cell::new(text, tone)
}

/// The path, with its loss if it loses some packets but not all.
pub(super) fn path(origin: &OriginStatus) -> Cell {
    let way = match (&origin.who.relay, origin.path.as_str()) {
        (Some(relay), "relayed") => format!("through {relay}"),
        (_, path) => path.to_owned(),
    };
    match origin.loss_percent {
        Some(loss) if (1..100).contains(&loss) => {
            Cell::new(format!("{way}, {loss} % loss"), Tone::Warn)
        }
        _ if way == "dead" => Cell::new(way, Tone::Bad),
        _ => way.into(),
    }
}

fn absent(members: &[AbsentMember], style: Style) -> String {
    let mut table = Table::new(&ABSENT);
    for member in members {
        let tone = if member.liveness == "down" { Tone::Bad } else { Tone::Plain };
        table.row([
            member.who.name.to_string().into(),
            member.who.site.to_string().into(),
            Cell::new(member.liveness.as_str(), tone),
            age(member.since_s).into(),
        ]);
    }
    table.render(2, style)
}
