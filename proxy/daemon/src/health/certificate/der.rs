//! The end of a certificate's validity and its signature, from its DER (RFC 5280, 4.1 and 4.1.2.5).
//!
//! Parses only the paths to these; anything unexpected gives none.

use meshport_config::UnixSeconds;

const SEQUENCE: u8 = 0x30;
/// Tag of the version field, which version 1 certificates lack.
const VERSION: u8 = 0xa0;
const BIT_STRING: u8 = 0x03;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
/// Two digits of a year below this are of the next century.
const CENTURY: u64 = 50;
const DAY_S: u64 = 86_400;

pub(super) fn ends_at(der: &[u8]) -> Option<UnixSeconds> {
    let mut rest = der;
    let mut certificate = sequence(&mut rest)?;
    let mut fields = sequence(&mut certificate)?;
    if element(&mut fields)?.0 == VERSION {
        let _serial = element(&mut fields)?;
    }
    let _algorithm = element(&mut fields)?;
    let _issuer = element(&mut fields)?;
    let mut validity = sequence(&mut fields)?;
    let _from = element(&mut validity)?;
    let (tag, text) = element(&mut validity)?;
    time(tag, std::str::from_utf8(text).ok()?)
}

/// What a certificate's authority signed, and its signature.
pub(super) fn signed(der: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut rest = der;
    let whole = sequence(&mut rest)?;
    let mut after = whole;
    let _fields = sequence(&mut after)?;
    let fields = &whole[..whole.len() - after.len()];
    let _algorithm = sequence(&mut after)?;
    let (_, bits) = element(&mut after).filter(|(tag, _)| *tag == BIT_STRING)?;
    // The first octet counts the unused bits of the last, of which a signature has none.
    Some((fields, bits.strip_prefix(&[0])?))
}

fn sequence<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    element(bytes).filter(|(tag, _)| *tag == SEQUENCE).map(|(_, content)| content)
}

/// Tag and content of the next element, of at most 16 MiB.
fn element<'a>(bytes: &mut &'a [u8]) -> Option<(u8, &'a [u8])> {
    let (tag, rest) = bytes.split_first()?;
    let (first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(*first), rest),
        0x81..=0x83 => {
            let (octets, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (octets.iter().fold(0, |sum, octet| sum << 8 | usize::from(*octet)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    *bytes = rest;
    Some((*tag, content))
}

/// `YYMMDDHHMMSSZ` or `YYYYMMDDHHMMSSZ`.
fn time(tag: u8, text: &str) -> Option<UnixSeconds> {
    let digits = text.strip_suffix('Z').filter(|it| it.bytes().all(|it| it.is_ascii_digit()))?;
    let (year, rest) = digits.split_at_checked(digits.len().checked_sub(10)?)?;
    let number = |at: usize| rest.get(at..at + 2)?.parse::<u64>().ok();
    let year: u64 = match (tag, year.len()) {
        (UTC_TIME, 2) => {
            let year: u64 = year.parse().ok()?;
            year + if year < CENTURY { 2000 } else { 1900 }
        }
        (GENERALIZED_TIME, 4) => year.parse().ok()?,
        _ => return None,
    };
    let (month, day) = (number(0)?, number(2)?);
    let (hour, minute, second) = (number(4)?, number(6)?, number(8)?);
    let is_date = (1..=12).contains(&month) && (1..=31).contains(&day);
    let is_time = hour < 24 && minute < 60 && second < 61;
    if !is_date || !is_time {
        return None;
    }
    let seconds = days(year, month, day)? * DAY_S + hour * 3600 + minute * 60 + second;
    Some(UnixSeconds(seconds))
}

/// Days since 1970-01-01, by Hinnant's algorithm `days_from_civil`.
fn days(year: u64, month: u64, day: u64) -> Option<u64> {
    // The year begins in March, so that the leap day is its last.
    let (year, month) =
        if month > 2 { (year, month - 3) } else { (year.checked_sub(1)?, month + 9) };
    let (era, of_era) = (year / 400, year % 400);
    let of_year = (153 * month + 2) / 5 + day - 1;
    (era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year).checked_sub(719_468)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate(year: i32, month: u8, day: u8) -> Vec<u8> {
        let key = rcgen::KeyPair::generate().expect("a key");
        let mut params = rcgen::CertificateParams::new(vec!["a".to_owned()]).expect("names");
        params.not_after = rcgen::date_time_ymd(year, month, day);
        params.self_signed(&key).expect("signed").der().to_vec()
    }

    #[test]
    fn the_end_is_read_in_both_forms() {
        for (date, seconds) in [
            ((2027, 1, 14), 1_799_884_800),
            ((2028, 2, 29), 1_835_395_200),
            ((2049, 12, 31), 2_524_521_600),
            ((2050, 1, 1), 2_524_608_000),
            ((2100, 3, 1), 4_107_542_400),
        ] {
            let (year, month, day) = date;
            let der = certificate(year, month, day);
            assert_eq!(ends_at(&der), Some(UnixSeconds(seconds)), "{date:?}");
        }
        assert_eq!(time(UTC_TIME, "700101000001Z"), Some(UnixSeconds(1)));
    }

    #[test]
    fn other_bytes_are_no_time() {
        let der = certificate(2027, 1, 14);
        for length in 0..der.len() {
            assert_eq!(ends_at(&der[..length]), None, "{length}");
            assert_eq!(signed(&der[..length]), None, "{length}");
        }
        let mut changed = der.clone();
        for at in 0..der.len() {
            for byte in [0, 0x7f, 0x80, 0x84, 0xff] {
                changed[at] = byte;
                // Any input terminates.
                let _ = (ends_at(&changed), signed(&changed));
            }
            changed[at] = der[at];
        }
        for text in ["", "Z", "2701140000Z", "27011400000Z", "271314000000Z", "27011400000xZ"] {
            assert_eq!(time(UTC_TIME, text), None, "{text}");
        }
        assert_eq!(time(UTC_TIME, "20270114000000Z"), None);
        assert_eq!(time(GENERALIZED_TIME, "19690114000000Z"), None);
    }
}
