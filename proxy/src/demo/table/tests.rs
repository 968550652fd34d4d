use super::*;

const MS: Duration = Duration::from_millis(1);

fn board() -> Board {
    let site = |site: &str, port: u16| SiteRow {
        site: site.to_owned(),
        local: SocketAddr::from(([127, 0, 0, 1], port)),
        trouble: None,
        tally: Tally::default(),
    };
    Board {
        elapsed: Duration::from_millis(12_340),
        phase: "everything serves".to_owned(),
        sites: vec![site("fra", 7445), site("nyc", 17445)],
    }
}

fn text(out: &[u8]) -> &str {
    std::str::from_utf8(out).unwrap()
}

#[test]
fn columns_line_up() {
    let mut board = board();
    board.sites[0].tally.answered("fra", 2 * MS);
    board.sites[1].tally.answered("a-long-name-of-an-origin", 123 * MS);
    board.sites[1].trouble = Some("stopped".to_owned());
    let expected = [
        "  12.3 s  everything serves",
        "",
        concat!(
            "SITE  LOCAL ADDRESS    ANSWERED BY                ",
            "  MEDIAN       LAST       OK  FAILED  OWN APISERVER",
        ),
        concat!(
            "fra   127.0.0.1:7445   fra                        ",
            "  2.0 ms     2.0 ms        1       0  serving",
        ),
        concat!(
            "nyc   127.0.0.1:17445  a-long-name-of-an-origin   ",
            "123.0 ms   123.0 ms        1       0  stopped",
        ),
    ];
    assert_eq!(board.lines(), expected);
}

#[test]
fn a_terminal_is_overwritten_and_never_wraps() {
    let mut table = Table::new(Vec::new(), Style::InPlace { columns: 40 });
    let mut board = board();
    table.draw(&board).unwrap();
    board.sites.pop();
    table.draw(&board).unwrap();
    table.draw(&board).unwrap();
    table.note("stays").unwrap();
    table.draw(&board).unwrap();
    let out = table.finish();
    let drawings: Vec<&str> = text(&out).split("\x1b[J").collect();
    assert!(!drawings[0].contains("\x1b[5A"), "nothing to overwrite yet");
    assert!(drawings[1].starts_with("\x1b[5A"), "five lines are on the screen");
    assert!(drawings[2].starts_with("\x1b[4A"), "then four");
    assert!(drawings[4].starts_with("stays\n\r\x1b[2K"), "a note is not overwritten");
    for line in text(&out).lines() {
        let visible = line.rsplit("\x1b[2K").next().unwrap();
        assert!(visible.chars().count() <= 40, "{visible:?}");
    }
}

#[test]
fn elsewhere_there_is_one_line_per_change() {
    let mut table = Table::new(Vec::new(), Style::Changes);
    let mut board = board();
    table.draw(&board).unwrap();
    for _ in 0..5 {
        board.sites[0].tally.answered("fra", 2 * MS);
        table.draw(&board).unwrap();
    }
    board.phase = "the apiserver of fra is stopped".to_owned();
    board.sites[0].trouble = Some("stopped".to_owned());
    board.sites[0].tally.failed("no answer within 5000 ms");
    table.draw(&board).unwrap();
    board.sites[0].tally.answered("nyc", 35 * MS);
    table.draw(&board).unwrap();
    table.draw(&board).unwrap();
    let expected = "  12.3 s  everything serves
  12.3 s  fra: answered by fra in 2.0 ms
  12.3 s  the apiserver of fra is stopped
  12.3 s  fra: own apiserver is stopped
  12.3 s  fra: 1 failed so far, last: no answer within 5000 ms
  12.3 s  fra: answered by nyc in 35.0 ms (before: fra)
";
    assert_eq!(text(&table.finish()), expected);
}

#[test]
fn the_median_is_of_the_current_origin_and_recent() {
    let mut tally = Tally::default();
    assert_eq!((tally.median(), tally.last()), (None, None));
    for ms in [9, 1, 5] {
        tally.answered("fra", MS * ms);
    }
    assert_eq!((tally.median(), tally.last()), (Some(5 * MS), Some(5 * MS)));
    tally.answered("nyc", 40 * MS);
    assert_eq!(tally.median(), Some(40 * MS), "the latencies of fra are gone");
    for _ in 0..WINDOW {
        tally.answered("nyc", 30 * MS);
    }
    assert_eq!((tally.median(), tally.latencies.len()), (Some(30 * MS), WINDOW));
    assert_eq!(tally.ok, 4 + WINDOW as u64);
}

#[test]
fn the_summary_has_exactly_the_promised_keys() {
    let good = Summary {
        requests: 300,
        failed: 0,
        nearest_share: 0.99,
        failover_ms: Some(42),
        home_again_ms: Some(1800),
    };
    assert!(good.succeeded());
    let json =
        r#"{"requests":300,"failed":0,"nearest_share":0.99,"failover_ms":42,"home_again_ms":1800}"#;
    assert_eq!(good.json(), json);
    assert!(good.text().starts_with("All well."), "{}", good.text());
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
        assert!(!summary.text().starts_with("All well."), "{}", summary.text());
    }
    assert!(bad[4].json().contains("\"failover_ms\":null"));
}
