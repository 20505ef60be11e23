//! Owns: the check that a program contains no seeded bug.
//!
//! Invariant: a pass means that the program's bytes were searched: the program's own name, which is among its texts, was
//! found by the same search.
//! Absent: building with the feature `seeded-bugs`; `make kill-matrix` does that.

use aho_corasick::AhoCorasick;
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeSet;
use std::path::Path;

/// The source that names the bugs, and a part of each line that does.
const SOURCE: &str = "ledger/src/machine/seeded.rs";
const NAMED: &str = "\", Bug::";

/// The names of all seeded bugs.
///
/// # Errors
/// When the source does not name each variant of its enum once.
pub(crate) fn names(root: &Path) -> Result<Vec<String>> {
    let path = root.join(SOURCE);
    let source = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    named(&source).with_context(|| format!("cannot read the seeded bugs of {SOURCE}"))
}

fn named(source: &str) -> Result<Vec<String>> {
    let lines = || source.lines().map(str::trim);
    let of_line = |line: &str| {
        let (name, _) = line.strip_prefix("(\"")?.split_once(NAMED)?;
        Some(name.to_owned())
    };
    let names: Vec<String> = lines().filter_map(of_line).collect();
    let declared = lines().skip_while(|line| *line != "pub enum Bug {").skip(1);
    let declared = declared.take_while(|line| *line != "}").filter(|line| !line.starts_with("//"));
    let declared = declared.count();
    ensure!(declared > 0, "no `pub enum Bug` is there");
    ensure!(names.len() == declared, "{declared} bugs are declared, and {} are named", names.len());
    ensure!(names.iter().all(|name| name.len() >= 8), "a name is too short to search for");
    Ok(names)
}

/// Fails if a program contains the name of a seeded bug.
///
/// # Errors
/// When it does, or its own name is not in it.
pub(crate) fn check(folder: &Path, programs: &[&str], names: &[String]) -> Result<()> {
    for program in programs {
        let path = folder.join(program);
        let bytes = std::fs::read(&path).with_context(|| path.display().to_string())?;
        let found = found(&bytes, names)?;
        if !found.is_empty() {
            bail!("{} contains seeded bugs: {}", path.display(), found.join(", "));
        }
        let own = [(*program).to_owned()];
        ensure!(!self::found(&bytes, &own)?.is_empty(), "{} lacks its own name", path.display());
    }
    Ok(())
}

/// Fails if a program lacks the name of a seeded bug: the search finds them in a build that has them.
///
/// # Errors
/// When it does.
pub(crate) fn check_seeded(program: &Path, names: &[String]) -> Result<()> {
    let bytes = std::fs::read(program).with_context(|| program.display().to_string())?;
    let found = found(&bytes, names)?;
    let missing: Vec<&str> =
        names.iter().map(String::as_str).filter(|name| !found.contains(name)).collect();
    ensure!(missing.is_empty(), "{} lacks {}", program.display(), missing.join(", "));
    Ok(())
}

/// The names that are among these bytes. One pass: a program has hundreds of megabytes with its debug information.
///
/// # Errors
/// When the names are too many or too long to search for.
fn found<'a>(bytes: &[u8], names: &'a [String]) -> Result<Vec<&'a str>> {
    let searched = AhoCorasick::new(names).context("cannot search for the names")?;
    let found: BTreeSet<usize> =
        searched.find_overlapping_iter(bytes).map(|found| found.pattern().as_usize()).collect();
    Ok(found.into_iter().map(|name| names[name].as_str()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn names_are_found_between_other_bytes_and_at_both_ends() {
        let names = texts(&["stale-read", "ack-before-fsync", "nack-of-anyone"]);
        let bytes = b"stale-read\0\xff\xfeack-before-fsynnack-of-anyone";
        assert_eq!(found(bytes, &names).unwrap(), ["stale-read", "nack-of-anyone"]);
        assert!(found(b"", &names).unwrap().is_empty());
        assert!(found(b"stale-rea", &names).unwrap().is_empty());
    }

    #[test]
    fn the_source_names_every_bug() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let names = names(&root).unwrap();
        assert!(names.contains(&"stale-read".to_owned()), "{names:?}");
        assert!(names.len() >= 31, "{names:?}");
    }

    #[test]
    fn a_source_that_names_fewer_bugs_than_it_declares_is_refused() {
        let source = |lines: &str| {
            format!(
                "pub enum Bug {{\n    /// One.\n    A,\n    B,\n}}\nconst NAMES: {{\n{lines}}}\n"
            )
        };
        let (one, two) = ("(\"first-bug\", Bug::A),\n", "(\"second-bug\", Bug::B),\n");
        assert_eq!(named(&source(&[one, two].concat())).unwrap(), ["first-bug", "second-bug"]);
        assert!(named(&source(one)).is_err());
        assert!(named("nothing").is_err());
    }

    #[test]
    fn a_program_with_a_seeded_bug_or_without_its_own_name_is_refused() {
        let folder = std::env::temp_dir().join(format!("xtask-seeded-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let names = texts(&["stale-read"]);
        let write = |bytes: &[u8]| std::fs::write(folder.join("rollout"), bytes).unwrap();
        write(b"usage: rollout");
        check(&folder, &["rollout"], &names).unwrap();
        assert!(check_seeded(&folder.join("rollout"), &names).is_err());
        write(b"usage: rollout stale-read");
        assert!(check(&folder, &["rollout"], &names).is_err());
        check_seeded(&folder.join("rollout"), &names).unwrap();
        write(b"another file");
        assert!(check(&folder, &["rollout"], &names).is_err());
        assert!(check(&folder, &["missing"], &names).is_err());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
