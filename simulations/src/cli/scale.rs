//! `meshport-sim scale`: runs a scenario at several sizes, fits laws of the cost of a node, and
//! extrapolates them to a larger mesh.
//!
//! Each size runs in its own process, `run --json --costs`, so that one run's memory is released
//! before the next starts.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use meshport_core::node::MAX_ORIGINS;
use meshport_discovery::{MAX_MEMBERS, MAX_PATHS};
use serde_json::{Value, json};
use toml::Table;

use super::run::{document, name, parse};
use super::{Choice, read, say, write};
use crate::Error;
use crate::scenario::{MAX_NODES, Scenario};
use fit::{Law, Point, Size, error, figures};

mod fit;

/// Minimum number of sizes for a law: two to fit it and one to check it.
const FEWEST_SIZES: usize = 3;
/// Runs in one row of a table.
const COLUMNS: usize = 8;
/// The measures: name, and place in a result.
const MEASURES: [(&str, &str); 14] = [
    ("any node: discovery, bytes/s", "/bytes_per_node_per_s"),
    ("any node: tunnels, bytes/s", "/tunnel_bytes_per_node_per_s"),
    ("origin: datagrams sent /s", "/roles/origin/sent_packets_per_s"),
    ("origin: datagrams received /s", "/roles/origin/received_packets_per_s"),
    ("origin: bytes sent /s", "/roles/origin/sent_bytes_per_s"),
    ("origin: bytes received /s", "/roles/origin/received_bytes_per_s"),
    ("origin: processor, us/s", "/roles/origin/cpu_us_per_s"),
    ("origin: state, bytes", "/roles/origin/state_bytes"),
    ("other: datagrams sent /s", "/roles/other/sent_packets_per_s"),
    ("other: datagrams received /s", "/roles/other/received_packets_per_s"),
    ("other: bytes sent /s", "/roles/other/sent_bytes_per_s"),
    ("other: bytes received /s", "/roles/other/received_bytes_per_s"),
    ("other: processor, us/s", "/roles/other/cpu_us_per_s"),
    ("other: state, bytes", "/roles/other/state_bytes"),
];

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    choice: Choice,
    /// The sizes, in nodes; each site keeps its share. The largest is used only to check the laws.
    #[arg(long, value_delimiter = ',', required = true, value_name = "N,N,N")]
    sizes: Vec<usize>,
    /// Numbers of origins for each size, spread over the sites in turn; the largest size uses only
    /// the first [default: those of the scenario].
    #[arg(long, value_delimiter = ',', value_name = "O,O")]
    origins: Vec<usize>,
    /// Seed of all random choices.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// A size to extrapolate to.
    #[arg(long, value_name = "N")]
    carry: Option<usize>,
    /// Number of sites at that size, each with the scenario's average number of origins per site
    /// [default: as in the scenario].
    #[arg(long, value_name = "S", requires = "carry")]
    sites: Option<usize>,
    /// A result of `run --json` of the same scenario, as a further check of the laws. May be
    /// repeated.
    #[arg(long, value_name = "FILE")]
    check: Vec<PathBuf>,
    /// Write the runs, the laws and their predictions as one JSON object.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

struct Played {
    size: Size,
    result: Value,
}

/// A law, its accuracy, and its text.
struct Found {
    name: &'static str,
    law: Law,
    /// For the largest run and those to check with: size, prediction and measurement.
    checks: Vec<(Size, f64, f64)>,
    carried: Option<f64>,
}

pub(super) fn main(arguments: &Arguments) -> Result<ExitCode, Error> {
    let base = document(&arguments.choice)?;
    let scenario = parse(&base, &arguments.choice)?;
    let meshes = meshes(arguments, &scenario)?;
    let mut played = Vec::new();
    for (nodes, origins) in meshes {
        let size = Size { nodes: number(nodes), origins: number(origins) };
        let _ = writeln!(io::stderr(), "{nodes} nodes with {origins} origins ...");
        let result = play(arguments, &sets(&base, nodes, origins)?)?;
        played.push(Played { size, result });
    }
    let mut checks = Vec::new();
    for path in &arguments.check {
        checks.push(checked(path, &scenario)?);
    }
    let target = arguments.carry.map(|nodes| Size {
        nodes: number(nodes),
        origins: number(arguments.sites.unwrap_or(scenario.sites.len())) * per_site(&scenario),
    });
    let laws = laws(&played, &checks, target);
    say(table(&played).trim_end())?;
    say(&told(&laws, target, &played))?;
    if let Some(path) = &arguments.json {
        let all = object(arguments, &played, &laws, target);
        write(path, &all.to_string())?;
    }
    let violated = played.iter().any(|run| violations(&run.result) > 0);
    Ok(ExitCode::from(u8::from(violated)))
}

