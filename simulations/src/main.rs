//! `meshport-sim`: many datacenters in virtual time.

#[cfg(target_os = "linux")]
mod interpose;

fn main() -> std::process::ExitCode {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    use_large_pages();
    meshport_simulations::cli::main()
}

/// Starts this program anew in its own place with the C library told to ask for large pages: it
/// reads that once, before anything here runs. A thousand nodes are a gigabyte that is touched all
/// over, and every fifth moment of a run went into finding pages. Changes nothing that a run
/// decides. `lab` is left as it is, since its daemons would inherit it.
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
    // It returns only if it failed; then the pages stay small.
    let _ = again.exec();
}
