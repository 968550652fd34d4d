//! Prints the bill of materials of the released program as CycloneDX JSON.

use std::process::ExitCode;
use std::{fs, io};

use meshport_tests::repository::{host_triple, metadata, root, tree};
use meshport_tests::sbom::{self, ALL_EDGES, Known, LINKED_EDGES, RELEASED};

fn main() -> ExitCode {
    let bill = fs::read_to_string(root().join("Cargo.lock"))
        .map_err(|error| format!("Cargo.lock: {error}"))
        .and_then(|lock| {
            sbom::bill(&Known {
                metadata: metadata(),
                all: tree(RELEASED, ALL_EDGES),
                linked: tree(RELEASED, LINKED_EDGES),
                lock,
                target: host_triple(),
            })
        });
    let written = bill.and_then(|bill| {
        serde_json::to_writer_pretty(io::stdout().lock(), &bill).map_err(|error| error.to_string())
    });
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            use io::Write as _;
            // Nobody is left to tell when that fails too.
            let _ = writeln!(io::stderr(), "meshport-sbom: {problem}");
            ExitCode::FAILURE
        }
    }
}
