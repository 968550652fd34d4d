//! The model: the last view, the choices made by keys, and since when no daemon answers.

use std::time::Instant;

use meshport_config::words;
use meshport_core::units::clean;
use meshport_daemon::Error;
use meshport_daemon::admin::view::View;

use crate::nodes::Listing;

/// Characters of a search: longer than any name.
pub const MAX_SEARCH: usize = 64;
/// Rows that a page key moves by.
const PAGE_ROWS: usize = 10;

/// A key that has a meaning here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    /// A character, as typed.
    Char(char),
    /// One row up.
    Up,
    /// One row down.
    Down,
    /// The page before.
    Left,
    /// The page after.
    Right,
    /// Several rows up.
    PageUp,
    /// Several rows down.
    PageDown,
    /// To the first row.
    Home,
    /// To the last row.
    End,
    /// The page after.
    Tab,
    /// The page before.
    BackTab,
    /// Opens what is selected.
    Enter,
    /// Closes what is open.
    Escape,
    /// Deletes a character.
    Backspace,
    /// Ends the program, whatever is open.
    Interrupt,
}

/// The effect of a key beyond changing the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing.
    Stay,
    /// The program ends.
    Quit,
}

words! {
    /// A screen about one subject, with its title. The order is that of their keys.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub enum Page {
        /// The most important facts of all pages.
        #[default]
        Overview => "Overview",
        /// Findings with their remedies.
        Attention => "Attention",
        /// Sites and the distances between them.
        Paths => "Paths",
        /// Origins with everything known about them.
        Origins => "Origins",
        /// Sessions and their waits, over time.
        Sessions => "Sessions",
        /// Recent events.
        Events => "Events",
        /// Nodes, searched, filtered and sorted.
        Nodes => "Nodes",
    }
}

impl Page {
    fn step(self, by: usize) -> Self {
        let at = Self::ALL.iter().position(|page| *page == self).unwrap_or(0);
        Self::ALL[(at + by) % Self::ALL.len()]
    }
}

/// No daemon answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Silence {
    pub(crate) since: Instant,
    pub(crate) why: String,
}

/// See the module's doc.
#[derive(Debug)]
pub struct Model {
    pub(crate) view: Option<View>,
    /// Arrival of that view.
    pub(crate) came: Instant,
    pub(crate) silence: Option<Silence>,
    pub(crate) page: Page,
    /// The index of the service that is shown.
    pub(crate) service: usize,
    /// Rows that are scrolled off above.
    pub(crate) scrolled: usize,
    pub(crate) is_help: bool,
    /// Whether the picture is frozen; answers are dropped then.
    pub(crate) is_held: bool,
    pub(crate) nodes: Listing,
}

impl Model {
    /// A model for a program that has just started.
    pub fn new(now: Instant) -> Self {
        Self {
            view: None,
            came: now,
            silence: None,
            page: Page::default(),
            service: 0,
            scrolled: 0,
            is_help: false,
            is_held: false,
            nodes: Listing::default(),
        }
    }

    /// Takes the daemon's answer, or the reason why there is none.
    pub fn handle_answer(&mut self, answer: Result<View, Error>, now: Instant) {
        match answer {
            Ok(_) if self.is_held => self.silence = None,
            Ok(view) => {
                self.service = self.service.min(view.services.len().saturating_sub(1));
                self.view = Some(view);
                self.came = now;
                self.silence = None;
            }
            Err(error) => {
                let since = self.silence.as_ref().map_or(now, |silence| silence.since);
                self.silence = Some(Silence { since, why: clean(&error.to_string()) });
            }
        }
    }

    /// Handles a key.
    pub fn handle_key(&mut self, key: Key) -> Outcome {
        if key == Key::Interrupt {
            return Outcome::Quit;
        }
        if self.nodes.is_typing {
            self.type_search(key);
            return Outcome::Stay;
        }
        if self.is_help {
            self.is_help = false;
            return if key == Key::Char('q') { Outcome::Quit } else { Outcome::Stay };
        }
        match key {
            Key::Char('q') => return Outcome::Quit,
            Key::Char('?' | 'h') => self.is_help = true,
            Key::Char(' ') => self.is_held = !self.is_held,
            Key::Char('v') => self.next_service(),
            Key::Char(digit @ '1'..='7') => self.show(Page::ALL[digit as usize - '1' as usize]),
            Key::Tab | Key::Right => self.show(self.page.step(1)),
            Key::BackTab | Key::Left => self.show(self.page.step(Page::ALL.len() - 1)),
            Key::Char('/') => {
                self.show(Page::Nodes);
                self.nodes.is_typing = true;
            }
            key => self.move_or_choose(key),
        }
        Outcome::Stay
    }

    /// Takes the number of rows that can be scrolled, which only drawing knows.
    pub fn handle_rows(&mut self, scrollable: usize) {
        self.scrolled = self.scrolled.min(scrollable);
    }

    fn show(&mut self, page: Page) {
        if page != self.page {
            self.page = page;
            self.scrolled = 0;
            self.nodes.is_open = false;
        }
    }

    fn next_service(&mut self) {
        let all = self.view.as_ref().map_or(1, |view| view.services.len().max(1));
        self.service = (self.service + 1) % all;
    }

    fn type_search(&mut self, key: Key) {
        let nodes = &mut self.nodes;
        match key {
            Key::Char(c) if nodes.search.chars().count() < MAX_SEARCH => nodes.search.push(c),
            Key::Backspace => drop(nodes.search.pop()),
            Key::Enter => nodes.is_typing = false,
            Key::Escape => {
                nodes.search.clear();
                nodes.is_typing = false;
            }
            _ => {}
        }
    }

    fn move_or_choose(&mut self, key: Key) {
        let far = isize::MAX;
        let page = PAGE_ROWS.cast_signed();
        match key {
            Key::Up | Key::Char('k') => self.step(-1),
            Key::Down | Key::Char('j') => self.step(1),
            Key::PageUp => self.step(-page),
            Key::PageDown => self.step(page),
            Key::Home | Key::Char('g') => self.step(-far),
            Key::End | Key::Char('G') => self.step(far),
            key if self.page == Page::Nodes => self.choose_nodes(key),
            _ => {}
        }
    }

    fn step(&mut self, by: isize) {
        match (self.page, &self.view) {
            (Page::Nodes, Some(view)) => self.nodes.step(view, by),
            _ => self.scrolled = self.scrolled.saturating_add_signed(by),
        }
    }

    fn choose_nodes(&mut self, key: Key) {
        let nodes = &mut self.nodes;
        match key {
            Key::Char('f') => nodes.filter = nodes.filter.next(),
            Key::Char('s') => nodes.sort = nodes.sort.next(),
            Key::Char('r') => nodes.is_reversed = !nodes.is_reversed,
            Key::Enter => {
                if let Some(view) = &self.view {
                    nodes.step(view, 0);
                }
                nodes.is_open = !nodes.is_open && nodes.selected.is_some();
            }
            Key::Escape if nodes.is_open => nodes.is_open = false,
            Key::Escape => nodes.search.clear(),
            _ => {}
        }
    }
}
