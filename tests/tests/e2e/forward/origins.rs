//! What a forward says of its origins.

use super::*;

#[test]
fn that_no_origin_is_ready_and_that_one_is_again_is_said() {
    let mut world = office_and_two_sites(["near", "far"]);
    let laptop = Laptop::new(&mut world, "office", "cp-near");
    let log = world.path("forward.log");
    let (process, ..) = ready(&mut laptop.first(&["--listen", "127.0.0.1:0"]), &log);
    let says = |end: &str| {
        wait::until(&format!("its last line ends with {end}"), SETTLE, || {
            let output = process.output();
            let last = output.lines().rfind(|line| line.contains(" leads to "))?;
            (last.contains("cp-near in near") && last.ends_with(end)).then_some(())
        });
    };
    says("Z");
    world.set_ready("cp-far", false);
    world.set_ready("cp-near", false);
    says(": none is ready)");
    world.set_ready("cp-near", true);
    says("(nearest ready)");
}
