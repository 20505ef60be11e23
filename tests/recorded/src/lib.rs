//! Compares what tests produce with recorded files: the bytes and texts that users, logs and other versions read.
//!
//! *Invariant:* a missing file and any difference fail the test. Only `ROLLOUT_REWRITE` changes a file, so a change of
//! what others see is part of a commit.
//! Absent: directories and databases of earlier builds. Their tests write them, and ask only [`rewrites`].

use std::path::Path;

const VARIABLE: &str = "ROLLOUT_REWRITE";

/// Whether tests shall write their recorded files: `ROLLOUT_REWRITE` is set.
pub fn rewrites() -> bool {
    std::env::var_os(VARIABLE).is_some()
}

/// Compares a text with a recorded file, and returns the recorded text. With `ROLLOUT_REWRITE` it writes the file
/// first.
///
/// # Panics
/// If the file cannot be read or written, or if the texts differ. The message names the first line that differs.
#[track_caller]
pub fn check(path: impl AsRef<Path>, text: &str) -> String {
    compare(path.as_ref(), text, rewrites())
}

#[track_caller]
fn compare(path: &Path, text: &str, rewrite: bool) -> String {
    if rewrite && let Err(error) = write(path, text) {
        panic!("cannot write {}: {error}", path.display());
    }
    let recorded = match std::fs::read_to_string(path) {
        Ok(recorded) => recorded,
        Err(error) => panic!("{}: {error}; {VARIABLE}=1 writes it", path.display()),
    };
    if let Some((line, difference)) = difference(&recorded, text) {
        panic!("{}:{line} differs; {VARIABLE}=1 rewrites the file\n{difference}", path.display());
    }
    recorded
}

fn write(path: &Path, text: &str) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(path, text)
}

/// The first line that differs, and how.
fn difference(recorded: &str, now: &str) -> Option<(usize, String)> {
    if recorded == now {
        return None;
    }
    let (mut recorded, mut now) = (recorded.split_inclusive('\n'), now.split_inclusive('\n'));
    let mut lines = (1..).map(|line| (line, recorded.next(), now.next()));
    let (line, was, is) = lines.find(|(_, was, is)| was != is)?;
    Some((line, format!("  recorded: {}\n  now:      {}", shown(was), shown(is))))
}

/// A line with its end, so that a missing newline shows too.
fn shown(line: Option<&str>) -> String {
    line.map_or("the end of the file".to_owned(), |line| format!("{line:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_texts_do_not_differ() {
        assert_eq!(difference("", ""), None);
        assert_eq!(difference("a\nb\n", "a\nb\n"), None);
    }

    #[test]
    fn the_first_line_that_differs_is_shown() {
        let found = |recorded, now| difference(recorded, now).expect("a difference");
        let (line, shown) = found("a\nb\nc\n", "a\nx\ny\n");
        assert_eq!((line, &*shown), (2, "  recorded: \"b\\n\"\n  now:      \"x\\n\""));
        let (line, shown) = found("a\n", "a\nb\n");
        assert_eq!((line, &*shown), (2, "  recorded: the end of the file\n  now:      \"b\\n\""));
        let (line, shown) = found("a\n", "a");
        assert_eq!((line, &*shown), (1, "  recorded: \"a\\n\"\n  now:      \"a\""));
    }

    #[test]
    fn a_file_is_written_only_on_request() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("new/kept.txt");
        let checks = |text, rewrite| {
            let path = path.clone();
            std::panic::catch_unwind(move || compare(&path, text, rewrite)).ok()
        };
        assert_eq!(checks("a\n", false), None, "a missing file");
        assert_eq!(checks("a\n", true).as_deref(), Some("a\n"));
        assert_eq!(checks("a\n", false).as_deref(), Some("a\n"));
        assert_eq!(checks("b\n", false), None, "another text");
        assert_eq!(checks("b\n", true).as_deref(), Some("b\n"));
    }
}