/// Nodes and origins of each run, the largest last and with the first number of origins only.
fn meshes(arguments: &Arguments, scenario: &Scenario) -> Result<Vec<(usize, usize)>, Error> {
    let wrong = |why: String| Err(Error::Scenario(why));
    let mut sizes = arguments.sizes.clone();
    sizes.sort_unstable();
    sizes.dedup();
    if sizes.len() < FEWEST_SIZES {
        return wrong(format!("--sizes: {} sizes; at least {FEWEST_SIZES}", sizes.len()));
    }
    let own = vec![scenario.sites.iter().map(|site| site.origins).sum()];
    let origins = if arguments.origins.is_empty() { &own } else { &arguments.origins };
    let (first, most) = (origins[0], origins.iter().copied().max().unwrap_or(0));
    let fewest = most.max(scenario.sites.len());
    if sizes[0] < fewest {
        let sites = scenario.sites.len();
        return wrong(format!(
            "--sizes: {} nodes are too few for {sites} sites and {most} origins",
            sizes[0]
        ));
    }
    let largest = sizes.pop().expect("some sizes");
    let all = sizes.iter().flat_map(|nodes| origins.iter().map(|origins| (*nodes, *origins)));
    Ok(all.chain([(largest, first)]).collect())
}

/// The settings for this many nodes and origins: nodes by each site's share of them, origins in
/// turn.
fn sets(base: &Table, nodes: usize, origins: usize) -> Result<Vec<String>, Error> {
    let scenario = Scenario::parse(&base.to_string())?;
    let count = scenario.sites.len();
    let own: usize = scenario.sites.iter().map(|site| site.origins).sum();
    let before: usize = scenario.sites.iter().map(|site| site.nodes).sum();
    let mut all = Vec::new();
    let (mut given, mut share) = (0, 0);
    for (at, site) in scenario.sites.iter().enumerate() {
        // Each boundary between sites is rounded separately, so that the sum is exact.
        share += site.nodes;
        let upto = (share * nodes).div_euclid(before.max(1));
        let hosts = match origins == own {
            true => site.origins,
            false => origins / count + usize::from(at < origins % count),
        };
        let here = upto - given;
        given = upto;
        if here < hosts.max(1) {
            let name = &site.name;
            return Err(Error::Scenario(format!(
                "--sizes: of {nodes} nodes {name} gets {here}, fewer than its {hosts} origins"
            )));
        }
        all.push(format!("scenario.site.{at}.nodes={here}"));
        all.push(format!("scenario.site.{at}.origins={hosts}"));
    }
    Ok(all)
}

/// A run in a separate process.
fn play(arguments: &Arguments, sets: &[String]) -> Result<Value, Error> {
    let failed = |error: io::Error| Error::Machine(format!("run meshport-sim: {error}"));
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    command.arg("run").arg(&arguments.choice.file).args(["--costs", "--json", "-"]);
    command.arg("--seed").arg(arguments.seed.to_string());
    for set in arguments.choice.sets.iter().chain(sets) {
        command.arg("--set").arg(set);
    }
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output().map_err(failed)?;
    serde_json::from_slice(&output.stdout)
        .map_err(|error| Error::Machine(format!("a run gave no result ({error}): {command:?}")))
}

/// A result to check with: its own size, with the average number of origins per site.
fn checked(path: &std::path::Path, scenario: &Scenario) -> Result<Played, Error> {
    let wrong = |reason: String| Error::Result { path: path.display().to_string(), reason };
    let result: Value =
        serde_json::from_str(&read(path)?).map_err(|error| wrong(error.to_string()))?;
    let of = |key| result[key].as_f64().ok_or_else(|| wrong(format!("there is no \"{key}\"")));
    let size = Size { nodes: of("nodes")?, origins: of("sites")? * per_site(scenario) };
    Ok(Played { size, result })
}

