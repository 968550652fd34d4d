//! Just enough of Rust's grammar to ask what a file names: comments and literals blanked, test
//! modules left out, `use` trees spread into full paths.
//!
//! Lines keep their numbers through every step, so that a finding can be shown as `file:line`.
//! This is a reader of our own formatted source, not a parser: macros are taken as plain text.

/// A path as the source names it, for example `std::time::Instant::now`, and the line it stands on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedPath {
    /// Line, counted from 1.
    pub line: usize,
    /// The segments, without generic arguments.
    pub segments: Vec<String>,
}

impl NamedPath {
    /// Whether `wanted`, written with `::`, stands in this path as neighbouring segments.
    pub fn names(&self, wanted: &str) -> bool {
        let wanted: Vec<&str> = wanted.split("::").collect();
        self.segments.windows(wanted.len()).any(|part| part == wanted)
    }
}

/// The source with comments, strings and character literals replaced by spaces.
pub fn code_only(source: &str) -> String {
    let text: Vec<char> = source.chars().collect();
    let mut out: Vec<char> = Vec::with_capacity(text.len());
    while out.len() < text.len() {
        let at = out.len();
        match blank_length(&text, at) {
            0 => out.push(text[at]),
            length => {
                let blanked = text[at..at + length].iter();
                out.extend(blanked.map(|c| if *c == '\n' { '\n' } else { ' ' }));
            }
        }
    }
    out.into_iter().collect()
}

/// How many characters from `at` belong to a comment or a literal; 0 when code stands there.
fn blank_length(text: &[char], at: usize) -> usize {
    let previous = at.checked_sub(1).map(|index| text[index]);
    let next = text.get(at + 1).copied();
    match text[at] {
        '/' if next == Some('/') => text[at..].iter().take_while(|c| **c != '\n').count(),
        '/' if next == Some('*') => block_comment_length(&text[at..]),
        '"' => string_length(&text[at..]),
        'r' if !previous.is_some_and(is_word) || previous == Some('b') => raw_length(&text[at..]),
        '\'' => character_length(&text[at..]),
        _ => 0,
    }
}

fn block_comment_length(text: &[char]) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < text.len() {
        match (text[at], text.get(at + 1)) {
            ('/', Some('*')) => (depth, at) = (depth + 1, at + 2),
            ('*', Some('/')) => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    text.len()
}

fn string_length(text: &[char]) -> usize {
    let mut at = 1;
    while at < text.len() {
        match text[at] {
            '\\' => at += 2,
            '"' => return at + 1,
            _ => at += 1,
        }
    }
    text.len()
}

/// `r"..."` and `r#"..."#`; 0 when the `r` begins something else.
fn raw_length(text: &[char]) -> usize {
    let hashes = text[1..].iter().take_while(|c| **c == '#').count();
    if text.get(1 + hashes) != Some(&'"') {
        return 0;
    }
    let body = 2 + hashes;
    let ends_at = |at: usize| {
        text[at] == '"'
            && text[at + 1..].len() >= hashes
            && text[at + 1..at + 1 + hashes].iter().all(|c| *c == '#')
    };
    (body..text.len()).find(|at| ends_at(*at)).map_or(text.len(), |at| at + 1 + hashes)
}

/// `'x'` and `'\n'`; 0 for a lifetime.
fn character_length(text: &[char]) -> usize {
    match (text.get(1), text.get(2)) {
        (Some('\\'), Some(_)) => {
            let end = text.iter().skip(3).position(|c| *c == '\'');
            end.map_or(text.len(), |offset| offset + 4)
        }
        (Some(_), Some('\'')) => 3,
        _ => 0,
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The code (see [`code_only`]) with every `#[cfg(test)]` module or item body blanked.
pub fn without_tests(code: &str) -> String {
    let mut out = code.to_owned();
    let mut from = 0;
    while let Some(found) = out[from..].find("#[cfg(test)]") {
        let start = from + found;
        let end = item_end(&out, start + "#[cfg(test)]".len());
        let blanked: String =
            out[start..end].chars().map(|c| if c == '\n' { '\n' } else { ' ' }).collect();
        let tail = out.split_off(end);
        out.truncate(start);
        out.push_str(&blanked);
        from = out.len();
        out.push_str(&tail);
    }
    out
}

/// Where the item that begins at `from` ends: at its `;`, or after its closing brace.
fn item_end(code: &str, from: usize) -> usize {
    let mut depth = 0_usize;
    for (offset, c) in code[from..].char_indices() {
        match c {
            ';' if depth == 0 => return from + offset + 1,
            '{' => depth += 1,
            '}' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return from + offset + 1;
                }
            }
            _ => {}
        }
    }
    code.len()
}

/// Every path the code (see [`code_only`]) names: `use` trees spread out, and paths in expressions.
pub fn named_paths(code: &str) -> Vec<NamedPath> {
    let tokens = tokens(code);
    let mut paths = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        // `+ use<..>` in a bound names no path.
        let is_bound = tokens.get(at + 1).is_some_and(|next| next.text == "<");
        if tokens[at].text == "use" && !is_bound {
            at = use_tree(&tokens, at + 1, &[], &mut paths);
        } else if tokens[at].is_word() {
            at = plain_path(&tokens, at, &mut paths);
        } else {
            at += 1;
        }
    }
    paths
}

