//! Whole screens, compared with those in `tests/screens`. With `MESHPORT_WRITE_SCREENS=1` they are
//! written instead: review them before committing.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;

use meshport_daemon::Error;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier};

use super::world::{HOSTILE, many, view};
use super::{model, now, press};
use crate::draw;
use crate::look::Look;
use crate::model::{Key, Model};

const COLOUR: Look = Look { colour: true, unicode: true };
const PLAIN: Look = Look { colour: false, unicode: false };
/// The tested sizes.
const SIZES: [(u16, u16); 3] = [(80, 24), (120, 40), (200, 60)];

fn picture(model: &mut Model, (width, height): (u16, u16), look: Look) -> Buffer {
    let backend = TestBackend::new(width, height);
    let mut terminal = Terminal::new(backend).expect("a terminal in memory");
    let now = model.came + Duration::from_secs(1);
    let mut rows = 0;
    terminal
        .draw(|frame| {
            let area = frame.area();
            rows = draw(frame.buffer_mut(), area, model, look, now);
        })
        .expect("it is drawn in memory");
    model.handle_rows(rows);
    terminal.backend().buffer().clone()
}

fn text(buffer: &Buffer) -> String {
    let width = usize::from(buffer.area.width);
    let rows = buffer.content.chunks(width).map(|row| {
        let row: String = row.iter().map(ratatui::buffer::Cell::symbol).collect();
        format!("{}\n", row.trim_end())
    });
    rows.collect()
}

fn compare(name: &str, shown: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/tests/screens").join(name);
    if std::env::var_os("MESHPORT_WRITE_SCREENS").is_some() {
        std::fs::write(&path, shown).expect("the screen is written");
        return;
    }
    let kept = std::fs::read_to_string(&path).expect("the screen is kept");
    assert!(kept == shown, "{name} is\n{kept}\nand would be\n{shown}");
}

#[test]
fn the_overview_in_all_sizes() {
    for size in SIZES {
        let shown = text(&picture(&mut model(), size, COLOUR));
        compare(&format!("overview-{}x{}.txt", size.0, size.1), &shown);
    }
    compare("overview-80x24-ascii.txt", &text(&picture(&mut model(), SIZES[0], PLAIN)));
}

#[test]
fn origins_that_share_new_sessions_are_marked() {
    let mut model = model();
    let view = model.view.as_mut().expect("it has a view");
    view.services[0].origins[..2].iter_mut().for_each(|origin| origin.shares = true);
    press(&mut model, "4");
    let shown = text(&picture(&mut model, SIZES[0], COLOUR));
    assert!(shown.contains("\n▸  ams-cp") && shown.contains("\n+  bru-cp"), "{shown}");
    assert!(shown.contains("cost 123 ms · shares new sessions\n"), "{shown}");
    assert_eq!(shown.matches("shares").count(), 1, "{shown}");
}

#[test]
fn every_page() {
    for (key, name) in ["attention", "paths", "origins", "sessions", "events", "nodes"]
        .into_iter()
        .enumerate()
        .map(|(at, name)| (char::from(b'2' + u8::try_from(at).expect("few")), name))
    {
        let mut model = model();
        press(&mut model, &key.to_string());
        compare(&format!("{name}.txt"), &text(&picture(&mut model, SIZES[0], COLOUR)));
    }
    let mut model = model();
    press(&mut model, "5");
    compare("sessions-120x50.txt", &text(&picture(&mut model, (120, 50), COLOUR)));
    press(&mut model, "?");
    compare("help.txt", &text(&picture(&mut model, SIZES[0], COLOUR)));
}

#[test]
fn all_about_one_node() {
    let mut model = model();
    press(&mut model, "7jj");
    model.handle_key(Key::Enter);
    compare("node.txt", &text(&picture(&mut model, SIZES[0], COLOUR)));
}

#[test]
fn five_hundred_nodes_are_scrolled_and_found() {
    let now = now();
    let mut model = Model::new(now);
    model.handle_answer(Ok(many(500)), now);
    press(&mut model, "7");
    model.handle_key(Key::End);
    let shown = text(&picture(&mut model, SIZES[0], COLOUR));
    assert!(shown.contains("node-499") && !shown.contains("node-470"), "{shown}");
    press(&mut model, "/node-31");
    let shown = text(&picture(&mut model, SIZES[0], COLOUR));
    assert!(shown.contains("node-310") && shown.contains("10 of 500"), "{shown}");
    for size in SIZES {
        press(&mut model, "");
        picture(&mut model, size, PLAIN);
    }
}

