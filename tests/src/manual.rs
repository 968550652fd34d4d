//! The pages for operators, and the code blocks in them.

use std::fs;

use crate::repository::root;

/// A code block of a page.
#[derive(Clone, Debug)]
pub struct Block {
    /// The last heading before it.
    pub title: String,
    /// Its language, as the page states it.
    pub language: String,
    /// Its lines.
    pub text: String,
}

/// The code blocks of a page in `docs`, in order.
pub fn blocks(page: &str) -> Vec<Block> {
    let text = fs::read_to_string(root().join("docs").join(page));
    in_text(&text.unwrap_or_else(|error| panic!("docs/{page}: {error}")))
}

/// The text of the code blocks of one language under a heading of a page.
pub fn under(page: &str, title: &str, language: &str) -> Vec<String> {
    let wanted = |block: &Block| block.title == title && block.language == language;
    let found: Vec<_> = blocks(page).into_iter().filter(wanted).map(|block| block.text).collect();
    assert!(!found.is_empty(), "docs/{page} has no {language} under {title}");
    found
}

/// The command lines after the comment line `# on COMMENT`, up to the next comment that names a
/// place.
pub fn on(place: &str, commands: &str) -> String {
    let is_place = |line: &&str| line.starts_with("# on ");
    let mut lines = commands.lines().skip_while(|line| *line != format!("# on {place}"));
    assert!(lines.next().is_some(), "nothing is done on {place}:\n{commands}");
    lines.take_while(|line| !is_place(line)).map(|line| format!("{line}\n")).collect()
}

fn in_text(text: &str) -> Vec<Block> {
    let (mut found, mut title) = (Vec::new(), String::new());
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(language) = line.trim_start().strip_prefix("```") {
            let indent = line.len() - line.trim_start().len();
            let inside = lines.by_ref().take_while(|line| line.trim_start() != "```");
            let text = inside.map(|line| format!("{}\n", line.get(indent..).unwrap_or_default()));
            let (title, language) = (title.clone(), language.to_owned());
            found.push(Block { title, language, text: text.collect() });
        } else if line.starts_with('#') {
            line.trim_start_matches('#').trim().clone_into(&mut title);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_their_title_and_language() {
        let page =
            "# One\n```sh\n# on a\nx\n# on b\ny\n```\n## Two\n* z\n  ```toml\n  k = 1\n\n  ```\n";
        let [first, second] = &in_text(page)[..] else { panic!("two blocks") };
        assert_eq!((first.title.as_str(), first.language.as_str()), ("One", "sh"));
        assert_eq!((on("a", &first.text), on("b", &first.text)), ("x\n".into(), "y\n".into()));
        assert_eq!((second.title.as_str(), second.language.as_str()), ("Two", "toml"));
        assert_eq!(second.text, "k = 1\n\n");
    }
}