struct Token {
    line: usize,
    text: String,
}

impl Token {
    fn is_word(&self) -> bool {
        self.text.chars().all(is_word)
    }
}

/// Words, `::` and single characters.
fn tokens(code: &str) -> Vec<Token> {
    let mut tokens: Vec<Token> = Vec::new();
    for (index, line) in code.lines().enumerate() {
        let line_number = index + 1;
        let mut rest = line.trim_start();
        while let Some(first) = rest.chars().next() {
            let length = if is_word(first) {
                rest.chars().take_while(|c| is_word(*c)).map(char::len_utf8).sum()
            } else if rest.starts_with("::") {
                2
            } else {
                first.len_utf8()
            };
            tokens.push(Token { line: line_number, text: rest[..length].to_owned() });
            rest = rest[length..].trim_start();
        }
    }
    tokens
}

fn plain_path(tokens: &[Token], start: usize, paths: &mut Vec<NamedPath>) -> usize {
    let mut segments = vec![tokens[start].text.clone()];
    let mut at = start + 1;
    while at + 1 < tokens.len() && tokens[at].text == "::" && tokens[at + 1].is_word() {
        segments.push(tokens[at + 1].text.clone());
        at += 2;
    }
    paths.push(NamedPath { line: tokens[start].line, segments });
    at
}

/// Spreads one `use` tree from `at`; returns where reading goes on.
fn use_tree(
    tokens: &[Token],
    mut at: usize,
    prefix: &[String],
    paths: &mut Vec<NamedPath>,
) -> usize {
    let mut segments = prefix.to_vec();
    let line = tokens.get(at).map_or(0, |token| token.line);
    while at < tokens.len() {
        match tokens[at].text.as_str() {
            "::" => at += 1,
            "{" => return use_group(tokens, at + 1, &segments, paths),
            "as" => at += 2,
            "self" if !segments.is_empty() => at += 1,
            "," | "}" | ";" => break,
            word => {
                segments.push(word.to_owned());
                at += 1;
            }
        }
    }
    paths.push(NamedPath { line, segments });
    at
}

fn use_group(
    tokens: &[Token],
    mut at: usize,
    prefix: &[String],
    paths: &mut Vec<NamedPath>,
) -> usize {
    while at < tokens.len() {
        match tokens[at].text.as_str() {
            "}" => return at + 1,
            "," | ";" => at += 1,
            _ => at = use_tree(tokens, at, prefix, paths),
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths_of(source: &str) -> Vec<String> {
        let paths = named_paths(&code_only(source));
        paths.iter().map(|path| path.segments.join("::")).collect()
    }

    #[test]
    fn comments_and_literals_are_blanked_and_lines_stay() {
        let source = "a // tokio\n/* x\n /* y */ */ b \"q\\\"\\n\" 'c' '\\'' r#\"z\"y\"# &'a str";
        let code = code_only(source);
        assert_eq!(code.lines().count(), source.lines().count());
        let words: Vec<&str> = code.split_whitespace().collect();
        assert_eq!(words, ["a", "b", "&'a", "str"]);
    }

    #[test]
    fn a_lifetime_is_not_a_character() {
        assert_eq!(code_only("fn f<'a>(x: &'a str, y: &'b str)").matches('\'').count(), 3);
    }

    #[test]
    fn use_trees_are_spread() {
        let paths = paths_of("use std::{net::{self, UdpSocket}, time::Instant as Now};\nuse a::*;");
        assert_eq!(paths, ["std::net", "std::net::UdpSocket", "std::time::Instant", "a::*"]);
    }

    #[test]
    fn a_bound_is_no_import() {
        let paths = paths_of("fn f() -> impl Iterator + use<> { g(); h(); }\nuse a::b;");
        assert!(paths.contains(&"a::b".to_owned()) && paths.contains(&"h".to_owned()));
    }

    #[test]
    fn paths_in_expressions_are_found() {
        let paths = named_paths(&code_only("let now =\n  std::time::Instant::now();"));
        let found = paths.iter().find(|path| path.names("Instant::now")).expect("the call is seen");
        assert_eq!(found.line, 2);
        assert!(!found.names("time::now"));
    }

    #[test]
    fn test_modules_are_left_out() {
        let source =
            "fn a() {}\n#[cfg(test)]\nmod tests { use tokio::x; fn b() { {} } }\nfn c() {}";
        let code = without_tests(&code_only(source));
        assert!(!code.contains("tokio") && code.contains("fn a") && code.contains("fn c"));
        let outside = without_tests("#[cfg(test)]\nmod tests;\nfn c() {}");
        assert!(outside.contains("fn c") && !outside.contains("mod tests"));
    }
}
