//! How things look: tones, and marks for terminals with and without colours and Unicode.

use meshport_core::units::clean;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};

/// The abilities of the terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// Whether to use colours; without them, important text is bold and has a mark.
    pub colour: bool,
    /// Whether characters beyond ASCII are shown.
    pub unicode: bool,
}

/// The meaning of a text's colour.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Tone {
    #[default]
    Plain,
    /// Less important than the text around it.
    Soft,
    /// As it should be.
    Good,
    /// Not as it should be, but nothing fails because of it.
    Warn,
    /// Broken.
    Bad,
    /// A title, or a key to press.
    Strong,
    /// The bars of a chart.
    Bar,
}

/// Heights within a row, from nothing to full.
const BARS: [&str; 9] = [" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];
const ASCII_BARS: [&str; 9] = [" ", ".", ".", ":", ":", "+", "+", "#", "#"];

impl Look {
    /// The sixteen colours that the terminal's own scheme defines, so that any scheme is readable.
    pub(crate) fn style(self, tone: Tone) -> Style {
        let plain = Style::new();
        match tone {
            Tone::Plain => plain,
            Tone::Soft => plain.add_modifier(Modifier::DIM),
            Tone::Strong => plain.add_modifier(Modifier::BOLD),
            Tone::Bad if !self.colour => plain.add_modifier(Modifier::BOLD),
            _ if !self.colour => plain,
            Tone::Good => plain.fg(Color::Green),
            Tone::Warn => plain.fg(Color::Yellow),
            Tone::Bad => plain.fg(Color::Red),
            Tone::Bar => plain.fg(Color::Cyan),
        }
    }

    /// A text without characters that would command the terminal.
    pub(crate) fn text(self, text: &str, tone: Tone) -> Span<'static> {
        let cleaned = clean(text);
        let shown = if self.unicode { cleaned } else { ascii(&cleaned) };
        Span::styled(shown, self.style(tone))
    }

    /// A mark that shows the tone without colour.
    pub(crate) fn mark(self, tone: Tone) -> Span<'static> {
        let mark = match (tone, self.unicode) {
            (Tone::Good, true) => "●",
            (Tone::Warn, true) => "▲",
            (Tone::Bad, true) => "✖",
            (_, true) => "○",
            (Tone::Good, false) => "+",
            (Tone::Warn, false) => "!",
            (Tone::Bad, false) => "X",
            (_, false) => "-",
        };
        Span::styled(mark, self.style(tone))
    }

    /// A bar of this many eighths.
    pub(crate) fn bar(self, eighths: usize) -> &'static str {
        let bars = if self.unicode { &BARS } else { &ASCII_BARS };
        bars[eighths.min(bars.len() - 1)]
    }

    /// The mark of the selected row.
    pub(crate) fn pointer(self) -> &'static str {
        if self.unicode { "▸" } else { ">" }
    }

    /// A moment on a time axis.
    pub(crate) fn moment(self) -> &'static str {
        if self.unicode { "▴" } else { "^" }
    }

    /// The end of a text that was cut.
    pub(crate) fn cut(self) -> &'static str {
        if self.unicode { "…" } else { ".." }
    }

    /// Between two things on one line.
    pub(crate) fn dot(self) -> &'static str {
        if self.unicode { " · " } else { ", " }
    }

    /// A title with a note, and a rule to the end of the width.
    pub(crate) fn rule(self, title: &str, note: &str, width: usize) -> Line<'static> {
        let dash = if self.unicode { "─" } else { "-" };
        let mut spans = vec![
            Span::styled(format!("{dash} "), self.style(Tone::Soft)),
            self.text(title, Tone::Strong),
            Span::raw(" "),
        ];
        if !note.is_empty() {
            let dot = self.dot().trim_end();
            spans.pop();
            spans.push(self.text(&format!("{dot} {note} "), Tone::Soft));
        }
        let line = Line::from(spans.clone());
        let rest = width.saturating_sub(line.width());
        spans.push(Span::styled(dash.repeat(rest), self.style(Tone::Soft)));
        Line::from(spans)
    }
}

/// A round trip with two significant digits, as in the view, or whole milliseconds.
pub(crate) fn ms(ms: f64) -> String {
    match ms {
        ms if !ms.is_finite() || ms < 0.0 => "?".into(),
        ms if ms < 0.01 => "<0.01 ms".into(),
        ms if ms < 0.995 => format!("{ms:.2} ms"),
        ms if ms < 9.95 => format!("{ms:.1} ms"),
        ms => format!("{ms:.0} ms"),
    }
}

fn ascii(text: &str) -> String {
    let shown = |c: char| match c {
        '·' => '-',
        c if c.is_ascii() => c,
        _ => '?',
    };
    text.chars().map(shown).collect()
}

/// A state that an origin announces.
pub(crate) fn of_state(state: &str) -> Tone {
    match state {
        "ready" => Tone::Good,
        "refusing" | "hung" | "stalled" => Tone::Bad,
        _ => Tone::Warn,
    }
}

pub(crate) fn of_path(kind: &str) -> Tone {
    match kind {
        "direct" | "own" => Tone::Good,
        "dead" => Tone::Bad,
        "none" => Tone::Soft,
        _ => Tone::Warn,
    }
}

/// The tone of a node's liveness.
pub(crate) fn of_liveness(liveness: &str) -> Tone {
    match liveness {
        "alive" | "leaf" => Tone::Good,
        "down" => Tone::Bad,
        "left" => Tone::Soft,
        _ => Tone::Warn,
    }
}

pub(crate) fn of_event(kind: &str) -> Tone {
    match kind {
        "came" => Tone::Good,
        "went" | "revoked" => Tone::Bad,
        "route" | "refused" | "reset" => Tone::Warn,
        _ => Tone::Plain,
    }
}

/// A share of lost probes, in percent.
pub(crate) fn of_loss(percent: u8) -> Tone {
    match percent {
        0..=1 => Tone::Plain,
        2..=49 => Tone::Warn,
        _ => Tone::Bad,
    }
}
