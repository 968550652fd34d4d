//! The description of a key: how its value is read, written and explained.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use toml::Spanned;
use toml::de::DeValue;

use super::period::Period;
use super::problem::nearest;
use crate::text::shown;

/// The longest path, in bytes: Linux's limit (PATH_MAX, without its final NUL).
const MAX_PATH_BYTES: usize = 4095;
pub(super) const PATH_FORM: &str = "a path";

/// A key of a table that fills a `T`.
pub(super) struct Key<T> {
    /// Its name, in kebab case.
    pub(super) name: &'static str,
    /// Its meaning, in sentences, for the reference.
    pub(super) about: &'static str,
    /// A value in TOML, for a key that has no default.
    pub(super) example: Option<&'static str>,
    /// Whether a malformed value is not shown either.
    pub(super) is_secret: bool,
    /// The form and bounds of its value.
    pub(super) kind: Kind<T>,
}

/// The form of a value, and its destination.
pub(super) enum Kind<T> {
    /// A whole number with a unit.
    Integer { min: u32, max: u32, unit: &'static str, get: fn(&T) -> u32, set: fn(&mut T, u32) },
    /// A length of time.
    Period { min: Duration, max: Duration, get: fn(&T) -> Duration, set: fn(&mut T, Duration) },
    /// A length of time or "off".
    PeriodOrOff {
        min: Duration,
        max: Duration,
        get: fn(&T) -> Option<Duration>,
        set: fn(&mut T, Option<Duration>),
    },
    /// True or false.
    Flag { get: fn(&T) -> bool, set: fn(&mut T, bool) },
    /// One of a few words. `set` returns `None` for any other.
    Choice {
        names: &'static [&'static str],
        get: fn(&T) -> &'static str,
        set: fn(&mut T, &str) -> Option<()>,
    },
    /// A string of some form. `set` returns `None` for another form.
    Text {
        expected: &'static str,
        get: fn(&T) -> Option<String>,
        set: fn(&mut T, &str) -> Option<()>,
    },
    /// A list of strings of some form, without repetitions. `push` returns `None` for another form.
    List {
        expected: &'static str,
        max: usize,
        get: fn(&T) -> Vec<String>,
        clear: fn(&mut T),
        push: fn(&mut T, &str) -> Option<()>,
    },
}

/// A list of tables with names, such as `[[expose]]`.
pub(super) struct List<N, T: 'static> {
    /// Its name.
    pub(super) name: &'static str,
    /// Maximum tables in it.
    pub(super) max: usize,
    /// The key of a table that names it.
    pub(super) label: Key<Option<N>>,
    /// Completes "expected ..." in the error for a duplicate name.
    pub(super) differs: &'static str,
    /// The other keys.
    pub(super) keys: &'static [Key<T>],
    /// Keys that must be present while reading; a table without them is left out. Others are
    /// checked in `check`.
    pub(super) required: &'static [&'static str],
    /// The tables within a table.
    pub(super) tables: &'static [&'static str],
    /// A table without keys.
    pub(super) empty: fn() -> T,
}

/// Why a value was refused.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) span: Range<usize>,
    pub(super) found: String,
    pub(super) expected: String,
    pub(super) nearest: Option<String>,
}

/// A key that has a default.
pub(super) const fn key<T>(name: &'static str, about: &'static str, kind: Kind<T>) -> Key<T> {
    Key { name, about, example: None, is_secret: false, kind }
}

/// The key with the name of a table in a list.
pub(super) const fn label<N: FromStr + ToString>(
    name: &'static str,
    about: &'static str,
    expected: &'static str,
) -> Key<Option<N>> {
    let kind = Kind::Text {
        expected,
        get: |from: &Option<N>| from.as_ref().map(ToString::to_string),
        set: |into, text| text.parse().ok().map(|name| *into = Some(name)),
    };
    key(name, about, kind)
}

/// A number that is within the bounds of its key.
pub(super) fn narrow<N: TryFrom<u32>>(number: u32) -> N {
    N::try_from(number).ok().expect("the bounds of a key are those of its field")
}

impl<T> Key<T> {
    /// The key with an example.
    pub(super) const fn with_example(mut self, example: &'static str) -> Self {
        self.example = Some(example);
        self
    }

    /// The key with a value that may contain a secret.
    pub(super) const fn secret(mut self) -> Self {
        self.is_secret = true;
        self
    }

    /// The values that are accepted, to follow "expected".
    pub(super) fn expected(&self) -> String {
        match &self.kind {
            Kind::Integer { min, max, unit, .. } => {
                format!("a whole number from {min} to {max} ({unit})")
            }
            Kind::Period { min, max, .. } => {
                format!("a duration from \"{}\" to \"{}\"", Period(*min), Period(*max))
            }
            Kind::PeriodOrOff { min, max, .. } => {
                format!("\"off\", or a duration from \"{}\" to \"{}\"", Period(*min), Period(*max))
            }
            Kind::Flag { .. } => "true or false".to_owned(),
            Kind::Choice { names, .. } => format!("one of \"{}\"", names.join("\", \"")),
            Kind::Text { expected, .. } => (*expected).to_owned(),
            Kind::List { expected, max, .. } => {
                format!("a list of at most {max}, each {expected}")
            }
        }
    }

