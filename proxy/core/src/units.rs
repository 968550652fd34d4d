//! Formats numbers with units, short enough for a table, and makes text safe for a terminal.

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// A span of seconds in its two largest units: `42s`, `3m 12s`, `2h 5m`, `3d 4h`.
pub fn age(seconds: u64) -> String {
    let two = |large: u64, large_name: &str, small: u64, small_name: &str| match small {
        0 => format!("{large}{large_name}"),
        _ => format!("{large}{large_name} {small}{small_name}"),
    };
    match seconds {
        0..MINUTE => format!("{seconds}s"),
        MINUTE..HOUR => two(seconds / MINUTE, "m", seconds % MINUTE, "s"),
        HOUR..DAY => two(seconds / HOUR, "h", seconds % HOUR / MINUTE, "m"),
        _ => two(seconds / DAY, "d", seconds % DAY / HOUR, "h"),
    }
}

/// Milliseconds with three significant digits.
pub fn milliseconds(ms: f64) -> String {
    match ms {
        ms if !ms.is_finite() || ms < 0.0 => "?".into(),
        ms if ms < 0.01 => "<0.01 ms".into(),
        ms if ms < 10.0 => format!("{ms:.2} ms"),
        ms if ms < 100.0 => format!("{ms:.1} ms"),
        ms => format!("{ms:.0} ms"),
    }
}

/// Bytes in the largest binary unit with a digit before the point.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    #[expect(clippy::cast_precision_loss, reason = "two digits are shown")]
    let mut value = count as f64 / 1024.0;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if value < 10.0 {
        format!("{value:.1} {}", UNITS[unit])
    } else {
        format!("{value:.0} {}", UNITS[unit])
    }
}

/// `1 session`, `2 sessions`.
pub fn counted(count: u64, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

/// The text with a question mark in place of each character that would move the cursor, break the
/// line, change the text direction, or be invisible.
pub fn clean(text: &str) -> String {
    text.chars().map(|c| if is_seen(c) { c } else { '?' }).collect()
}

fn is_seen(c: char) -> bool {
    // Line separators, marks and overrides of direction, joiners and fillers without a width.
    let is_hidden = matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
        | '\u{e0000}'..='\u{e0fff}');
    !c.is_control() && !is_hidden
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages() {
        let of = [(0, "0s"), (59, "59s"), (60, "1m"), (192, "3m 12s"), (7_500, "2h 5m")];
        for (seconds, text) in of.into_iter().chain([(86_399, "23h 59m"), (273_600, "3d 4h")]) {
            assert_eq!(age(seconds), text);
        }
    }

    #[test]
    fn round_trips() {
        let of = [(0.001, "<0.01 ms"), (0.42, "0.42 ms"), (12.34, "12.3 ms"), (119.6, "120 ms")];
        for (ms, text) in of.into_iter().chain([(f64::NAN, "?"), (-1.0, "?")]) {
            assert_eq!(milliseconds(ms), text);
        }
    }

    #[test]
    fn sizes() {
        let of = [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (15_000, "15 KiB")];
        for (count, text) in of.into_iter().chain([(1_023_999, "1.0 MiB"), (u64::MAX, "16384 PiB")])
        {
            assert_eq!(bytes(count), text);
        }
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(clean("a\u{1b}[2Jb\nc\u{9b}1m"), "a?[2Jb?c?1m");
        assert_eq!(clean("cp\u{202e}1\u{200b}\u{2028}"), "cp?1??");
        assert_eq!(clean("Zürich 東京"), "Zürich 東京");
    }
}
