//! `meshport-sim`: many datacenters in virtual time.

#[cfg(target_os = "linux")]
mod interpose;

fn main() -> std::process::ExitCode {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    use_large_pages();
    meshport_simulations::cli::main()
}

/// Re-executes this program with the C library set to request large pages, a setting that it reads
/// only at start-up. A thousand nodes touch a gigabyte at random, and a fifth of a run's time went
/// into page table walks. This changes no decision of a run. It skips `lab`, whose daemons would
/// inherit the setting.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn use_large_pages() {
    use std::os::unix::process::CommandExt;

    const TUNABLES: &str = "GLIBC_TUNABLES";
    let mut arguments = std::env::args_os();
    let name = arguments.next();
    let arguments: Vec<_> = arguments.collect();
    let simulates = ["run", "serve", "sweep", "hunt", "shrink"];
    let verb = arguments.first().and_then(|verb| verb.to_str());
    if std::env::var_os(TUNABLES).is_some() || !verb.is_some_and(|verb| simulates.contains(&verb)) {
        return;
    }
    let Ok(program) = std::env::current_exe() else { return };
    let mut again = std::process::Command::new(program);
    again.args(arguments).env(TUNABLES, "glibc.malloc.hugetlb=1");
    if let Some(name) = name {
        again.arg0(name);
    }
    // Returns only on failure; the pages then stay small.
    let _ = again.exec();
}
