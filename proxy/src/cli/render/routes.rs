//! `meshport routes`: per service, the order in which a new session would try the origins.

use super::status::{lacks, path, sharing, title};
use super::style::{Style, of_state};
use super::table::{Cell, Column, Table, left, right, wrapped};
use meshport_core::units::milliseconds;
use meshport_daemon::admin::api::{OriginStatus, ServiceStatus};

const CANDIDATES: [Column; 7] = [
    right("TRY", 0),
    left("ORIGIN", 0),
    left("SITE", 0),
    left("STATE", 0),
    right("RTT", 0),
    left("PATH", 1),
    left("WHY", 0),
];

/// A block per service.
pub(crate) fn routes(services: &[ServiceStatus], style: impl Into<Style>) -> String {
    let style = style.into();
    let blocks: Vec<String> = services.iter().map(|service| block(service, style)).collect();
    match blocks.is_empty() {
        true => "no service is used or offered here\n".into(),
        false => blocks.join("\n"),
    }
}

fn block(service: &ServiceStatus, style: Style) -> String {
    let mut text = wrapped(&title(service), 0, style);
    if service.origins.is_empty() {
        text.push_str(&wrapped("no origin is known", 2, style));
        return text;
    }
    let mut table = Table::new(&CANDIDATES);
    let mut rank = 0;
    for origin in &service.origins {
        let turn = if origin.usable {
            rank += 1;
            rank.to_string()
        } else {
            "-".into()
        };
        table.row([
            turn.into(),
            origin.who.name.as_str().into(),
            origin.who.site_or_dash().into(),
            Cell::new(origin.state.as_str(), of_state(&origin.state)),
            origin.rtt_ms.map_or_else(|| "-".into(), milliseconds).into(),
            path(origin),
            lacks(origin, &why(service, origin)),
        ]);
    }
    text.push_str(&table.render(2, style));
    text
}

/// The reason for an origin's position.
fn why(service: &ServiceStatus, origin: &OriginStatus) -> String {
    let first = service.origins.iter().find(|it| it.chosen);
    let (Some(first), Some(chosen)) = (first, &service.chosen) else { return origin.lacks.clone() };
    match () {
        () if origin.chosen => format!("{}{}", chosen.why, sharing(service)),
        () if !origin.lacks.is_empty() => origin.lacks.clone(),
        () if origin.shares => "shares new sessions".into(),
        () => distance(first, origin).unwrap_or_else(|| "as good, and next in order".into()),
    }
}

/// How much farther a healthy origin is than the first one, if that is known.
fn distance(first: &OriginStatus, origin: &OriginStatus) -> Option<String> {
    let of = |it: &OriginStatus| if it.path == "own" { Some(0.0) } else { it.rtt_ms };
    let more = of(origin)? - of(first)?;
    Some(match more < 0.0 {
        true => format!("nearer by {}: not by enough, or not for long enough", milliseconds(-more)),
        false => format!("farther by {}", milliseconds(more)),
    })
}
