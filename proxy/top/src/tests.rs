//! Screens of invented views, and the effects of keys.

mod pictures;
mod world;

use std::time::{Duration, Instant};

use meshport_daemon::Error;

use crate::model::{Key, Model, Outcome, Page};
use world::{many, view};

#[expect(clippy::disallowed_methods, reason = "an origin for made-up time")]
fn now() -> Instant {
    Instant::now()
}

fn model() -> Model {
    let now = now();
    let mut model = Model::new(now);
    model.handle_answer(Ok(view()), now);
    model
}

fn press(model: &mut Model, keys: &str) {
    for c in keys.chars() {
        assert_eq!(model.handle_key(Key::Char(c)), Outcome::Stay, "{c}");
    }
}

fn names(model: &Model) -> Vec<String> {
    let view = model.view.as_ref().expect("it has a view");
    model.nodes.rows(view).iter().map(|row| row.who.name.to_string()).collect()
}

#[test]
fn digits_and_tab_change_the_page_and_q_ends() {
    let mut model = model();
    press(&mut model, "7");
    assert_eq!(model.page, Page::Nodes);
    model.handle_key(Key::Tab);
    assert_eq!(model.page, Page::Overview);
    model.handle_key(Key::BackTab);
    assert_eq!(model.page, Page::Nodes);
    assert_eq!(model.handle_key(Key::Char('q')), Outcome::Quit);
    assert_eq!(model.handle_key(Key::Interrupt), Outcome::Quit);
}

#[test]
fn a_search_takes_every_character_until_it_is_kept_or_cleared() {
    let mut model = model();
    press(&mut model, "/q7");
    assert!(names(&model).is_empty(), "no node is called q7");
    model.handle_key(Key::Backspace);
    model.handle_key(Key::Backspace);
    press(&mut model, "BRU");
    assert_eq!(names(&model), ["bru-cp", "bru-worker"]);
    model.handle_key(Key::Enter);
    press(&mut model, "fff");
    assert_eq!(names(&model), Vec::<String>::new(), "no relay is in bru");
    model.handle_key(Key::Escape);
    press(&mut model, "ff");
    assert_eq!(names(&model).len(), 5);
    press(&mut model, "/");
    for _ in 0..200 {
        model.handle_key(Key::Char('x'));
    }
    assert_eq!(model.nodes.search.len(), crate::model::MAX_SEARCH);
}

#[test]
fn nodes_are_sorted_and_the_selected_one_stays_selected() {
    let mut model = model();
    press(&mut model, "7sj");
    assert_eq!(names(&model)[..2], ["ams-cp", "bru-cp"], "by name");
    let selected = model.nodes.selected.expect("the second is selected");
    press(&mut model, "r");
    let view = model.view.clone().expect("it has a view");
    let rows = model.nodes.rows(&view);
    assert_eq!(rows[model.nodes.position(&rows)].who.node, selected);
    model.handle_key(Key::End);
    model.handle_key(Key::Down);
    assert_eq!(model.nodes.position(&model.nodes.rows(&view)), 4);
}

#[test]
fn credentials_and_round_trips_put_what_is_unknown_last() {
    let mut model = model();
    press(&mut model, "7sss");
    assert_eq!(names(&model)[0], "mad-cp", "the nearest");
    press(&mut model, "s");
    assert_eq!(names(&model)[0], "bru-worker", "its credential ends first");
}

#[test]
fn silence_is_counted_from_its_first_moment_and_ends_with_an_answer() {
    let mut model = model();
    let start = now();
    model.handle_answer(Err(Error::Negative("first".into())), start);
    model.handle_answer(Err(Error::Negative("second".into())), start + Duration::from_secs(5));
    let silence = model.silence.clone().expect("nobody answers");
    assert_eq!((silence.since, silence.why.as_str()), (start, "second"));
    assert!(model.view.is_some(), "the last view stays");
    model.handle_answer(Ok(many(40)), start + Duration::from_secs(6));
    assert!(model.silence.is_none());
}

#[test]
fn a_held_picture_does_not_change() {
    let mut model = model();
    press(&mut model, " ");
    model.handle_answer(Ok(many(40)), now());
    assert_eq!(names(&model).len(), 5);
    press(&mut model, " ");
    model.handle_answer(Ok(many(40)), now());
    assert_eq!(names(&model).len(), 40);
}

#[test]
fn a_service_that_is_gone_is_not_shown() {
    let mut model = model();
    press(&mut model, "v");
    assert_eq!(model.service, 0, "there is one");
    let mut two = view();
    two.services.push(two.services[0].clone());
    model.handle_answer(Ok(two), now());
    press(&mut model, "v");
    assert_eq!(model.service, 1);
    model.handle_answer(Ok(view()), now());
    assert_eq!(model.service, 0);
}
