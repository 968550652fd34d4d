//! Prints the bill of materials of the released program as CycloneDX JSON.

fn main() -> Result<(), serde_json::Error> {
    serde_json::to_writer_pretty(std::io::stdout().lock(), &meshport_tests::sbom::bill())
}
