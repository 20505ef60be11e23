//! Builds the pages of docs/errors into the program.
//!
//! Invariant: a build without that folder succeeds, and has no pages. Absent: checks
//! of their content; tests have them.

use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let missing = |name| move || io::Error::other(format!("cargo set no {name}"));
    let manifest = env::var_os("CARGO_MANIFEST_DIR").ok_or_else(missing("CARGO_MANIFEST_DIR"))?;
    let out = env::var_os("OUT_DIR").ok_or_else(missing("OUT_DIR"))?;
    let folder = Path::new(&manifest).join("../docs/errors");
    println!("cargo::rerun-if-changed={}", folder.display());
    let mut pages = Vec::new();
    if folder.is_dir() {
        let folder = folder.canonicalize()?;
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
            match stem {
                Some(stem)
                    if stem.starts_with("RO-") && path.extension().is_some_and(|e| e == "md") =>
                {
                    pages.push((stem, path));
                }
                _ => {}
            }
        }
    }
    pages.sort();
    let mut code = String::from("const PAGES: &[(&str, &str)] = &[\n");
    for (stem, path) in pages {
        // invariant: writing to a string does not fail.
        let _ = writeln!(code, "    ({stem:?}, include_str!({:?})),", path.display().to_string());
    }
    code.push_str("];\n");
    fs::write(Path::new(&out).join("error_pages.rs"), code)
}
