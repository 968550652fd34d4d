//! The drains that a successor continues: a text in a pipe among the passed sockets. A release that
//! does not know it closes it.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use meshport_config::ServiceName;
use rustix::fs::{FileType, fstat};
use tracing::warn;

use crate::driver::commands::Drained;

/// The longest text in bytes: a pipe's room, which is enough for some 800 services.
const MAX_TEXT: u64 = 1 << 16;
/// The first word of a line, before the service and the seconds since its drain began.
const WORD: &str = "drained";

/// A pipe with the text; `None` without a drain.
pub(super) fn pipe(drained: &Drained, now: Instant) -> io::Result<Option<OwnedFd>> {
    if drained.is_empty() {
        return Ok(None);
    }
    let lines = drained.iter().map(|(service, since)| {
        format!("{WORD} {service} {}\n", now.saturating_duration_since(*since).as_secs())
    });
    let text: String = lines.collect();
    let (reader, mut writer) = io::pipe()?;
    let room = usize::try_from(MAX_TEXT).map_or(text.len(), |most| text.len().min(most));
    writer.write_all(&text.as_bytes()[..room])?;
    Ok(Some(reader.into()))
}

/// Separates the pipe from the sockets and reads it. Skips lines of another release.
pub(super) fn take(passed: Vec<OwnedFd>, now: Instant) -> (Drained, Vec<OwnedFd>) {
    let is_pipe = |it: &OwnedFd| {
        fstat(it.as_fd()).is_ok_and(|it| FileType::from_raw_mode(it.st_mode).is_fifo())
    };
    let (pipes, others): (Vec<_>, _) = passed.into_iter().partition(is_pipe);
    let mut text = String::new();
    for pipe in pipes {
        if let Err(error) = File::from(pipe).take(MAX_TEXT).read_to_string(&mut text) {
            warn!(%error, "cannot read the drains of the previous process; they end");
        }
    }
    (text.lines().filter_map(|line| parse(line, now)).collect(), others)
}

fn parse(line: &str, now: Instant) -> Option<(ServiceName, Instant)> {
    let mut words = line.split(' ');
    let service = words.next().filter(|it| *it == WORD).and_then(|_| words.next())?;
    let age = Duration::from_secs(words.next()?.parse().ok()?);
    Some((service.parse().ok()?, now.checked_sub(age).unwrap_or(now)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drains_are_read_as_written_and_other_lines_are_skipped() {
        let now = crate::clock::now() + Duration::from_secs(1000);
        let drained: Drained = [("kube-apiserver", 0), ("registry", 90)]
            .map(|(name, age)| (name.parse().expect("a name"), now - Duration::from_secs(age)))
            .into();
        let (socket, _other) = std::os::unix::net::UnixStream::pair().expect("sockets");
        let pipe = pipe(&drained, now).expect("a pipe").expect("there are drains");
        let (taken, others) = take(vec![pipe, socket.into()], now);
        assert_eq!((taken, others.len()), (drained, 1));
        assert!(super::pipe(&Drained::new(), now).expect("none").is_none());
        for line in ["", "drained", "drained a", "drained a b", "drained A! 1", "paused a 1"] {
            assert_eq!(parse(line, now), None, "{line}");
        }
        assert!(parse("drained a 1 of a later release", now).is_some());
    }
}
