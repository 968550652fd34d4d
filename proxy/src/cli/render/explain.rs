//! `meshport explain`: why sessions go where they go.

use super::status::{mark, origin_place, path, shared_with};
use super::style::{Style, Tone};
use super::table::{Cell, Column, Table, left, right, toned, wrapped};
use meshport_core::reach::{BOTH_BEHIND_NAT, BOTH_BEHIND_NAT_REMEDY};
use meshport_core::units::{age, counted, milliseconds};
use meshport_daemon::admin::api::OriginRef;
use meshport_daemon::admin::explain::{CandidateFacts, Explanation, RelayFacts, RouteChange};

const CANDIDATES: [Column; 9] = [
    left("", 0),
    left("ORIGIN", 0),
    left("SITE", 4),
    left("STANDING", 0),
    right("COST", 0),
    right("RTT", 0),
    right("DEVIATION", 3),
    left("PATH", 2),
    right("EVIDENCE", 1),
];
const CHANGES: [Column; 4] = [right("AGO", 0), left("FROM", 0), left("TO", 0), left("CAUSE", 0)];

/// A block per service of `shown`, a part of `all`: each candidate is compared with the first of
/// all.
pub(crate) fn explain(
    shown: &[Explanation],
    all: &[Explanation],
    style: impl Into<Style>,
) -> String {
    let style = style.into();
    let whole = |it: &Explanation| all.iter().find(|whole| whole.service == it.service);
    let blocks = shown.iter().map(|it| block(it, whole(it).unwrap_or(it), style));
    let blocks: Vec<String> = blocks.collect();
    match blocks.is_empty() {
        true => "no service is used or offered here\n".into(),
        false => blocks.join("\n"),
    }
}

fn block(explanation: &Explanation, whole: &Explanation, style: Style) -> String {
    let Explanation { service, policy, chosen, candidates, sessions, changes } = explanation;
    let choice = match chosen {
        Some(chosen) => {
            let place = origin_place(&chosen.who);
            let shared = shared_with(policy, whole.candidates.iter().map(|it| &it.status));
            format!("{place}: {}, for {}{shared}", chosen.why, age(chosen.since_s))
        }
        None => "no origin can be used".into(),
    };
    let mut text = wrapped(&format!("{service}, policy {policy}: {choice}"), 0, style);
    if candidates.is_empty() {
        text.push_str(&wrapped("no origin is known", 2, style));
    } else {
        text.push_str(&table(candidates, style));
        text.push_str("\n  Origins\n");
        for candidate in candidates {
            let tone = of_standing(&candidate.standing);
            text.push_str(&toned(&sentence(candidate, &whole.candidates[0]), tone, 4, style));
            for relay in &candidate.relays {
                text.push_str(&wrapped(&relay_line(relay), 6, style));
            }
        }
    }
    if !sessions.is_empty() {
        text.push_str("\n  Sessions of this node's clients\n");
        for line in sessions {
            let count = counted(line.open, "session");
            let text_line = format!("{}: {count}", origin_place(&line.who));
            text.push_str(&wrapped(&text_line, 4, style));
        }
    }
    if !changes.is_empty() {
        text.push_str("\n  Last changes of the first choice\n");
        text.push_str(&changed(changes, style));
    }
    text
}

fn table(candidates: &[CandidateFacts], style: Style) -> String {
    let mut table = Table::new(&CANDIDATES);
    let ms = |ms: Option<f64>| ms.map_or_else(|| "-".into(), milliseconds);
    for candidate in candidates {
        let status = &candidate.status;
        let measured = status.rtt_ms.is_some() || status.path == "own";
        table.row([
            mark(status).into(),
            status.who.name.as_str().into(),
            status.who.site_or_dash().into(),
            Cell::new(candidate.standing.as_str(), of_standing(&candidate.standing)),
            if measured { milliseconds(candidate.cost_ms).into() } else { "-".into() },
            ms(status.rtt_ms).into(),
            ms(candidate.deviation_ms).into(),
            path(status),
            format!("{:.1}", candidate.evidence).into(),
        ]);
    }
    table.render(2, style)
}

fn of_standing(standing: &str) -> Tone {
    match standing {
        "healthy" => Tone::Plain,
        "down" => Tone::Bad,
        _ => Tone::Warn,
    }
}

