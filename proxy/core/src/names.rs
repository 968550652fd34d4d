//! Display names, and suggestions for a name that no node has.

use meshport_config::ServiceName;

/// Names that are suggested.
const MAX_SUGGESTED: usize = 4;
/// Leading letters that two names must share, unless one contains the other.
const MIN_PREFIX: usize = 2;

/// The display name of a service's local instance.
pub fn local_instance(service: &ServiceName) -> String {
    match service.as_str() {
        ServiceName::KUBE_APISERVER => "the local apiserver".into(),
        _ => format!("the local instance of {service}"),
    }
}

/// The error for a name that no node has.
pub fn unknown<'a>(target: &str, names: impl Iterator<Item = &'a str>) -> String {
    unknown_of("node", target, names, "peers")
}

/// The error for a name that no node has, and another sentence.
pub fn unknown_then<'a>(target: &str, names: impl Iterator<Item = &'a str>, next: &str) -> String {
    let unknown = unknown(target, names);
    let stop = if unknown.ends_with('?') { "" } else { "." };
    format!("{unknown}{stop} {next}")
}

/// The error for a name that nothing of a kind has; `verb` is the command that lists them.
pub fn unknown_of<'a>(
    kind: &str,
    target: &str,
    names: impl Iterator<Item = &'a str>,
    verb: &str,
) -> String {
    let hint = suggestion(target, names);
    let hint = hint.unwrap_or_else(|| format!("`meshport {verb}` lists them"));
    format!("no {kind} is named {target}; {hint}")
}

/// The question for similar names, if there are any.
pub fn suggestion<'a>(target: &str, names: impl Iterator<Item = &'a str>) -> Option<String> {
    let meant = similar(target, names);
    (!meant.is_empty()).then(|| format!("did you mean {}?", meant.join(", ")))
}

/// The names that are most like `target`, best first.
fn similar<'a>(target: &str, names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let likeness = |name: &'a str| {
        let shared = name.bytes().zip(target.bytes()).take_while(|(a, b)| a == b).count();
        let has = !target.is_empty() && (name.contains(target) || target.contains(name));
        (has || shared >= MIN_PREFIX).then_some((!has, target.len() - shared, name))
    };
    let mut found: Vec<_> = names.filter_map(likeness).collect();
    found.sort_unstable();
    found.dedup();
    found.into_iter().take(MAX_SUGGESTED).map(|(_, _, name)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 6] = ["cp-2", "worker-7", "cp-1", "fra-cp-9", "worker-71", "x"];

    #[test]
    fn names_that_have_it_come_first() {
        assert_eq!(similar("cp", NAMES.into_iter()), ["cp-1", "cp-2", "fra-cp-9"]);
        assert_eq!(similar("cp-3", NAMES.into_iter()), ["cp-1", "cp-2"]);
        assert_eq!(similar("worker-7x", NAMES.into_iter())[0], "worker-7");
        assert_eq!(similar("zebra", NAMES.into_iter()), Vec::<&str>::new());
        assert_eq!(similar("", NAMES.into_iter()), Vec::<&str>::new());
    }

    #[test]
    fn the_error_names_them_or_the_verb_that_does() {
        let text = unknown("cp", NAMES.into_iter());
        assert_eq!(text, "no node is named cp; did you mean cp-1, cp-2, fra-cp-9?");
        assert!(unknown("zebra", NAMES.into_iter()).ends_with("`meshport peers` lists them"));
        assert!(unknown_then("cp", NAMES.into_iter(), "Look.").ends_with("fra-cp-9? Look."));
        assert!(unknown_then("zebra", NAMES.into_iter(), "Look.").ends_with(" them. Look."));
    }

    #[test]
    fn an_instance_is_called_what_it_is() {
        let words = |name: &str| local_instance(&name.parse().expect("a service"));
        assert_eq!(words("kube-apiserver"), "the local apiserver");
        assert_eq!(words("registry"), "the local instance of registry");
    }
}