/// The law of each measure, fitted to all runs but the last.
fn laws(played: &[Played], checks: &[Played], target: Option<Size>) -> Vec<Found> {
    let Some((largest, fitted)) = played.split_last() else { return Vec::new() };
    let mut found = Vec::new();
    for (name, pointer) in MEASURES {
        let seen = |run: &Played| Some((run.size, run.result.pointer(pointer)?.as_f64()?));
        let points: Vec<Point> = fitted.iter().filter_map(seen).collect();
        let Some(law) = fit::simplest(&points) else { continue };
        let checks = [largest].into_iter().chain(checks).filter_map(seen);
        let checks = checks.map(|(size, seen)| (size, law.at(size), seen)).collect();
        found.push(Found { name, checks, carried: target.map(|size| law.at(size)), law });
    }
    found
}

fn table(played: &[Played]) -> String {
    let mut text = String::new();
    for block in played.chunks(COLUMNS) {
        let mut line = |name: &str, of: &dyn Fn(&Played) -> String| {
            let cells: String = block.iter().map(|run| format!(" {:>10}", of(run))).collect();
            let _ = writeln!(text, "{name:<32}{cells}");
        };
        line("nodes", &|run| run.size.nodes.to_string());
        line("origins", &|run| run.size.origins.to_string());
        for (name, pointer) in MEASURES {
            line(name, &|run| {
                let value = run.result.pointer(pointer).and_then(Value::as_f64);
                value.map_or("-".into(), figures)
            });
        }
        line("the simulator's processor, s", &|run| value(run, "cpu_s", 1.0));
        line("the simulator's memory, MiB", &|run| {
            value(run, "memory_bytes_per_node", run.size.nodes / f64::from(1 << 20))
        });
        line("rules", &|run| match violations(&run.result) {
            0 => "hold".into(),
            _ => "VIOLATED".into(),
        });
        text.push('\n');
    }
    text
}

fn value(run: &Played, key: &str, by: f64) -> String {
    run.result[key].as_f64().map_or("-".into(), |value| figures(value * by))
}

/// The laws in words.
fn told(laws: &[Found], target: Option<Size>, played: &[Played]) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "{:<32} {:<44} {:>6}", "", "law (n nodes, o origins)", "error");
    for Found { name, law, checks, carried } in laws {
        let off = law.error * 100.0;
        let _ = writeln!(text, "{name:<32} {:<44} {off:>4.1} %", law.to_string());
        for (size, said, seen) in checks {
            let (nodes, off) = (size.nodes, error(*said, *seen) * 100.0);
            let (said, seen) = (figures(*said), figures(*seen));
            let _ = writeln!(
                text,
                "{:<32} at {nodes}: {said} predicted, {seen} measured, {off:.1} % off",
                ""
            );
        }
        if let (Some(carried), Some(size)) = (carried, target) {
            let _ = writeln!(text, "{:<32} at {}: {}", "", size.nodes, figures(*carried));
        }
    }
    let good = fit::GOOD * 100.0;
    let _ = write!(
        text,
        "\nEach law is the one with the fewest terms within {good:.0} % of all fitted runs, which \
         are all except the largest; if there is none, the one that predicts each run best when \
         fitted to the others."
    );
    if let Some(size) = target {
        let fixed = played.iter().all(|run| (run.size.origins - played[0].size.origins) < 0.5);
        if fixed && (size.origins - played[0].size.origins).abs() > 0.5 {
            let (o, to) = (played[0].size.origins, size.origins);
            let _ = write!(
                text,
                "\nAll runs had {o} origins, so the laws cannot predict {to}: run several numbers \
                 with --origins."
            );
        }
        let _ = write!(text, "\n\n{}", walls(size));
    }
    text
}

