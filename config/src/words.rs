//! Enums whose values have a word each.

/// Writes an enum with the word of each value: `ALL` has every value in order, `word` and `Display`
/// give the word.
#[macro_export]
macro_rules! words {
    (
        $(#[$about:meta])*
        $vis:vis enum $name:ident {
            $($(#[$doc:meta])* $variant:ident $(= $number:literal)? => $word:literal,)+
        }
    ) => {
        $(#[$about])*
        $vis enum $name {
            $($(#[$doc])* $variant $(= $number)?,)+
        }

        impl $name {
            /// Every value, in order.
            $vis const ALL: [Self; [$($word),+].len()] = [$(Self::$variant),+];

            /// Its word, in labels, answers and logs.
            $vis fn word(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.word())
            }
        }
    };
}

#[cfg(test)]
mod tests {
    words! {
        /// Fruit.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        enum Fruit {
            /// Of any colour.
            Apple = 1 => "apple",
            PricklyPear = 7 => "prickly pear",
        }
    }

    #[test]
    fn each_value_has_its_number_and_its_word() {
        assert_eq!(Fruit::ALL, [Fruit::Apple, Fruit::PricklyPear]);
        assert_eq!(Fruit::ALL.map(|it| it as u8), [1, 7]);
        assert_eq!(Fruit::ALL.map(Fruit::word), ["apple", "prickly pear"]);
        assert_eq!(format!("{:7}|{}", Fruit::Apple, Fruit::PricklyPear), "apple  |prickly pear");
    }
}
