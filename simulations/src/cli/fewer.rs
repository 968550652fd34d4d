//! `--nodes-per-site M`: a scenario made small enough for a level that cannot run it whole.

use toml::{Table, Value};

/// Leaves each site at most so many nodes (but at least its origins) and as many that join later.
/// Returns what to tell the user.
pub(super) fn apply(document: &mut Table, most: usize) -> String {
    let most = i64::try_from(most).unwrap_or(i64::MAX).max(1);
    let (mut before, mut after) = (0, 0);
    let sites = document.get_mut("site").and_then(Value::as_array_mut);
    for site in sites.into_iter().flatten().filter_map(Value::as_table_mut) {
        let number = |site: &Table, key| site.get(key).and_then(Value::as_integer).unwrap_or(0);
        let (nodes, joining) = (number(site, "nodes"), number(site, "joining"));
        let kept = (nodes.min(most.max(number(site, "origins"))), joining.min(most));
        before += nodes + joining;
        after += kept.0 + kept.1;
        site.insert("nodes".into(), Value::from(kept.0));
        if joining > 0 {
            site.insert("joining".into(), Value::from(kept.1));
        }
    }
    format!("{after} of the scenario's {before} nodes take part, at most {most} of each site")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_stay_and_the_rest_is_cut() {
        let text = "[[site]]\nnodes = 20\norigins = 3\n[[site]]\nnodes = 1\njoining = 9\n";
        let mut document: Table = text.parse().expect("TOML");
        let told = apply(&mut document, 2);
        assert_eq!(told, "6 of the scenario's 30 nodes take part, at most 2 of each site");
        let sites = document["site"].as_array().expect("sites");
        assert_eq!(sites[0]["nodes"].as_integer(), Some(3));
        assert_eq!(sites[1]["joining"].as_integer(), Some(2));
    }
}
