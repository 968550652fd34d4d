//! The lines of a log on standard error, the same for all programs: the fields of a line as
//! `name=value`, so that a program can read each value.

use std::fmt::{self, Debug, Write as _};
use std::io;

use tracing::Subscriber;
use tracing_subscriber::field::{MakeExt, RecordFields};
use tracing_subscriber::fmt::format::{Format, Writer, debug_fn};
use tracing_subscriber::fmt::{FormatFields, Layer};
use tracing_subscriber::registry::LookupSpan;

use crate::colour;

/// Lines of text on standard error.
pub fn on_stderr<S>() -> Layer<S, Fields, Format, fn() -> io::Stderr>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    tracing_subscriber::fmt::layer()
        .with_writer(io::stderr as fn() -> io::Stderr)
        .with_ansi(colour::is_wanted(&io::stderr()))
        // A closed standard error must not end the program.
        .log_internal_errors(false)
        .fmt_fields(Fields)
}

/// The fields of a line as `name=value`, quoted if the value is more than one word.
#[derive(Debug)]
pub struct Fields;

impl<'writer> FormatFields<'writer> for Fields {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'writer>, fields: R) -> fmt::Result {
        let fields_of = debug_fn(|writer, field, value| match field.name() {
            "message" => write!(writer, "{value:?}"),
            name => write_field(writer, name, value),
        });
        fields_of.delimited(" ").format_fields(writer, fields)
    }
}

/// Whether a text is one string literal. Strings arrive as such, displayed values as they are.
fn is_quoted(text: &str) -> bool {
    let inner = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    inner.is_some_and(|inner| {
        let mut is_escaped = false;
        let is_plain = inner.chars().all(|c| {
            let is_end = c == '"' && !is_escaped;
            is_escaped = c == '\\' && !is_escaped;
            !is_end && !c.is_control()
        });
        is_plain && !is_escaped
    })
}

fn write_field(writer: &mut Writer<'_>, name: &str, value: &dyn Debug) -> fmt::Result {
    let mut text = String::new();
    write!(text, "{value:?}")?;
    let is_word = |text: &str| {
        let breaks = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '"' | '=');
        !text.is_empty() && !text.contains(breaks)
    };
    match is_quoted(&text) || is_word(&text) {
        true => write!(writer, "{name}={text}"),
        false => write!(writer, "{name}={text:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Lines;

    #[test]
    fn every_value_can_be_read_by_a_program() {
        let kept = Lines::default();
        let writer = kept.clone();
        let builder = tracing_subscriber::fmt().with_ansi(false).fmt_fields(Fields);
        let log = builder.with_writer(move || writer.clone()).finish();
        // Displayed values that are not one string literal.
        let displayed = [r#""a" failed: "b""#, "\"a\nb\"", r#""a\""#, "\""];
        tracing::subscriber::with_default(log, || {
            let (word, words, odd) = ("cp-fra", "no route to host", "a\nb=\"c\"");
            tracing::info!(%word, %words, %odd, text = word, number = 3, some = Some(1), "done");
            for value in displayed {
                tracing::info!(%value, text = value, "done");
            }
        });
        let text = kept.text();
        let mut lines = text.lines().map(|line| line.split_once("done").expect("the message").1);
        let expected = " word=cp-fra words=\"no route to host\" odd=\"a\\nb=\\\"c\\\"\" \
                        text=\"cp-fra\" number=3 some=1";
        assert_eq!(lines.next(), Some(expected));
        let expected = displayed.map(|value| format!(" value={value:?} text={value:?}"));
        assert_eq!(lines.collect::<Vec<_>>(), expected);
    }
}
