//! Owns: the name of a run.
//!
//! Invariant: `run-id` in an output directory gives the run of a command without a name. The first name is written
//! before anything is uploaded, and only one of several concurrent writers succeeds. Another run's name replaces it
//! only once the cluster has that run, and before any of its rows are declared. So a repeated command finds the run
//! that has the rows.
//! Absent: the names that a cluster has; the cluster lists them.

use std::fs;
use std::io;
use std::path::Path;

use time::OffsetDateTime;

use crate::export::atomic_file::{self, Replace};

/// The file in the output directory that keeps the run's name.
pub const RUN_ID_FILE: &str = "run-id";
const NAME_BYTES_MAX: usize = 128;

/// Checks a run's name.
pub fn check(name: &str) -> Result<(), String> {
    let mut chars = name.chars();
    let good = chars.next().is_some_and(|first| first.is_ascii_alphanumeric())
        && chars.all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))
        && name.len() <= NAME_BYTES_MAX;
    match good {
        true => Ok(()),
        false => Err(format!(
            "{name:?} is not a valid name: use 1 to {NAME_BYTES_MAX} of a-z A-Z 0-9 . _ -, a letter or digit first"
        )),
    }
}

/// The name that an output directory remembers.
pub fn remembered(output_dir: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(output_dir.join(RUN_ID_FILE)) {
        Ok(text) => {
            let name = text.trim().to_owned();
            check(&name).map_err(|message| io::Error::new(io::ErrorKind::InvalidData, message))?;
            Ok(Some(name))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Gives an output directory a name if it has none; returns the name that it then has.
pub fn propose(output_dir: &Path, name: &str) -> io::Result<String> {
    match atomic_file::write(output_dir, RUN_ID_FILE, &format!("{name}\n"), Replace::Nothing)? {
        true => Ok(name.to_owned()),
        false => Ok(remembered(output_dir)?.unwrap_or_else(|| name.to_owned())),
    }
}

/// Keeps the name of a run that the cluster has.
pub fn settle(output_dir: &Path, name: &str) -> io::Result<()> {
    atomic_file::write(output_dir, RUN_ID_FILE, &format!("{name}\n"), Replace::Any).map(drop)
}

/// A new name: the time and three random letters' worth of hexadecimal digits.
pub fn generate() -> String {
    let now = OffsetDateTime::now_utc();
    let (date, time) = (now.date(), now.time());
    format!(
        "batch-{:04}{:02}{:02}-{:02}{:02}{:02}-{:04x}",
        date.year(),
        u8::from(date.month()),
        date.day(),
        time.hour(),
        time.minute(),
        time.second(),
        rand::random::<u16>()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_remembers_its_run() {
        let dir = tempfile::tempdir().unwrap();
        let output = dir.path().join("out/deep");
        assert_eq!(remembered(&output).unwrap(), None);
        let name = generate();
        check(&name).unwrap();
        assert_eq!(propose(&output, &name).unwrap(), name);
        assert_eq!(propose(&output, "slower").unwrap(), name);
        settle(&output, "other").unwrap();
        assert_eq!(remembered(&output).unwrap().as_deref(), Some("other"));
        assert_eq!(fs::read_dir(&output).unwrap().count(), 1);
        fs::write(output.join(RUN_ID_FILE), "../x").unwrap();
        assert!(remembered(&output).is_err());
    }

    #[test]
    fn names_are_plain() {
        for bad in ["", "-a", "a b", "a/b", "é", &"a".repeat(129)] {
            assert!(check(bad).is_err(), "{bad:?} was accepted");
        }
        assert!(check("Nightly_7.x-2").is_ok());
    }
}
