//! The macros of the tables of keys, so that a table states each of its keys once.
//!
//! `table!` makes the struct, its default and its keys of rows such as
//!
//! ```text
//! mtu: u16 = 9200, "mtu" is number!(1280, 9200, "bytes"), "The largest IP packet ...";
//! ```
//!
//! that is field, type, default, name of the key, form of its value, meaning. The other macros are
//! these forms. They take the field first, which `table!` adds, and then what is in the row.

/// An enum whose values are words, with the text form of each.
macro_rules! choice {
    (
        $(#[$doc:meta])* $name:ident, $what:literal, $expected:literal,
        { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)* }
    ) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)*
        }

        impl $name {
            /// The text forms of all values.
            pub const NAMES: &[&str] = &[$($text),*];

            /// The text form.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::TextError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                match text {
                    $($text => Ok(Self::$variant),)*
                    _ => Err($crate::TextError::form($what, text, $expected)),
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}

/// Defines a table: its public struct, the default of that, and the constant with its keys. Fields
/// without a key, which are tables of their own, come last.
macro_rules! table {
    ($(#[$doc:meta])* $table:ident, $keys:ident; $($rows:tt)*) => {
        incomplete_table! { $(#[$doc])* $table, $keys; $($rows)* }

        impl Default for $table {
            fn default() -> Self {
                Self::empty()
            }
        }
    };
}

/// Like `table!`, for a table with required keys: no public default.
macro_rules! incomplete_table {
    (
        $(#[$doc:meta])* $table:ident, $keys:ident;
        $(
            $field:ident: $type:ty = $default:expr,
            $name:literal is $form:ident!($($bounds:tt)*) $(, example $example:literal)?
            $(, as $mark:ident)?,
            $about:literal;
        )*
        $($(#[$part_doc:meta])+ $part:ident: $part_type:ty = $part_default:expr;)*
    ) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $table {
            $(
                #[doc = $about]
                #[doc = concat!(
                    "\n\nForm: `", stringify!($form($($bounds)*)), "`. Initial value: `",
                    stringify!($default), "`."
                )]
                pub $field: $type,
            )*
            $($(#[$part_doc])+ pub $part: $part_type,)*
        }

        impl $table {
            /// What a table without keys means.
            pub(super) fn empty() -> Self {
                Self { $($field: $default,)* $($part: $part_default,)* }
            }
        }

        pub(super) const $keys: &[$crate::settings::schema::Key<$table>] = &[$(
            $crate::settings::schema::key::<$table>($name, $about, $form!($field, $($bounds)*))
                $(.with_example($example))?
                $(.$mark())?
        ),*];
    };
}

/// A whole number.
macro_rules! number {
    ($($field:ident).+, $min:expr, $max:expr, $unit:literal) => {
        $crate::settings::schema::Kind::Integer {
            min: $min,
            max: $max,
            unit: $unit,
            get: |from| u32::from(from.$($field).+),
            set: |into, value| into.$($field).+ = $crate::settings::schema::narrow(value),
        }
    };
}

/// A length of time.
macro_rules! period {
    ($($field:ident).+, $min:expr, $max:expr) => {
        $crate::settings::schema::Kind::Period {
            min: $min,
            max: $max,
            get: |from| from.$($field).+,
            set: |into, value| into.$($field).+ = value,
        }
    };
}

/// A length of time or "off", which is `None`.
macro_rules! period_or_off {
    ($($field:ident).+, $min:expr, $max:expr) => {
        $crate::settings::schema::Kind::PeriodOrOff {
            min: $min,
            max: $max,
            get: |from| from.$($field).+,
            set: |into, value| into.$($field).+ = value,
        }
    };
}

/// True or false.
macro_rules! flag {
    ($($field:ident).+ $(,)?) => {
        $crate::settings::schema::Kind::Flag {
            get: |from| from.$($field).+,
            set: |into, value| into.$($field).+ = value,
        }
    };
}

/// One of the words of a type that `choice!` made.
macro_rules! word {
    ($($field:ident).+, $type:ty) => {
        $crate::settings::schema::Kind::Choice {
            names: <$type>::NAMES,
            get: |from| from.$($field).+.as_str(),
            set: |into, text| text.parse().ok().map(|value| into.$($field).+ = value),
        }
    };
}

/// A string that `$read` takes.
macro_rules! text {
    ($($field:ident).+, $expected:expr, $read:expr) => {
        $crate::settings::schema::Kind::Text {
            expected: $expected,
            get: |from| Some(from.$($field).+.to_string()),
            set: |into, text| $read(text).map(|value| into.$($field).+ = value),
        }
    };
}

/// A string that `$read` takes, without a default.
macro_rules! optional {
    ($($field:ident).+, $expected:expr, $read:expr) => {
        $crate::settings::schema::Kind::Text {
            expected: $expected,
            get: |from| from.$($field).+.as_ref().map(ToString::to_string),
            set: |into, text| $read(text).map(|value| into.$($field).+ = Some(value)),
        }
    };
}

/// The path of a file, without a default.
macro_rules! optional_path {
    ($($field:ident).+ $(,)?) => {
        $crate::settings::schema::Kind::Text {
            expected: $crate::settings::schema::PATH_FORM,
            get: |from| from.$($field).+.as_deref().map($crate::settings::schema::path_text),
            set: |into, text| {
                $crate::settings::schema::path(text).map(|value| into.$($field).+ = Some(value))
            },
        }
    };
}

/// A list of strings that `$read` takes, at most `$max`.
macro_rules! list {
    ($($field:ident).+, $max:expr, $expected:expr, $read:expr) => {
        $crate::settings::schema::Kind::List {
            expected: $expected,
            max: $max,
            get: |from| from.$($field).+.iter().map(ToString::to_string).collect(),
            clear: |into| into.$($field).+.clear(),
            push: |into, text| $read(text).map(|value| into.$($field).+.push(value)),
        }
    };
}
