//! Edits a kubeconfig in place: only the lines of one entry change.
//!
//! Comments, order and unknown keys stay. After each edit the new text is parsed and must mean
//! exactly what was intended; a file whose layout does not allow line editing is refused and left
//! alone. JSON stays JSON.

use serde_json::{Map, Value};

use super::yaml::{self, YamlError};

/// Why a file is not a kubeconfig, or cannot be changed.
#[derive(Debug, thiserror::Error)]
pub(super) enum DocumentError {
    #[error(transparent)]
    NotYaml(#[from] YamlError),
    #[error("it is not a mapping of keys to values")]
    NotAMapping,
    #[error("its layout is not the one that kubectl writes")]
    Layout,
}

/// The text of a file and its content.
#[derive(Debug, Clone)]
pub(super) struct Document {
    text: String,
    value: Map<String, Value>,
}

impl Document {
    /// Reads a text.
    ///
    /// # Errors
    /// [`DocumentError::NotYaml`], [`DocumentError::NotAMapping`].
    pub(super) fn parse(text: &str) -> Result<Self, DocumentError> {
        match yaml::parse(text)? {
            Value::Object(value) => Ok(Self { text: text.to_owned(), value }),
            _ => Err(DocumentError::NotAMapping),
        }
    }

    /// A new file without entries.
    pub(super) fn empty() -> Self {
        let entries = [("apiVersion", "v1"), ("kind", "Config")];
        let value = entries.map(|(key, word)| (key.to_owned(), Value::from(word)));
        let value = Map::from_iter(value);
        Self { text: yaml::mapping(&value, 0), value }
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// The entry of a list (`clusters`, `contexts`, `users`) that has this name.
    pub(super) fn entry(&self, list: &str, name: &str) -> Option<&Value> {
        let index = self.position(list, name)?;
        self.items(list).get(index)
    }

    /// The names of a list's entries.
    pub(super) fn names(&self, list: &str) -> Vec<&str> {
        self.items(list).iter().filter_map(|item| item["name"].as_str()).collect()
    }

    /// The value of a top-level key, if it is a non-empty string.
    pub(super) fn word(&self, key: &str) -> Option<&str> {
        self.value.get(key)?.as_str().filter(|text| !text.is_empty())
    }

    /// Replaces the entry with the same name, or appends to the list.
    ///
    /// # Errors
    /// [`DocumentError::Layout`]; nothing is changed then.
    pub(super) fn put(
        &mut self,
        list: &str,
        name: &str,
        entry: &Value,
    ) -> Result<(), DocumentError> {
        let index = self.position(list, name);
        let count = self.items(list).len();
        let mut items = self.items(list).to_vec();
        match index {
            Some(index) if items[index] == *entry => return Ok(()),
            Some(index) => items[index] = entry.clone(),
            None => items.push(entry.clone()),
        }
        let mut value = self.value.clone();
        value.insert(list.to_owned(), items.into());
        let text = with_entry(&self.text, list, index, count, entry);
        self.accept(text, value)
    }

    /// Sets a top-level key to a string.
    pub(super) fn set(&mut self, key: &str, word: &str) -> Result<(), DocumentError> {
        if self.word(key) == Some(word) {
            return Ok(());
        }
        let mut value = self.value.clone();
        value.insert(key.to_owned(), word.into());
        let line = format!("{key}: {}\n", yaml::scalar(word));
        let mut lines = lines(&self.text);
        match lines.iter().position(|text| is_key(text, key)) {
            Some(at) => lines[at] = &line,
            None => lines.push(&line),
        }
        let text = joined(&lines);
        self.accept(Some(text), value)
    }

    /// Accepts the new text if it parses to what was intended.
    fn accept(
        &mut self,
        text: Option<String>,
        value: Map<String, Value>,
    ) -> Result<(), DocumentError> {
        let says =
            |text: &str| yaml::parse(text).is_ok_and(|read| read.as_object() == Some(&value));
        let is_json = || serde_json::from_str::<Value>(&self.text).is_ok();
        let text = match text.filter(|text| says(text)) {
            Some(text) => text,
            None if is_json() => format!("{:#}\n", Value::Object(value.clone())),
            None => return Err(DocumentError::Layout),
        };
        *self = Self { text, value };
        Ok(())
    }

    fn items(&self, list: &str) -> &[Value] {
        self.value.get(list).and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }

    fn position(&self, list: &str, name: &str) -> Option<usize> {
        self.items(list).iter().position(|item| item["name"] == name)
    }
}

/// The text with one more or one changed entry; `None` if the list is not written as lines.
fn with_entry(
    text: &str,
    list: &str,
    index: Option<usize>,
    count: usize,
    entry: &Value,
) -> Option<String> {
    let mut lines = lines(text);
    let alone = format!("{list}:\n{}", yaml::item(entry, 0));
    let Some(key) = lines.iter().position(|line| is_key(line, list)) else {
        lines.push(&alone);
        return Some(joined(&lines));
    };
    if count == 0 {
        lines[key] = &alone;
        return Some(joined(&lines));
    }
    let end = (key + 1..lines.len()).find(|at| ends_a_list(lines[*at])).unwrap_or(lines.len());
    let end = before_remarks(&lines, key + 1, end);
    let first = *lines.get(key + 1..end)?.iter().find(|line| !is_remark(line))?;
    let indent = first.len() - first.trim_start_matches(' ').len();
    let starts: Vec<usize> = (key + 1..end).filter(|at| is_item(lines[*at], indent)).collect();
    if starts.len() != count {
        return None;
    }
    let (from, to) = match index {
        None => (end, end),
        Some(index) => {
            let next = starts.get(index + 1).copied().unwrap_or(end);
            (starts[index], before_remarks(&lines, starts[index], next))
        }
    };
    let added = yaml::item(entry, indent);
    lines.splice(from..to, [added.as_str()]);
    Some(joined(&lines))
}

/// Lines with their line ends.
fn lines(text: &str) -> Vec<&str> {
    text.split_inclusive('\n').collect()
}

fn joined(lines: &[&str]) -> String {
    let mut text = String::new();
    for line in lines {
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(line);
    }
    text
}

fn is_key(line: &str, key: &str) -> bool {
    line.strip_prefix(key).is_some_and(|rest| rest.starts_with(':'))
}

fn is_remark(line: &str) -> bool {
    let line = line.trim();
    line.is_empty() || line.starts_with('#')
}

fn is_item(line: &str, indent: usize) -> bool {
    let text = line.trim_start_matches(' ');
    line.len() - text.len() == indent && text.starts_with('-') && !text.starts_with("--")
}

fn ends_a_list(line: &str) -> bool {
    !is_remark(line) && !line.starts_with([' ', '-']) || line.starts_with("---")
}

/// The end of an entry's content: blank lines and comments before the next entry belong to that.
fn before_remarks(lines: &[&str], from: usize, mut to: usize) -> usize {
    while to > from && is_remark(lines[to - 1]) {
        to -= 1;
    }
    to
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const BY_KUBECTL: &str = "\
apiVersion: v1
clusters:
- cluster:
    server: https://a:6443
  name: a # the first
- cluster:
    server: https://b:6443
  name: b

# who uses what
contexts: []
current-context: x
extra:
  kept: {odd: [1, 2]}
";

    fn document(text: &str) -> Document {
        Document::parse(text).expect("it is a kubeconfig")
    }

    fn named(name: &str, server: &str) -> Value {
        json!({"cluster": {"server": server}, "name": name})
    }

    #[test]
    fn an_entry_is_added_and_all_else_stays() {
        let mut it = document(BY_KUBECTL);
        it.put("clusters", "c", &named("c", "https://c:1")).expect("added");
        let longer = "  name: b\n- cluster:\n    server: https://c:1\n  name: c\n";
        assert_eq!(it.text(), BY_KUBECTL.replace("  name: b\n", longer));
        it.put("contexts", "c", &json!({"name": "c"})).expect("added");
        assert!(it.text().contains("\n# who uses what\ncontexts:\n- name: c\ncurrent"));
        it.set("current-context", "c").expect("set");
        assert!(it.text().contains("\ncurrent-context: c\nextra:"), "{}", it.text());
    }

    #[test]
    fn an_entry_is_replaced_where_it_stands() {
        let mut it = document(BY_KUBECTL);
        it.put("clusters", "a", &named("a", "https://z:1")).expect("replaced");
        let former = "    server: https://a:6443\n  name: a # the first";
        let expected = BY_KUBECTL.replace(former, "    server: https://z:1\n  name: a");
        assert_eq!(it.text(), expected);
        it.put("clusters", "a", &named("a", "https://z:1")).expect("replaced");
        assert_eq!(it.text(), expected, "the second time changes nothing");
    }

    #[test]
    fn other_layouts_are_served_or_left_alone() {
        let indented = "clusters:\n  # one\n  - name: a\n    cluster: {}\n\nkind: Config\n";
        let mut it = document(indented);
        it.put("clusters", "b", &named("b", "https://b:1")).expect("added");
        assert!(it.text().contains("    cluster: {}\n  - cluster:\n"), "{}", it.text());

        let unfinished = "kind: Config\nclusters:";
        let mut it = document(unfinished);
        it.put("clusters", "b", &named("b", "https://b:1")).expect("added");
        it.set("current-context", "b").expect("set");
        assert_eq!(it.word("current-context"), Some("b"));

        let flow = "clusters: [{name: a}]\n";
        let mut it = document(flow);
        let error = it.put("clusters", "b", &named("b", "https://b:1")).expect_err("refused");
        assert!(matches!(error, DocumentError::Layout), "{error}");
        assert_eq!(it.text(), flow);

        let json = "{\"kind\": \"Config\", \"clusters\": [{\"name\": \"a\"}]}";
        let mut it = document(json);
        it.put("clusters", "b", &named("b", "https://b:1")).expect("added");
        let value: Value = serde_json::from_str(it.text()).expect("JSON still");
        assert_eq!(value["clusters"][1]["name"], "b");
    }

    #[test]
    fn text_that_looks_like_a_list_is_not_taken_for_one() {
        let tricky = "note: |\n  clusters:\n  - name: a\nclusters:\n- name: a\n  text: |\n    \
                      - name: b\n";
        let mut it = document(tricky);
        it.put("clusters", "b", &named("b", "https://b:1")).expect("added");
        assert!(it.text().starts_with(tricky), "{}", it.text());
        // A value whose lines look like items: the count does not match, so the file is refused.
        let wrong = "clusters:\n- name: \"a\n- b\"\n";
        if let Ok(mut it) = Document::parse(wrong) {
            it.put("clusters", "b", &named("b", "x")).expect_err("refused");
        }
    }

    #[test]
    fn what_is_no_kubeconfig_is_refused() {
        for text in ["- a\n", "hello", "a: [", "a: 1\n---\nb: 2\n"] {
            assert!(Document::parse(text).is_err(), "{text:?}");
        }
        assert!(Document::parse("").is_ok());
    }
}
