//! Reads bytes as a scenario for the simulator.

use std::fmt::Write;

use meshport_config::fuzzing::Script;
use meshport_simulations::scenario::Scenario;
use meshport_simulations::world::{Options, World};

/// How long a world is left alone at its end, so that all must agree, in virtual seconds.
const QUIET_S: u32 = 75;
/// Events of one world.
const MAX_EVENTS: u8 = 6;

/// A mesh of two or three small sites in virtual time, made and troubled as the bytes say: every
/// rule of the simulator holds.
pub fn world(data: &[u8]) {
    let mut script = Script::new(data);
    let seed = u64::from(script.short());
    let text = scenario(&mut script);
    let scenario = match Scenario::parse(&text) {
        Ok(scenario) => scenario,
        Err(error) => panic!("{error}\n{text}"),
    };
    let world = match World::new(scenario, seed, Options::default()) {
        Ok(world) => world,
        Err(error) => panic!("{error}\n{text}"),
    };
    let run = world.run();
    if let Some(violation) = run.violations.first() {
        panic!("{violation:?}\nwith --seed {seed} in\n{text}");
    }
}

fn scenario(script: &mut Script<'_>) -> String {
    let sites = 2 + script.byte() % 2;
    let happens_s = 50 + u32::from(script.byte() % 40);
    let loss = ["0.0", "0.1", "1.0", "2.0"][script.below(4)];
    let mut text = format!(
        "description = \"A world of the fuzzer\"\nduration-s = {}\nloss-percent = {loss}\n\
         warmup-s = 30\n\n[load]\nsessions-per-s = 0.2\nhold-s = 15\nrequests-per-s = 0.2\n",
        happens_s + QUIET_S + 30,
    );
    for site in 0..sites {
        let nodes = 2 + script.byte() % 2;
        let _ = writeln!(
            text,
            "\n[[site]]\nname = \"s{site}\"\nnodes = {nodes}\norigins = {}\nrelays = {}\n\
             at = [{}.0, {}.0]",
            1 + script.byte() % 2,
            script.byte() % 2,
            i32::from(script.byte() % 110) - 50,
            i32::from(script.byte()) - 120,
        );
    }
    for _ in 0..script.byte() % (MAX_EVENTS + 1) {
        let at = 40.0 + f64::from(script.short() % (happens_s as u16 * 10 - 390)) / 10.0;
        let _ = writeln!(text, "\n[[event]]\nat-s = {at:.1}\n{}", event(script, sites));
    }
    text
}

fn event(script: &mut Script<'_>, sites: u8) -> String {
    let a = script.byte() % sites;
    let b = (a + 1 + script.byte() % (sites - 1)) % sites;
    let long = 1.0 + f64::from(script.byte()) / 10.0;
    match script.byte() % 14 {
        0 => format!("kill = \"all origins any\"\nfor-s = {long:.1}"),
        1 => format!("hang = \"all origins any\"\nfor-s = {long:.1}"),
        2 => format!("unready = \"all origins any\"\nfor-s = {long:.1}"),
        3 => format!("crash = \"all any\"\nfor-s = {long:.1}"),
        4 => format!("crash = \"all any 2\"\nfor-s = {long:.1}\nwithout-state = true"),
        5 => format!("cut = [\"s{a}\", \"s{b}\"]\nfor-s = {long:.1}"),
        6 => format!("cut = [\"s{a}\", \"s{b}\"]\none-way = true\nfor-s = {long:.1}"),
        7 => format!("isolate = \"s{a}\"\nfor-s = {long:.1}"),
        8 => format!("flap = [\"s{a}\", \"s{b}\"]\nperiod-s = 2\nfor-s = {long:.1}"),
        9 => format!("starve = \"s{a}\"\nfor-s = {long:.1}"),
        10 => format!("rolling-restart = \"s{a}\"\ngap-s = 3"),
        11 => format!("lie = \"s{a} any\"\nhow = \"relay\"\nfor-s = {long:.1}"),
        12 => "revoke = \"all any\"".to_owned(),
        _ => format!(
            "degrade = {{ between = [\"s{a}\", \"s{b}\"], loss-percent = 20, \
             loss-burst-ms = 80 }}\nfor-s = {long:.1}"
        ),
    }
}
