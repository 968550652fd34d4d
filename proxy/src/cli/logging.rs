//! The log of `meshport run`: lines of text or JSON on standard error. If that is systemd's
//! journal, text goes to the journal's native socket as records with fields, and each line of JSON
//! begins with its priority, which the journal strips and keeps as a field.

use std::fmt::{self, Debug};
use std::io;
use std::os::fd::AsFd;

use meshport_config::LogLevel;
use rustix::fs::fstat;
use systemd_journal_logger::JournalLog;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber, warn};
use tracing_subscriber::filter::{ParseError, Targets};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::{LookupSpan, Registry};
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt;

use meshport_daemon::Error;
use meshport_daemon::log_lines::{self, Fields};

/// Overrides the level, also per target: `meshport=debug,info`.
const VARIABLE: &str = "MESHPORT_LOG";
/// Comes before the user's directives, so that they override it: boringtun logs the normal end of a
/// session at ERROR, and the mesh logs what matters itself. The audit log does not depend on the
/// level of other lines.
const BASE: &str = "boringtun=off,audit=info";
/// Identifier of the daemon's records in the journal (`journalctl -t`).
const IDENTIFIER: &str = "meshport";
/// Prefix of each field in the journal, so that none clashes with systemd's.
const PREFIX: &str = "MESHPORT_";

/// Changes the log level.
pub(crate) type SetLevel = Box<dyn Fn(LogLevel) + Send>;

/// Starts logging at `level`, or as [`VARIABLE`] says; returns a function that changes the level,
/// `None` if the variable sets it. Call it once.
///
/// # Errors
/// [`Error::Usage`] when the level or the variable is not understood.
pub(crate) fn start(json: bool, level: &str) -> Result<Option<SetLevel>, Error> {
    let variable = std::env::var(VARIABLE).ok().filter(|directives| !directives.is_empty());
    let from = if variable.is_some() { VARIABLE } else { "log level" };
    let is_free = variable.is_none();
    let directives = variable.unwrap_or_else(|| level.to_owned());
    let filter = filter(&directives)
        .map_err(|error| Error::Usage(format!("{from} {directives:?} is not valid: {error}")))?;
    let is_journal = is_journal(std::env::var("JOURNAL_STREAM").ok().as_deref(), io::stderr());
    let (filter, handle) = reload::Layer::new(filter);
    let registry = Registry::default().with(filter);
    // If the journal's socket is missing, log to standard error.
    match (is_journal && !json).then(JournalLog::empty).and_then(Result::ok) {
        Some(log) => {
            registry.with(Journal(log.with_syslog_identifier(IDENTIFIER.to_owned()))).try_init()
        }
        None if json => {
            let format = |lines| Prioritised { lines, is_journal };
            registry.with(log_lines::on_stderr().json().map_event_format(format)).try_init()
        }
        None => {
            let format = |lines| Prioritised { lines, is_journal };
            registry.with(log_lines::on_stderr().map_event_format(format)).try_init()
        }
    }
    .map_err(|error| Error::Bug(format!("logging was started twice: {error}")))?;
    let set_level: SetLevel = Box::new(move |level| replace(level, |filter| handle.reload(filter)));
    Ok(is_free.then_some(set_level))
}

fn filter(directives: &str) -> Result<Targets, ParseError> {
    format!("{BASE},{directives}").parse()
}

fn replace(level: LogLevel, reload: impl FnOnce(Targets) -> Result<(), reload::Error>) {
    let filter = filter(level.as_str()).expect("each level is a directive");
    if let Err(error) = reload(filter) {
        warn!(%error, "log level unchanged");
    }
}

/// Whether this is the stream that systemd connected to its journal. Compares device and inode,
/// since the stream may have been redirected.
fn is_journal(stream: Option<&str>, here: impl AsFd) -> bool {
    let Some((device, inode)) = stream.and_then(|stream| stream.split_once(':')) else {
        return false;
    };
    let same = |number: u64, text: &str| text.parse() == Ok(number);
    fstat(here).is_ok_and(|stat| same(stat.st_dev, device) && same(stat.st_ino, inode))
}

