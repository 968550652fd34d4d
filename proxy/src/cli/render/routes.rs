//! `meshport routes`: per service, the order in which a new session would try the origins.

use super::status::{path, title};
use super::table::{Column, Table, left, right, wrapped};
use super::units::milliseconds;
use crate::admin::api::ServiceStatus;

const CANDIDATES: [Column; 7] = [
    right("TRY", 0),
    left("ORIGIN", 0),
    left("SITE", 0),
    left("STATE", 0),
    right("RTT", 0),
    left("PATH", 1),
    left("WHY", 0),
];

/// One block per service.
pub(crate) fn routes(services: &[ServiceStatus], width: Option<usize>) -> String {
    let blocks: Vec<String> = services.iter().map(|service| block(service, width)).collect();
    match blocks.is_empty() {
        true => "no service is used or offered here\n".into(),
        false => blocks.join("\n"),
    }
}

fn block(service: &ServiceStatus, width: Option<usize>) -> String {
    let mut text = wrapped(&title(service), 0, width);
    if service.origins.is_empty() {
        text.push_str(&wrapped("no origin is known", 2, width));
        return text;
    }
    let mut table = Table::new(&CANDIDATES);
    let mut place = 0;
    for origin in &service.origins {
        let turn = if origin.usable {
            place += 1;
            place.to_string()
        } else {
            "-".into()
        };
        let chosen = service.chosen.as_ref().filter(|_| origin.chosen);
        let why = chosen.map_or_else(|| origin.lacks.clone(), |chosen| chosen.why.clone());
        table.row([
            turn,
            origin.who.name.to_string(),
            origin.who.place().to_owned(),
            origin.state.clone(),
            origin.rtt_ms.map_or_else(|| "-".into(), milliseconds),
            path(origin),
            why,
        ]);
    }
    text.push_str(&table.render(2, width));
    text
}