/// The tables that bound a mesh: their names, their capacity, and the required size.
fn limits(size: Size) -> Vec<(&'static str, usize, f64, &'static str)> {
    let mut all = vec![
        ("MAX_MEMBERS", MAX_MEMBERS, size.nodes, "nodes in a directory"),
        ("MAX_NODES", MAX_NODES, size.nodes, "nodes in a run of the simulator, not of a mesh"),
        ("MAX_ORIGINS", MAX_ORIGINS, size.origins, "origins of a service in a route"),
        ("MAX_PATHS", MAX_PATHS, size.origins, "origins to which a path is measured"),
    ];
    all.sort_by(|a, b| (b.2 / number(b.1)).total_cmp(&(a.2 / number(a.1))));
    all
}

fn walls(size: Size) -> String {
    let mut text = format!("Tables before {} nodes and {} origins:\n", size.nodes, size.origins);
    for (name, holds, wanted, what) in limits(size) {
        let verdict = if wanted > number(holds) { "too small" } else { "holds" };
        let _ = writeln!(text, "  {name:<12} {holds:>6} {what}; {wanted} wanted: {verdict}");
    }
    text.trim_end().to_owned()
}

fn object(arguments: &Arguments, played: &[Played], laws: &[Found], to: Option<Size>) -> Value {
    let size = |size: &Size| json!({ "nodes": size.nodes, "origins": size.origins });
    let law = |found: &Found| {
        let checks = found.checks.iter().map(|(of, said, seen)| {
            json!({ "size": size(of), "foretold": said, "measured": seen,
                    "error": error(*said, *seen) })
        });
        json!({
            "measure": found.name,
            "law": found.law.to_string(),
            "terms": found.law.terms.iter().map(|term| term.words().trim()).collect::<Vec<_>>(),
            "factors": found.law.factors,
            "error": found.law.error,
            "checks": checks.collect::<Vec<_>>(),
            "carried": found.carried,
        })
    };
    let limit = |(name, holds, wanted, what): (&str, usize, f64, &str)| {
        json!({ "name": name, "holds": holds, "wanted": wanted, "what": what,
                "too_small": wanted > number(holds) })
    };
    json!({
        "scenario": name(&arguments.choice.file),
        "seed": arguments.seed,
        "runs": played.iter().map(|run| {
            json!({ "size": size(&run.size), "result": run.result })
        }).collect::<Vec<_>>(),
        "laws": laws.iter().map(law).collect::<Vec<_>>(),
        "carried_to": to.as_ref().map(size),
        "limits": to.map(|to| limits(to).into_iter().map(limit).collect::<Vec<_>>()),
    })
}

fn violations(result: &Value) -> usize {
    result["violations"].as_array().map_or(0, Vec::len)
}

/// Origins of a site of the scenario, on average.
fn per_site(scenario: &Scenario) -> f64 {
    let origins: usize = scenario.sites.iter().map(|site| site.origins).sum();
    number(origins) / number(scenario.sites.len().max(1))
}

fn number(count: usize) -> f64 {
    crate::measure::share(count as u64, 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sites_keep_their_share_and_origins_are_dealt_out() {
        let text = "description = \"x\"\nduration-s = 1\n\
                    site = [{ name = \"a\", nodes = 6, origins = 1 }, { name = \"b\", nodes = 3 }]";
        let base: Table = text.parse().expect("TOML");
        let of = |nodes, origins| sets(&base, nodes, origins).expect("room").join(" ");
        let same = "scenario.site.0.nodes=20 scenario.site.0.origins=1 \
                    scenario.site.1.nodes=10 scenario.site.1.origins=0";
        assert_eq!(of(30, 1), same);
        assert!(of(31, 5).contains("site.0.nodes=20") && of(31, 5).contains("site.1.nodes=11"));
        assert!(of(31, 5).contains("site.0.origins=3") && of(31, 5).contains("site.1.origins=2"));
        let told = sets(&base, 9, 8).expect_err("no room").to_string();
        assert!(told.contains("of 9 nodes b gets 3, fewer than its 4 origins"), "{told}");
    }

    #[test]
    fn the_tables_that_are_too_small_come_first() {
        let all = limits(Size { nodes: 100_000.0, origins: 200.0 });
        let too_small = all.iter().filter(|(_, holds, wanted, _)| *wanted > number(*holds));
        assert_eq!(too_small.map(|it| it.0).collect::<Vec<_>>(), ["MAX_NODES", "MAX_MEMBERS"]);
        assert!(walls(Size { nodes: 100.0, origins: 600.0 }).contains("512 origins of a service"));
    }
}