#[test]
fn without_colour_there_is_none_and_nothing_beyond_ascii_and_what_is_bad_has_a_mark() {
    for key in '1'..='7' {
        let mut model = model();
        press(&mut model, &key.to_string());
        let buffer = picture(&mut model, (120, 40), PLAIN);
        for cell in buffer.content() {
            assert_eq!((cell.fg, cell.bg), (Color::Reset, Color::Reset));
            assert!(cell.symbol().is_ascii(), "{:?}", cell.symbol());
        }
    }
    let buffer = picture(&mut model(), SIZES[0], PLAIN);
    let shown = text(&buffer);
    assert!(shown.contains("X MP121"), "{shown}");
    let bold = buffer.content().iter().filter(|cell| cell.modifier.contains(Modifier::BOLD));
    assert!(bold.count() > 20);
}

#[test]
fn in_colour_what_is_broken_is_red() {
    let red = in_colour(&picture(&mut model(), SIZES[0], COLOUR), Color::Red);
    assert!(red.contains("refusing") && red.contains("1 down"), "{red}");
}

/// Not those that will be renewed before.
#[test]
fn in_colour_a_credential_that_ends_soon_is_yellow() {
    let mut model = model();
    press(&mut model, "7");
    let yellow = in_colour(&picture(&mut model, SIZES[2], COLOUR), Color::Yellow);
    assert!(yellow.contains("88d") && !yellow.contains("89d"), "{yellow}");
}

fn in_colour(buffer: &Buffer, colour: Color) -> String {
    let cells = buffer.content().iter().filter(|cell| cell.fg == colour);
    cells.map(ratatui::buffer::Cell::symbol).collect()
}

#[test]
fn texts_from_outside_command_nothing() {
    let mut hostile = view();
    hostile.services[0].summary = HOSTILE.into();
    hostile.services[0].origins[0].lacks = HOSTILE.into();
    hostile.services[0].origins[0].who.name = HOSTILE.into();
    hostile.services[0].origins[0].path.kind = HOSTILE.into();
    hostile.findings[0].row.detail = HOSTILE.into();
    hostile.nodes[1].version = Some(HOSTILE.into());
    hostile.nodes[1].liveness = HOSTILE.into();
    hostile.events[0].names = vec![HOSTILE.into()];
    for key in "1234567".chars() {
        let now = now();
        let mut model = Model::new(now);
        model.handle_answer(Ok(hostile.clone()), now);
        model.handle_answer(Err(Error::Negative(HOSTILE.into())), now);
        press(&mut model, &key.to_string());
        for size in SIZES {
            let buffer = picture(&mut model, size, COLOUR);
            let is_harmless = |c: char| !c.is_control() && c != '\u{202e}';
            assert!(
                buffer.content().iter().all(|cell| cell.symbol().chars().all(is_harmless)),
                "page {key}"
            );
        }
    }
}

#[test]
fn silence_is_said_above_the_last_known_state() {
    let mut model = model();
    let start = model.came;
    let source = ErrorKind::ConnectionRefused.into();
    let path = "/run/meshport/admin.sock".into();
    model.handle_answer(Err(Error::NoDaemon { path, source }), start);
    let area = Rect::new(0, 0, 100, 24);
    let mut buffer = Buffer::empty(area);
    draw(&mut buffer, area, &model, COLOUR, start + Duration::from_secs(72));
    let shown = text(&buffer);
    let said = "No answer for 1m 12s, this is the last known state: no daemon answers";
    assert!(shown.contains(said) && shown.contains("1m 12s old"), "{shown}");
    assert!(shown.contains("ams-cp"), "{shown}");
}

#[test]
fn no_size_is_too_small_or_large() {
    for size in [(1, 1), (39, 9), (40, 10), (41, 80), (79, 12), (500, 10), (300, 120)] {
        for key in '1'..='7' {
            let mut model = model();
            press(&mut model, &key.to_string());
            picture(&mut model, size, COLOUR);
        }
    }
}
