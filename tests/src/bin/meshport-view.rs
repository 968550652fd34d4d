//! Prints the view of a made-up mesh as `/view` returns it, for the page's tests:
//! `meshport-view NODES`.

use std::process::ExitCode;

use meshport_tests::page;

#[expect(clippy::print_stdout, clippy::print_stderr, reason = "a command-line tool")]
fn main() -> ExitCode {
    let asked = std::env::args().nth(1).and_then(|text| text.parse().ok());
    let Some(nodes) = asked.filter(|nodes| (3..=1000).contains(nodes)) else {
        eprintln!("meshport-view: say how many nodes, 3 to 1000");
        return ExitCode::FAILURE;
    };
    match serde_json::to_string(&page::view(nodes)) {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("meshport-view: {error}");
            ExitCode::FAILURE
        }
    }
}
