//! `on-gain` and `on-loss` of a virtual address from the unit, with BIRD from its package, as
//! docs/virtual-addresses.md says.

use std::fs;
use std::path::Path;

use meshport_tests::manual;
use meshport_tests::process::run;
use meshport_tests::wait;

use super::{DROP_IN, Machine, PATIENCE, SETTINGS, apiserver, give_lan, install, machine, said};

const PAGE: &str = "virtual-addresses.md";
const ROUTED: &str = "Routed networks";
const ROUTE: &str = "192.0.2.10/32";
/// Where the page has it.
const COMMANDS: &str = "etc/systemd/system/meshport.service.d/commands.conf";
/// What the route's command needs before it ends its work: a quarter of a second or so of the
/// shell's time, in which systemd ends all processes of the unit that let it. A busy machine needs
/// many times as long, and the daemon gives a command ten seconds.
const SLOWLY: &str = "i=0; while [ $i -lt 150000 ]; do i=$((i+1)); done; ";

/// How often the daemon is killed: whether a signal of systemd's meets the command's shell before
/// it ignores that is up to chance.
const KILLS: u32 = 3;

/// The page's block of a language that has this in it.
fn of_page(language: &str, part: &str) -> String {
    let blocks = manual::under(PAGE, ROUTED, language);
    blocks.into_iter().find(|it| it.contains(part)).unwrap_or_else(|| panic!("no block on {part}"))
}

/// BIRD with the page's configuration, under the unit of its package.
fn start_bird(machine: &Machine) {
    for file in ["passwd", "group"] {
        let path = machine.path("etc").join(file);
        let of_package = fs::read_to_string(Path::new("/etc").join(file)).expect("text");
        let own = of_package.lines().find(|line| line.starts_with("bird:")).expect("of bird2");
        let text = fs::read_to_string(&path).expect("text");
        fs::write(&path, format!("{text}{own}\n")).expect("written");
    }
    let variables = fs::read_to_string("/etc/bird/envvars").expect("of bird2");
    machine.write("etc/bird/envvars", &variables);
    machine.write("etc/bird/bird.conf", &of_page("text", "protocol static vip"));
    machine.run(&["systemctl", "start", "bird"]);
}

fn has_route(machine: &Machine) -> bool {
    machine.run(&["birdc", "show", "route"]).contains(ROUTE)
}

#[track_caller]
fn until_route(machine: &Machine, is_there: bool, when: &str) {
    let looked = wait::within(PATIENCE, || (has_route(machine) == is_there).then_some(()));
    assert!(looked.is_some(), "{when}: the route is not {is_there}; {}", machine.journal());
}

fn restart(machine: &Machine) {
    machine.run(&["systemctl", "daemon-reload"]);
    machine.run(&["systemctl", "restart", "meshport"]);
    machine.serves();
}

#[test]
#[ignore = "needs root, systemd-nspawn and BIRD; ./tests/run operator"]
fn commands_of_an_address_run_from_the_unit_on_gain_and_on_each_loss() {
    let Some(machine) = machine() else { return };
    assert!(run("bird", &["--version"]).status.success());
    let (_apiserver, port) = apiserver(&machine);
    let service = format!("[service.kube-apiserver]\norigin = \"127.0.0.1:{port}\"\n");
    install(&machine, &format!("site = \"fra\"\n{service}"));
    start_bird(&machine);
    give_lan(&machine, "eth0");
    machine.write(DROP_IN, &machine.run(&["meshport", "generate", "systemd-vip"]));
    let settings = format!("{}{service}", of_page("toml", "on-gain"));
    machine.write(SETTINGS, &settings);

    // Without the page's drop-in nothing is run, and the journal says so.
    restart(&machine);
    wait::until("the journal has that they cannot be run", PATIENCE, || {
        machine.journal().contains("cannot run the command").then_some(())
    });
    assert!(!has_route(&machine));
    machine.write(COMMANDS, &of_page("ini", "ExecPaths"));
    restart(&machine);
    until_route(&machine, true, "the address is gained");

    // The daemon hangs: its helper does not.
    let id = machine.process();
    machine.run(&["kill", "-s", "STOP", &id]);
    until_route(&machine, false, "the daemon hangs");
    machine.run(&["kill", "-s", "CONT", &id]);
    until_route(&machine, true, "the daemon goes on");

    machine.run(&["systemctl", "stop", "meshport"]);
    until_route(&machine, false, "the service is stopped");
    outlives_the_end_of_its_unit(&machine, &settings);
}

/// A command that is under way when the unit is stopped, or its daemon is killed.
fn outlives_the_end_of_its_unit(machine: &Machine, settings: &str) {
    let loss = "on-loss = \"";
    assert!(settings.contains(loss), "{settings}");
    let slow = settings.replace(loss, &format!("{loss}{SLOWLY}"));
    machine.write(SETTINGS, &slow);
    restart(machine);
    until_route(machine, true, "the service is started again");
    machine.run(&["systemctl", "stop", "meshport"]);
    until_route(machine, false, "the service is stopped while a command runs");

    restart(machine);
    for _ in 0..KILLS {
        until_route(machine, true, "and started again");
        // What starts after it cannot be what takes the route away.
        machine.write(SETTINGS, &slow.replace("site", "sight"));
        machine.run(&["kill", "-s", "KILL", &machine.process()]);
        until_route(machine, false, "the daemon is killed");
        machine.write(SETTINGS, &slow);
    }
    until_route(machine, true, "systemd has started it again");
    let again = machine.output(&["journalctl", "--no-pager", "--grep=running it again"]);
    println!("{KILLS} kills; commands that were run again:\n{}", said(&again));
}
