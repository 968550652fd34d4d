//! `meshport top` on a terminal, ended by a signal.

use std::fs;
use std::process::Command;
use std::time::Duration;

use meshport_tests::process::{Process, meshport, run_ok};
use meshport_tests::wait;
use meshport_tests::world::{NodePlan, World};

const SETTLE: Duration = Duration::from_secs(40);
/// Of a terminal: show the other screen, return to the first one, show the cursor.
const OPENS: &str = "\u{1b}[?1049h";
const CLOSES: &str = "\u{1b}[?1049l";
const SHOWS_CURSOR: &str = "\u{1b}[?25h";
/// Gives the terminal a size, runs the program, and keeps its process id, its exit code and the
/// terminal's modes.
const COMMANDS: &str = "stty rows 24 cols 80; stty -g > before; \
    sh -c 'echo $$ > pid; exec \"$PROGRAM\" top --config \"$CONFIG\"'; \
    echo $? > code; stty -g > after; mv after modes";

#[test]
fn a_signal_ends_it_and_the_terminal_is_as_before() {
    let mut world = World::new();
    world.node(&NodePlan::new("worker", "a"));
    for signal in ["INT", "TERM"] {
        let folder = world.path(signal);
        fs::create_dir(&folder).expect("the world's folder can be written");
        let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_default();
        // It makes a terminal, whose output it keeps in a file.
        let mut script = Command::new("script");
        script.args(["--quiet", "--flush", "--command", COMMANDS, "screen"]);
        script.current_dir(&folder).env("TERM", "xterm").env("PROGRAM", meshport());
        script.env("CONFIG", world.at("worker").config());
        let mut process = Process::start("top", &mut script, &folder.join("log"));
        wait::until("it shows the node", SETTLE, || {
            let screen = read("screen");
            (screen.contains(OPENS) && screen.contains("worker")).then_some(())
        });
        run_ok("kill", &["-s", signal, read("pid").trim()]);
        wait::until("it ends", SETTLE, || (!read("modes").is_empty()).then_some(()));
        assert_eq!(read("code").trim(), "0", "after {signal}: {}", process.output());
        let screen = read("screen");
        let closed = screen.rfind(CLOSES).expect("the first screen is shown again");
        assert!(closed > screen.rfind(OPENS).expect("seen above"), "after {signal}");
        assert!(screen[closed..].contains(SHOWS_CURSOR), "after {signal}: {screen:?}");
        assert_eq!(read("modes"), read("before"), "after {signal}");
        assert!(process.ended(SETTLE).success());
    }
}