    /// The value as it is written to a file; `None` if it is not set.
    pub(super) fn value(&self, from: &T) -> Option<toml::Value> {
        match &self.kind {
            Kind::Integer { get, .. } => Some(i64::from(get(from)).into()),
            Kind::Period { get, .. } => Some(Period(get(from)).to_string().into()),
            Kind::PeriodOrOff { get, .. } => {
                let text = get(from).map_or("off".to_owned(), |time| Period(time).to_string());
                Some(text.into())
            }
            Kind::Flag { get, .. } => Some(get(from).into()),
            Kind::Choice { get, .. } => Some(get(from).into()),
            Kind::Text { get, .. } => get(from).map(toml::Value::from),
            Kind::List { get, .. } => Some(get(from).into()),
        }
    }

    /// Reads a value into the settings. Refused values or list elements change nothing.
    pub(super) fn read(&self, value: &Spanned<DeValue<'_>>, into: &mut T) -> Vec<Refused> {
        if let Kind::List { expected, max, clear, push, .. } = &self.kind {
            clear(into);
            return self.read_list(value, *max, expected, |text| push(into, text));
        }
        if self.read_single(value.get_ref(), into).is_some() {
            return Vec::new();
        }
        let mut refused = self.refuse(value);
        if let (Kind::Choice { names, .. }, Some(text)) = (&self.kind, value.get_ref().as_str()) {
            refused.nearest = nearest(text, names.iter().copied()).map(str::to_owned);
        }
        vec![refused]
    }

    fn read_single(&self, value: &DeValue<'_>, into: &mut T) -> Option<()> {
        match &self.kind {
            Kind::Integer { min, max, set, .. } => {
                let number = integer(value).filter(|number| (*min..=*max).contains(number))?;
                set(into, number);
            }
            Kind::Period { min, max, set, .. } => {
                set(into, period(value.as_str()?, *min, *max)?);
            }
            Kind::PeriodOrOff { min, max, set, .. } => match value.as_str()? {
                "off" => set(into, None),
                text => set(into, Some(period(text, *min, *max)?)),
            },
            Kind::Flag { set, .. } => set(into, value.as_bool()?),
            Kind::Choice { set, .. } | Kind::Text { set, .. } => set(into, value.as_str()?)?,
            Kind::List { .. } => return None,
        }
        Some(())
    }

    fn read_list(
        &self,
        value: &Spanned<DeValue<'_>>,
        max: usize,
        element_form: &str,
        mut push: impl FnMut(&str) -> Option<()>,
    ) -> Vec<Refused> {
        let Some(elements) = value.get_ref().as_array() else {
            return vec![self.refuse(value)];
        };
        if elements.len() > max {
            let found = format!("a list of {}", elements.len());
            return vec![Refused { found, ..self.refuse(value) }];
        }
        let mut refused = Vec::new();
        let mut seen: Vec<&str> = Vec::new();
        for element in elements {
            let wrong =
                |expected: &str| Refused { expected: expected.to_owned(), ..self.refuse(element) };
            match element.get_ref().as_str() {
                Some(text) if seen.contains(&text) => refused.push(wrong("each value only once")),
                Some(text) if push(text).is_some() => seen.push(text),
                _ => refused.push(wrong(element_form)),
            }
        }
        refused
    }

    fn refuse(&self, value: &Spanned<DeValue<'_>>) -> Refused {
        let found = match self.is_secret {
            true => "\"REDACTED\"".to_owned(),
            false => describe(value.get_ref()),
        };
        Refused { span: value.span(), found, expected: self.expected(), nearest: None }
    }
}

fn integer(value: &DeValue<'_>) -> Option<u32> {
    let integer = value.as_integer()?;
    u32::from_str_radix(integer.as_str(), integer.radix()).ok()
}

fn period(text: &str, min: Duration, max: Duration) -> Option<Duration> {
    let Period(time) = text.parse().ok()?;
    (min..=max).contains(&time).then_some(time)
}

/// A value for a message: as written if it is short, otherwise its type.
pub(super) fn describe(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => shown(text),
        DeValue::Integer(number) => shown(&number.to_string()).replace('"', ""),
        DeValue::Float(number) => shown(&number.to_string()).replace('"', ""),
        DeValue::Boolean(flag) => flag.to_string(),
        DeValue::Datetime(_) => "a date or time".to_owned(),
        DeValue::Array(_) => "a list".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    }
}

pub(super) fn path_text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

pub(super) fn path(text: &str) -> Option<PathBuf> {
    let is_path = !text.is_empty() && text.len() <= MAX_PATH_BYTES && !text.contains('\0');
    is_path.then(|| PathBuf::from(text))
}
