//! The style of an answer: its width, and whether problems have a colour.

/// The width and the colours of one output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Style {
    /// Columns of the terminal; `None` for a file or a pipe, where nothing is cut.
    pub(crate) width: Option<usize>,
    pub(crate) colour: bool,
}

/// Severity, shown as a colour.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Tone {
    #[default]
    Plain,
    /// A problem that makes nothing fail.
    Warn,
    /// Broken.
    Bad,
}

impl From<Option<usize>> for Style {
    fn from(width: Option<usize>) -> Self {
        Self { width, colour: false }
    }
}

impl Style {
    /// The text in the colour of its tone. It must not contain control characters.
    pub(crate) fn paint(self, text: &str, tone: Tone) -> String {
        // Select Graphic Rendition (ECMA-48, 8.3.117): yellow and red in the terminal's own shades.
        let code = match tone {
            Tone::Warn if self.colour => 33,
            Tone::Bad if self.colour => 31,
            _ => return text.to_owned(),
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }
}

/// The tone of an origin's state, as in [`meshport_daemon::admin::api::OriginStatus::state`].
pub(super) fn of_state(state: &str) -> Tone {
    match state {
        "ready" => Tone::Plain,
        "refusing" | "hung" | "stalled" => Tone::Bad,
        _ => Tone::Warn,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_wrong_has_a_colour_and_only_where_there_are_colours() {
        let style = Style { width: None, colour: true };
        assert_eq!(style.paint("hung", of_state("hung")), "\x1b[31mhung\x1b[0m");
        assert_eq!(style.paint("unready", of_state("unready")), "\x1b[33munready\x1b[0m");
        assert_eq!(style.paint("ready", of_state("ready")), "ready");
        assert_eq!(Style::default().paint("hung", Tone::Bad), "hung");
    }
}
