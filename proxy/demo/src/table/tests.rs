use super::*;

const MS: Duration = Duration::from_millis(1);

fn view() -> View {
    let near = OriginRow::new("fra".to_owned(), Duration::ZERO);
    let far = OriginRow::new("a-long-name-of-an-origin".to_owned(), 35 * MS);
    let mut view = View::new("everything serves".to_owned(), vec![near, far]);
    view.elapsed = Duration::from_millis(12_340);
    view
}

fn text(out: &[u8]) -> &str {
    std::str::from_utf8(out).unwrap()
}

#[test]
fn columns_line_up() {
    let mut view = view();
    view.answered("fra", 2 * MS);
    view.answered("a-long-name-of-an-origin", 123 * MS);
    view.origins[0].trouble = Some("stopped".to_owned());
    let expected = [
        "  12.3 s  everything serves",
        "          2 requests answered, 0 failed",
        "",
        "   ANSWERED BY                DISTANCE  APISERVER  REQUESTS     MEDIAN       LAST",
        "   fra                       same site  stopped           1     2.0 ms     2.0 ms",
        " > a-long-name-of-an-origin      35 ms  serving           1   123.0 ms   123.0 ms",
        "",
        "   LATENCY  ▂▇",
    ];
    assert_eq!(view.lines(), expected);
}

#[test]
fn the_line_of_latencies_shows_each_doubling_and_what_failed() {
    let mut view = view();
    for ms in [0, 1, 2, 4, 8, 16, 32, 64, 128, 5000] {
        view.answered("fra", ms * MS);
    }
    view.failed("no answer");
    assert_eq!(view.latencies(), "▁▁▂▃▄▅▆▇██x");
    for _ in 0..1000 {
        view.answered("fra", MS);
    }
    assert_eq!(view.latencies(), "▁".repeat(TRACE));
}

#[test]
fn a_terminal_is_overwritten_and_never_wraps() {
    let mut table = Table::new(Vec::new(), Style::InPlace { columns: 40 });
    let mut view = view();
    table.draw(&view).unwrap();
    view.origins.pop();
    table.draw(&view).unwrap();
    table.draw(&view).unwrap();
    table.note("stays").unwrap();
    table.draw(&view).unwrap();
    table.release();
    table.note("below").unwrap();
    let out = table.finish();
    let drawings: Vec<&str> = text(&out).split("\x1b[J").collect();
    assert!(!drawings[0].contains("\x1b[8A"), "nothing to overwrite yet");
    assert!(drawings[1].starts_with("\x1b[8A"), "eight lines are on the screen");
    assert!(drawings[2].starts_with("\x1b[7A"), "then seven");
    assert!(drawings[4].starts_with("stays\n\r\x1b[2K"), "a note is not overwritten");
    assert_eq!(drawings[5], "below\n", "nor is what was released");
    for line in text(&out).lines() {
        let visible = line.rsplit("\x1b[2K").next().unwrap();
        assert!(visible.chars().count() <= 40, "{visible:?}");
    }
}

#[test]
fn elsewhere_there_is_one_line_per_change() {
    let mut table = Table::new(Vec::new(), Style::Changes);
    let mut view = view();
    table.draw(&view).unwrap();
    for _ in 0..5 {
        view.answered("fra", 2 * MS);
        table.draw(&view).unwrap();
    }
    view.phase = "the apiserver of fra is stopped".to_owned();
    view.origins[0].trouble = Some("stopped".to_owned());
    view.failed("no answer within 5000 ms");
    table.draw(&view).unwrap();
    view.answered("a-long-name-of-an-origin", 35 * MS);
    table.draw(&view).unwrap();
    table.draw(&view).unwrap();
    let expected = "  12.3 s  everything serves
  12.3 s  answered by fra in 2.0 ms
  12.3 s  the apiserver of fra is stopped
  12.3 s  1 failed so far, last: no answer within 5000 ms
  12.3 s  answered by a-long-name-of-an-origin in 35.0 ms (before: fra in 2.0 ms)
";
    assert_eq!(text(&table.finish()), expected);
}

#[test]
fn the_median_is_of_recent_answers() {
    let mut view = view();
    assert_eq!((view.origins[0].median(), view.origins[0].last()), (None, None));
    for ms in [9, 1, 5] {
        view.answered("fra", MS * ms);
    }
    assert_eq!((view.origins[0].median(), view.origins[0].last()), (Some(5 * MS), Some(5 * MS)));
    for _ in 0..WINDOW {
        view.answered("fra", 30 * MS);
    }
    let row = &view.origins[0];
    assert_eq!((row.median(), row.latencies.len()), (Some(30 * MS), WINDOW));
    assert_eq!(row.answered, 3 + WINDOW as u64);
    view.answered("a stranger", MS);
    assert_eq!(view.current, None);
}

#[test]
fn the_summary_has_exactly_the_promised_keys() {
    let good = Summary {
        requests: 300,
        failed: 0,
        nearest_share: 0.99,
        failover_ms: Some(42),
        home_again_ms: Some(1800),
        stops: true,
        returns: true,
    };
    assert!(good.succeeded());
    let json =
        r#"{"requests":300,"failed":0,"nearest_share":0.99,"failover_ms":42,"home_again_ms":1800}"#;
    assert_eq!(good.json(), json);
    assert!(good.text().starts_with("The demo succeeded."), "{}", good.text());
    let bad = [
        Summary { requests: 0, ..good },
        Summary { failed: 1, ..good },
        Summary { nearest_share: 0.5, ..good },
        Summary { nearest_share: f64::NAN, ..good },
        Summary { failover_ms: None, ..good },
        Summary { home_again_ms: None, ..good },
    ];
    for summary in bad {
        assert!(!summary.succeeded(), "{summary:?}");
        assert!(!summary.text().starts_with("The demo succeeded."), "{}", summary.text());
    }
    assert!(bad[4].json().contains("\"failover_ms\":null"));
    assert!(bad[4].text().contains("not seen"));
    let untried = Summary { stops: false, returns: false, ..bad[4] };
    assert!(untried.succeeded() && untried.text().contains("not tried"));
}
