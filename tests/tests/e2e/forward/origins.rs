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

#[test]
fn origins_whose_certificate_another_ca_signed_are_said() {
    let mut world = office_and_two_sites(["near", "far"]);
    let laptop = Laptop::new(&mut world, "office", "cp-near");
    let (log, source) = (world.path("forward.log"), world.path("config"));
    kubeconfig(&source);
    let key = rcgen::KeyPair::generate().expect("a key");
    let other = rcgen::CertificateParams::default().self_signed(&key).expect("signed");
    fs::write(world.path("ca.crt"), other.pem()).expect("written");
    let text = fs::read_to_string(&source).expect("readable");
    let with_ca = text.replace("    server:", "    certificate-authority: ca.crt\n    server:");
    fs::write(&source, with_ca).expect("written");
    let source = source.to_string_lossy();
    let merge = ["--listen", "127.0.0.1:0", "--from", &*source, "--kubeconfig", &*source];
    let (process, ..) = ready(&mut laptop.first(&merge), &log);
    wait::until("both are named", SETTLE, || {
        let output = process.output();
        let warning = "the context's CA did not sign the certificate of ";
        let line = output.lines().find_map(|line| Some(line.split_once(warning)?.1))?;
        (line.contains("cp-near") && line.contains("cp-far")).then_some(())
    });
}