/// Events as records of the journal: the line as the message, and each field separately.
struct Journal(JournalLog);

impl<S: Subscriber> Layer<S> for Journal {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let mut line = String::new();
        let mut fields = Pairs::default();
        event.record(&mut fields);
        // Writing to memory does not fail, and a missing journal must not end the daemon.
        let _ = Fields.format_fields(Writer::new(&mut line), event);
        let _ = self.0.journal_send(
            &log::Record::builder()
                // The priorities of `tracing-journald`: 3, 4, 6, 7.
                .level(match *event.metadata().level() {
                    Level::ERROR => log::Level::Error,
                    Level::WARN => log::Level::Warn,
                    Level::INFO => log::Level::Debug,
                    Level::DEBUG | Level::TRACE => log::Level::Trace,
                })
                .target(event.metadata().target())
                .key_values(&fields.0.as_slice())
                .args(format_args!("{line}"))
                .build(),
        );
    }
}

/// The fields of an event except its message, under their names in the journal.
#[derive(Debug, Default)]
struct Pairs(Vec<(String, String)>);

impl Visit for Pairs {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.record_str(field, &format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() != "message" {
            let name = format!("{PREFIX}{}", field.name().to_ascii_uppercase());
            self.0.push((name, value.to_owned()));
        }
    }
}

/// Lines that begin with their syslog priority, for the journal.
#[derive(Debug)]
struct Prioritised<F> {
    lines: F,
    is_journal: bool,
}

impl<S, N, F> FormatEvent<S, N> for Prioritised<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        if self.is_journal {
            let priority = match *event.metadata().level() {
                Level::ERROR => 3,
                Level::WARN => 4,
                Level::INFO => 6,
                Level::DEBUG | Level::TRACE => 7,
            };
            write!(writer, "<{priority}>")?;
        }
        self.lines.format_event(context, writer, event)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("not poisoned").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn records_of_the_journal_have_each_field_by_itself() {
        #[derive(Clone, Default)]
        struct Seen(Arc<Mutex<Pairs>>);

        impl<S: Subscriber> Layer<S> for Seen {
            fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
                event.record(&mut *self.0.lock().expect("not poisoned"));
            }
        }

        let seen = Seen::default();
        tracing::subscriber::with_default(Registry::default().with(seen.clone()), || {
            let why = "no route to host";
            tracing::info!(%why, from = "cp-fra", number = 3, "done");
        });
        let pairs = seen.0.lock().expect("not poisoned");
        let pairs = pairs.0.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let expected = [
            ("MESHPORT_WHY", "no route to host"),
            ("MESHPORT_FROM", "cp-fra"),
            ("MESHPORT_NUMBER", "3"),
        ];
        assert_eq!(pairs.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn lines_in_the_journal_begin_with_their_priority() {
        let kept = Kept::default();
        let writer = kept.clone();
        let builder = tracing_subscriber::fmt().with_ansi(false).without_time();
        let builder = builder.map_event_format(|lines| Prioritised { lines, is_journal: true });
        let log = builder.with_writer(move || writer.clone()).finish();
        tracing::subscriber::with_default(log, || {
            tracing::error!("one");
            tracing::warn!("two");
            tracing::info!("three");
        });
        let text = String::from_utf8(kept.0.lock().expect("not poisoned").clone()).expect("text");
        let begins: Vec<&str> = text.lines().filter_map(|line| line.get(..3)).collect();
        assert_eq!(begins, ["<3>", "<4>", "<6>"], "{text}");
    }

    #[test]
    fn the_journal_is_recognised_by_device_and_inode() {
        let file = tempfile::tempfile().expect("a file");
        let stat = fstat(&file).expect("it is open");
        let of = |inode: u64| format!("{}:{inode}", stat.st_dev);
        assert!(is_journal(Some(&of(stat.st_ino)), &file));
        assert!(!is_journal(Some(&of(stat.st_ino + 1)), &file));
        assert!(!is_journal(Some("8"), &file) && !is_journal(None, &file));
    }
}
