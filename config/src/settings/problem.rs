//! Problems in a settings file, one value each.

use std::fmt;
use std::ops::Range;

use serde::Serialize;

/// Maximum problems reported at once: more than anyone reads.
pub const MAX_PROBLEMS: usize = 100;
/// The minimum similarity (Jaro-Winkler, 0 to 1) for suggesting a name.
const LIKENESS: f64 = 0.84;

/// The kind of a [`Problem`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ProblemKind {
    /// The text is not TOML here.
    Syntax,
    /// There is no such key or table.
    UnknownKey,
    /// A required key is missing.
    Missing,
    /// A value has the wrong type, is malformed or out of bounds.
    Value,
    /// Valid values contradict each other.
    Conflict,
}

/// A problem in a settings file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The kind of mistake.
    pub kind: ProblemKind,
    /// The line, from 1.
    pub line: usize,
    /// The column, in characters, from 1.
    pub column: usize,
    /// The key with its tables, as in `service.web.health.interval`.
    pub key: String,
    /// The value in the file.
    pub found: String,
    /// The form that is accepted.
    pub expected: String,
    /// The most similar valid key or value, if one is similar.
    pub nearest: Option<String>,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, found, expected, .. } = self;
        write!(f, "line {}, column {}: ", self.line, self.column)?;
        match (self.kind, &self.nearest) {
            (ProblemKind::Syntax, _) => write!(f, "{found}; expected {expected}"),
            (ProblemKind::UnknownKey, Some(nearest)) => {
                write!(f, "unknown key \"{key}\"; did you mean \"{nearest}\"?")
            }
            (ProblemKind::UnknownKey, None) => {
                write!(f, "unknown key \"{key}\"; expected {expected}")
            }
            (ProblemKind::Missing, _) => write!(f, "\"{key}\" is missing; expected {expected}"),
            (_, Some(nearest)) => {
                write!(f, "{key} is {found}; expected {expected}; did you mean \"{nearest}\"?")
            }
            (_, None) => write!(f, "{key} is {found}; expected {expected}"),
        }
    }
}

/// Collects the problems of one text, at most [`MAX_PROBLEMS`].
#[derive(Debug)]
pub(super) struct Problems<'a> {
    text: &'a str,
    list: Vec<Problem>,
}

impl<'a> Problems<'a> {
    pub(super) const fn of(text: &'a str) -> Self {
        Self { text, list: Vec::new() }
    }

    /// Adds a problem at a position of the text, and returns it to be completed.
    pub(super) fn add(
        &mut self,
        kind: ProblemKind,
        span: &Range<usize>,
        key: &str,
        found: impl Into<String>,
        expected: impl Into<String>,
    ) -> &mut Problem {
        let (line, column) = position(self.text, span.start);
        let (key, found, expected) = (key.to_owned(), found.into(), expected.into());
        self.list.push(Problem { kind, line, column, key, found, expected, nearest: None });
        self.list.last_mut().expect("one was just added")
    }

    /// Whether one of the problems suggests this key.
    pub(super) fn suggest(&self, key: &str) -> bool {
        self.list.iter().any(|problem| problem.nearest.as_deref() == Some(key))
    }

    /// All problems in file order. Those that only follow from invalid TOML are left out.
    pub(super) fn finish(mut self) -> Vec<Problem> {
        let is_syntax = |problem: &Problem| problem.kind == ProblemKind::Syntax;
        let broken: Vec<usize> =
            self.list.iter().filter(|problem| is_syntax(problem)).map(|p| p.line).collect();
        if !broken.is_empty() {
            self.list.retain(|problem| {
                is_syntax(problem)
                    || (!matches!(problem.kind, ProblemKind::Missing | ProblemKind::Conflict)
                        && !broken.contains(&problem.line))
            });
        }
        self.list.sort_by(|a, b| {
            (a.line, a.column, a.kind, &a.key).cmp(&(b.line, b.column, b.kind, &b.key))
        });
        // A syntax error often causes several errors on its line; the first is the clearest.
        self.list.dedup_by(|later, first| {
            later == first || (is_syntax(later) && is_syntax(first) && later.line == first.line)
        });
        self.list.truncate(MAX_PROBLEMS);
        self.list
    }
}

/// The most similar of `candidates`, if it is similar enough.
pub(super) fn nearest<'a>(
    found: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let likeness = |name: &'a str| (strsim::jaro_winkler(found, name), name);
    let best = candidates.into_iter().map(likeness).max_by(|a, b| a.0.total_cmp(&b.0));
    best.filter(|(likeness, _)| *likeness >= LIKENESS).map(|(_, name)| name)
}

/// Line and column, from 1, of a byte offset. An offset within a character counts as its start.
fn position(text: &str, offset: usize) -> (usize, usize) {
    let mut offset = offset.min(text.len());
    while !text.is_char_boundary(offset) {
        offset -= 1;
    }
    let before = &text[..offset];
    let start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (before.matches('\n').count() + 1, before[start..].chars().count() + 1)
}