fn short_place(who: &OriginRef) -> String {
    who.relay.iter().fold(who.name.clone(), |name, relay| format!("{name} through {relay}"))
}

/// What a candidate announces, what it lacks, and how others see it.
fn sentence(candidate: &CandidateFacts, first: &CandidateFacts) -> String {
    let status = &candidate.status;
    let name = &status.who.name;
    let Some(seen) = &candidate.seen else {
        let lacks = &status.lacks;
        return format!("{name}: {lacks}; only attempts show its state");
    };
    let lacks = match status.lacks.as_str() {
        "" => compared(candidate, first),
        BOTH_BEHIND_NAT => BOTH_BEHIND_NAT_REMEDY.to_owned(),
        lacks => lacks.to_owned(),
    };
    let range = match (seen.least_ms, seen.most_ms) {
        (Some(least), Some(most)) if seen.nodes > seen.unreachable + 1 => {
            format!(", {} to {}", milliseconds(least), milliseconds(most))
        }
        (Some(least), _) => format!(", {}", milliseconds(least)),
        _ => String::new(),
    };
    let said = format!("reported {} for {}", status.state, age(status.state_since_s));
    format!("{name}: {said}; {lacks}; {}{range}", seen.words)
}

/// Why a candidate without a problem is not the first.
fn compared(candidate: &CandidateFacts, first: &CandidateFacts) -> String {
    let more = candidate.cost_ms - first.cost_ms;
    let name = short_place(&first.status.who);
    match () {
        () if candidate.status.chosen => "chosen".into(),
        () if candidate.status.shares => "shares new sessions".into(),
        () if first.standing != candidate.standing => "no problem".into(),
        () if more >= 0.0 => format!("costs {} more than {name}", milliseconds(more)),
        () => {
            format!("costs {} less than {name}: not by enough, or not for long enough", {
                milliseconds(-more)
            })
        }
    }
}

fn relay_line(relay: &RelayFacts) -> String {
    let RelayFacts { name, site, rtt_ms, cost_ms, loss_percent, suspect, proven, used } = relay;
    let mut words = vec![if *used { "in use" } else { "not needed" }];
    words.push(if *proven { "used recently" } else { "by its own report" });
    if *suspect {
        words.push("silent or refusing recently");
    }
    let loss = match loss_percent {
        0 => String::new(),
        loss => format!(" with {loss} % loss"),
    };
    let (rtt, cost) = (milliseconds(*rtt_ms), milliseconds(*cost_ms));
    format!("through {name} in {site}: {rtt}{loss}, costs {cost}; {}", words.join("; "))
}

