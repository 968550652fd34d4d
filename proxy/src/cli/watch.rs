//! `meshport status --watch`: refreshes the status until Ctrl-C.
//!
//! On a terminal it is redrawn in place and cut to the terminal's height; elsewhere the pages are
//! appended, with `--json` one line each. If the daemon stops answering, the error replaces the
//! page and polling continues, since restarts are worth watching.

use std::pin::pin;
use std::time::Duration;

use meshport_config::Period;
use tokio::time::{MissedTickBehavior, interval};

use super::render::{Tone, WARNINGS, status};
use super::{clock, output};
use meshport_daemon::Error;
use meshport_daemon::admin::api::Status;
use meshport_daemon::admin::client::AdminClient;
use meshport_daemon::admin::queries::StatusRequest;

/// Polls the daemon until Ctrl-C.
///
/// # Errors
/// See [`AdminClient::ask`] for the first query; that of a closed pipe.
pub(super) async fn watch(client: &AdminClient, every: Duration, json: bool) -> Result<(), Error> {
    let mut interrupt = pin!(tokio::signal::ctrl_c());
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut pages = 0_u64;
    loop {
        let ask = async {
            ticks.tick().await;
            client.ask(&StatusRequest).await
        };
        let outcome = tokio::select! {
            outcome = ask => outcome,
            _ = interrupt.as_mut() => return Ok(()),
        };
        match outcome {
            Err(error) if pages == 0 => return Err(error),
            outcome if json => line(outcome)?,
            outcome => show(&outcome, every, pages)?,
        }
        pages += 1;
    }
}

fn line(outcome: Result<Status, Error>) -> Result<(), Error> {
    match outcome {
        Ok(status) => {
            let text = serde_json::to_string(&status).map_err(|error| {
                Error::Bug(format!("cannot encode the answer as JSON: {error}"))
            })?;
            output::answer(&(text + "\n"))
        }
        Err(error) => {
            output::advice(&error.to_string());
            Ok(())
        }
    }
}

fn show(outcome: &Result<Status, Error>, every: Duration, pages: u64) -> Result<(), Error> {
    let (style, now) = (output::style(), clock::wall());
    let body = match outcome {
        Ok(answer) => status(answer, now.0, style),
        Err(error) => format!("{}\n", style.paint(&error.to_string(), Tone::Bad)),
    };
    let page = format!("{now}, every {}\n\n{body}", Period(every));
    match output::height() {
        Some(height) => output::answer(&frame(&page, height, pages == 0)),
        None => output::answer(&format!("{}{page}", if pages == 0 { "" } else { "\n" })),
    }
}

/// The lines that fit, and the number of the others.
fn cut(lines: &[&str], room: usize) -> Vec<String> {
    let shown = if lines.len() > room { room.saturating_sub(1) } else { lines.len() };
    let more = lines.len() - shown;
    let counted = (more > 0 && room > 0).then(|| format!("... {more} more lines"));
    lines[..shown].iter().map(|line| (*line).to_owned()).chain(counted).collect()
}

/// Draws a page over the previous one and clears the rest of that. Without room for all, the
/// warnings at its end get at least half.
fn frame(page: &str, height: usize, is_first: bool) -> String {
    // Home, clear to the end of the line, clear below, clear all (ECMA-48).
    let (home, rest_of_line, below, all) = ("\x1b[H", "\x1b[K", "\x1b[J", "\x1b[2J");
    let lines: Vec<&str> = page.lines().collect();
    // The cursor is on the line below the page.
    let room = height.saturating_sub(1).max(1);
    let warnings = lines.iter().rposition(|line| *line == WARNINGS).unwrap_or(lines.len());
    let (body, warnings) = lines.split_at(warnings);
    let for_warnings = warnings.len().min(room.saturating_sub(body.len()).max(room / 2));
    let shown = [cut(body, room - for_warnings), cut(warnings, for_warnings)].concat();
    let mut text = if is_first { format!("{all}{home}") } else { home.to_owned() };
    for line in shown {
        text.push_str(&line);
        text.push_str(rest_of_line);
        text.push('\n');
    }
    text + below
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_drawn_over_the_one_before() {
        assert_eq!(frame("a\nb\n", 24, true), "\x1b[2J\x1b[Ha\x1b[K\nb\x1b[K\n\x1b[J");
        assert_eq!(frame("a\n", 24, false), "\x1b[Ha\x1b[K\n\x1b[J");
    }

    #[test]
    fn warnings_keep_half_of_a_page_that_is_cut() {
        let shown = |height: usize| {
            let page = format!("1\n2\n3\n4\n5\n\n{WARNINGS}\n  - a\n  - b\n  - c\n");
            frame(&page, height, false).replace("\x1b[K", "").replace("\x1b[H", "")
        };
        let all = "1\n2\n3\n4\n5\n\nWarnings\n  - a\n  - b\n  - c\n\x1b[J";
        assert_eq!(shown(11), all);
        let half = "1\n2\n3\n... 3 more lines\nWarnings\n  - a\n  - b\n  - c\n\x1b[J";
        assert_eq!(shown(9), half);
        let less = "1\n... 5 more lines\nWarnings\n... 3 more lines\n\x1b[J";
        assert_eq!(shown(5), less);
    }

    #[test]
    fn what_has_no_room_is_counted() {
        let text = frame("1\n2\n3\n4\n5\n", 4, false);
        assert_eq!(text, "\x1b[H1\x1b[K\n2\x1b[K\n... 3 more lines\x1b[K\n\x1b[J");
        assert_eq!(text.lines().count(), 4, "what clears the rest is on the last line");
        for height in 0..3 {
            assert!(frame("1\n2\n3\n", height, false).contains("more lines"));
        }
    }
}
