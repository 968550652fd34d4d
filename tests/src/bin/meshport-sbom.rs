//! Prints the bill of materials of a released program as CycloneDX JSON: `meshport-sbom [PACKAGE]`,
//! without a package that of `meshport`.

fn main() -> Result<(), serde_json::Error> {
    let package = std::env::args().nth(1).unwrap_or_else(|| "meshport".to_owned());
    serde_json::to_writer_pretty(std::io::stdout().lock(), &meshport_tests::sbom::bill(&package))
}