fn changed(changes: &[RouteChange], style: Style) -> String {
    let mut table = Table::new(&CHANGES);
    let or_none = |name: &Option<String>| name.clone().unwrap_or_else(|| "none".into());
    for change in changes {
        table.row([
            age(change.age_s),
            or_none(&change.from),
            or_none(&change.to),
            change.cause.clone(),
        ]);
    }
    table.render(4, style)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::render::tests::service;
    use meshport_daemon::admin::explain::{LineSessions, Seen};

    fn sample() -> Explanation {
        let service = service();
        let seen = |words: &str, nodes, unreachable| Seen {
            nodes,
            unreachable,
            least_ms: Some(0.4),
            most_ms: Some(80.0),
            words: words.into(),
            ..Seen::default()
        };
        let facts =
            |(number, status): (u64, meshport_daemon::admin::api::OriginStatus)| CandidateFacts {
                standing: if status.usable { "healthy".into() } else { "down".into() },
                cost_ms: status.rtt_ms.unwrap_or(2000.0),
                deviation_ms: status.rtt_ms.map(|rtt| rtt / 10.0),
                evidence: 0.0,
                seen: Some(match number {
                    2 => seen("unreachable from 4 of 9 nodes, all in site b", 9, 4),
                    _ => seen("reachable from all 9 other nodes that measure it", 9, 0),
                }),
                relays: Vec::new(),
                status,
            };
        let mut candidates: Vec<CandidateFacts> =
            (0..).zip(service.origins.clone()).map(facts).collect();
        candidates[2].relays.push(RelayFacts {
            name: "relay-1".parse().expect("a name"),
            site: "ams".parse().expect("a site"),
            rtt_ms: 12.0,
            cost_ms: 17.0,
            loss_percent: 3,
            suspect: false,
            proven: true,
            used: false,
        });
        let who = candidates[0].status.who.clone();
        let relayed = OriginRef { relay: Some("relay-1".into()), ..who.clone() };
        let sessions = [(who, 12), (relayed, 1)];
        let change = |age_s, from: &str, to: &str, cause: &str| RouteChange {
            age_s,
            from: Some(from.into()).filter(|it: &String| !it.is_empty()),
            to: Some(to.into()),
            cause: cause.into(),
        };
        Explanation {
            service: service.name,
            policy: service.policy,
            chosen: service.chosen,
            candidates,
            sessions: sessions.map(|(who, open)| LineSessions { who, open }).into(),
            changes: vec![
                change(7_500, "cp-2", "cp-1", "nearer for long enough"),
                change(7_600, "", "cp-2", "first known"),
            ],
        }
    }

    #[test]
    fn everything_is_said_in_order() {
        let text = explain(&[sample()], &[], None);
        let begun = "kube-apiserver, policy nearest: cp-1 in fra: nearest ready, for 2h 5m\n";
        assert!(text.starts_with(begun), "{text}");
        let after = text.split_once("  Origins\n").expect("the sentences").1;
        let expected = "    cp-1: reported ready for 2h 5m; chosen; \
                        reachable from all 9 other nodes that measure it, 0.40 ms to 80.0 ms
    cp-2: reported ready for 2h 5m; costs 34.6 ms more than cp-1; \
reachable from all 9 other nodes that measure it, 0.40 ms to 80.0 ms
    cp-3: reported unready for 12s; path lost 12 s ago; \
unreachable from 4 of 9 nodes, all in site b, 0.40 ms to 80.0 ms
      through relay-1 in ams: 12.0 ms with 3 % loss, costs 17.0 ms; not needed; \
used recently

  Sessions of this node's clients
    cp-1 in fra: 12 sessions
    cp-1 in fra through relay-1: 1 session

  Last changes of the first choice
      AGO  FROM  TO    CAUSE
    2h 5m  cp-2  cp-1  nearer for long enough
    2h 6m  none  cp-2  first known
";
        assert_eq!(after, expected);
    }

    #[test]
    fn an_origin_that_shares_new_sessions_is_named_and_marked() {
        let mut sample = sample();
        for candidate in &mut sample.candidates[..2] {
            candidate.status.shares = true;
        }
        let text = explain(&[sample], &[], None);
        let title = "nearest ready, for 2h 5m; shares new sessions with cp-2\n";
        assert!(text.contains(title), "{text}");
        assert!(text.contains("  +  cp-2 ") && text.contains("  *  cp-1 "), "{text}");
        assert!(text.contains("cp-2: reported ready for 2h 5m; shares new sessions; "), "{text}");
    }

    #[test]
    fn an_origin_by_itself_is_compared_with_the_first_of_all() {
        let mut shown = sample();
        shown.candidates.retain(|it| it.status.who.name == "cp-2");
        let text = explain(&[shown], &[sample()], None);
        let said = "    cp-2: reported ready for 2h 5m; costs 34.6 ms more than cp-1; ";
        assert!(text.contains(said) && !text.contains("cp-3"), "{text}");
    }

    #[test]
    fn an_origin_behind_a_nat_like_this_node_is_reported_with_the_remedy() {
        let mut sample = sample();
        sample.candidates[2].status.lacks = BOTH_BEHIND_NAT.into();
        let text = explain(&[sample], &[], None);
        let said = "cp-3: reported unready for 12s; both behind NAT: no direct path; give the \
                    role relay to a member that both reach, or forward a port and set advertise";
        assert!(text.contains(said), "{text}");
    }

    #[test]
    fn a_narrow_terminal_is_kept_to_and_nothing_is_a_word_too() {
        for width in [60, 80] {
            let text = explain(&[sample()], &[], Some(width));
            assert!(text.lines().all(|line| line.chars().count() <= width), "{text}");
        }
        let none = Explanation { candidates: Vec::new(), chosen: None, ..sample() };
        assert!(explain(&[none], &[], None).contains("no origin is known"));
        assert_eq!(explain(&[], &[], None), "no service is used or offered here\n");
    }
}
