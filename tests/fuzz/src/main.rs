//! `meshport-fuzz`: names the targets, writes the corpus that real encoders make, or shows a target
//! one input.

use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

use meshport_fuzz::{TARGETS, seeds};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["targets"] => {
            let mut out = io::stdout().lock();
            TARGETS.iter().try_for_each(|(name, _, _)| writeln!(out, "{name}"))?;
        }
        ["seeds"] => write_seeds()?,
        ["try", name, file] => {
            let target = TARGETS.iter().find(|target| target.0 == name);
            let (_, _, run) = target.ok_or("there is no such target; `targets` names them")?;
            run(&fs::read(Path::new(file))?);
        }
        _ => return Err("meshport-fuzz targets | seeds | try TARGET FILE".into()),
    }
    Ok(())
}

/// Each seed is a file `seed-NUMBER` of its target's corpus; other files there stay.
fn write_seeds() -> io::Result<()> {
    for (name, _, _) in TARGETS {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
        fs::create_dir_all(&folder)?;
        for (number, bytes) in seeds(name).iter().enumerate() {
            fs::write(folder.join(format!("seed-{number:02}")), bytes)?;
        }
    }
    Ok(())
}
