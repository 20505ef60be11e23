//! Where audit lines go: a rotated file of JSON lines, or the log.
//!
//! *Invariant:* at most `files_max` files of about `bytes_max` each are kept. The newest line is in the file of the
//! configured name; older files are that name with `.1`, `.2` and so on. A line is handed to the operating system
//! before [`AuditLog::write`] returns, so it outlives the process. If a full disk or a kill cuts a line off, the next
//! line is whole again.
//!
//! Each line has `prev`, the hash of the whole line before it, also across files and restarts ([`chain`]). So
//! `rolloutctl audit verify` finds a line that is changed, removed or inserted later.
//!
//! Absent: fsyncs, and protection against an attacker who rewrites all later lines. If a host loses power,
//! the lines of its last second may be lost; the changes that they report are in the ledger.

use super::refusals::Refusals;
use super::unauthenticated::UnauthenticatedCalls;
use super::{chain, line_room};
use crate::config::Audit;
use crate::leader::fair_room::FairRoom;
use metrics::counter;
use serde_json::{Map, Value};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The audit log of one member.
pub(crate) struct AuditLog {
    member: String,
    /// `None`: lines go to the log.
    file: Option<Arc<tokio::sync::Mutex<Rotated>>>,
    pub(super) unauthenticated_calls: UnauthenticatedCalls,
    pub(super) refusals: Refusals,
    /// Places for the lines of requests in progress.
    pub(super) room: FairRoom,
    /// The same for requests of administrators.
    pub(super) admin_room: FairRoom,
}

impl AuditLog {
    /// Opens the file, if one is configured.
    pub(crate) fn open(member: &str, config: &Audit) -> io::Result<Self> {
        let file = match &config.file {
            Some(path) => Some(Rotated::open(path, config.bytes_max, config.files_max)?),
            None => None,
        };
        let file = file.map(|file| Arc::new(tokio::sync::Mutex::new(file)));
        Ok(Self {
            member: member.to_owned(),
            file,
            unauthenticated_calls: UnauthenticatedCalls::default(),
            refusals: Refusals::default(),
            room: line_room::of_all_lines(),
            admin_room: line_room::of_admins(),
        })
    }

    pub(super) fn member(&self) -> &str {
        &self.member
    }

    pub(super) async fn write(&self, fields: Map<String, Value>) {
        let Some(file) = &self.file else { return log(&fields) };
        let (mut file, line) = (file.clone().lock_owned().await, fields.clone());
        let written = tokio::task::spawn_blocking(move || file.append(line)).await;
        let written = written.unwrap_or_else(|error| Err(io::Error::other(error)));
        if let Err(error) = written {
            counter!("rollout_audit_write_failures_total").increment(1);
            tracing::error!(%error, "cannot write an audit line to its file; logging it here");
            log(&fields);
        }
    }
}

fn log(fields: &Map<String, Value>) {
    let text = |key: &str| fields.get(key).and_then(Value::as_str);
    tracing::info!(
        target: "audit",
        identity = text("identity"),
        role = text("role"),
        address = text("address"),
        method = text("method"),
        namespace = text("namespace"),
        subject = text("subject"),
        request = text("request"),
        index = text("index"),
        outcome = text("outcome"),
        code = text("code"),
        reason = text("message"),
        trace_id = text("traceId"),
        duration_ms = fields.get("durationMs").and_then(serde_json::Value::as_u64),
        "audit"
    );
}

/// Only this user may read the file: lines tell who did what.
const MODE: u32 = 0o600;

struct Rotated {
    path: PathBuf,
    file: File,
    bytes: u64,
    /// Whether the last line may be incomplete.
    torn: bool,
    /// The hash of the last whole line, if there is one.
    prev: Option<String>,
    bytes_max: u64,
    files_max: u32,
}

impl Rotated {
    fn open(path: &Path, bytes_max: u64, files_max: u32) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).mode(MODE).open(path)?;
        let bytes = file.metadata()?.len();
        // If the file cannot be read, this is unknown.
        let torn = bytes > 0 && !ends_a_line(path, bytes).unwrap_or(false);
        let mut opened =
            Self { path: path.to_owned(), file, bytes, torn, prev: None, bytes_max, files_max };
        opened.prev = opened.hash_of_last_line()?;
        Ok(opened)
    }

    /// Writes these fields as a line that names the line before it.
    fn append(&mut self, mut fields: Map<String, Value>) -> io::Result<()> {
        if self.torn {
            // The file may have any part of the last line, or all of it.
            self.prev = self.hash_of_last_line()?.or_else(|| self.prev.take());
        }
        fields.insert("prev".to_owned(), self.prev.clone().into());
        let mut line = Value::Object(fields).to_string();
        let hash = chain::hash(line.as_bytes());
        line.push('\n');
        self.write(line.as_bytes())?;
        self.prev = Some(hash);
        Ok(())
    }

    fn hash_of_last_line(&self) -> io::Result<Option<String>> {
        for path in [self.path.clone(), self.numbered(1)] {
            if let Some(hash) = chain::hash_of_last_line(&path)? {
                return Ok(Some(hash));
            }
        }
        Ok(None)
    }

    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        if self.bytes > 0 && self.bytes + line.len() as u64 > self.bytes_max {
            self.rotate()?;
        }
        if std::mem::replace(&mut self.torn, true) {
            self.file.write_all(b"\n")?;
        }
        self.file.write_all(line)?;
        self.torn = false;
        self.bytes += line.len() as u64;
        Ok(())
    }

    fn rotate(&mut self) -> io::Result<()> {
        for older in (1..self.files_max).rev() {
            let from = match older {
                1 => self.path.clone(),
                n => self.numbered(n - 1),
            };
            match std::fs::rename(from, self.numbered(older)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        let mut options = OpenOptions::new();
        options.mode(MODE);
        // A single file is truncated; of several, the old one has been renamed by now.
        self.file = match self.files_max {
            1 => options.create(true).write(true).truncate(true).open(&self.path)?,
            _ => options.create(true).append(true).open(&self.path)?,
        };
        (self.bytes, self.torn) = (0, false);
        Ok(())
    }

    fn numbered(&self, number: u32) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(format!(".{number}"));
        name.into()
    }
}

fn ends_a_line(path: &Path, bytes: u64) -> io::Result<bool> {
    let mut last = [0];
    File::open(path)?.read_exact_at(&mut last, bytes - 1)?;
    Ok(last == *b"\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &Path) -> Vec<String> {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn files_are_rotated_within_their_bound_and_the_newest_lines_are_kept() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("audit.log");
        let mut file = Rotated::open(&path, 30, 3).expect("open");
        for n in 0..10 {
            file.write(format!("line number {n}\n").as_bytes()).expect("written");
        }
        let all = ["audit.log.2", "audit.log.1", "audit.log"].map(|n| lines(&dir.path().join(n)));
        let kept: Vec<String> = all.into_iter().flatten().collect();
        let expected: Vec<String> = (4..10).map(|n| format!("line number {n}")).collect();
        assert_eq!(kept, expected);
        assert_eq!(std::fs::read_dir(dir.path()).expect("listed").count(), 3);
        // A reopened log continues its file.
        drop(file);
        let mut file = Rotated::open(&path, 30, 3).expect("open");
        file.write(b"after a restart\n").expect("written");
        assert_eq!(lines(&path), ["after a restart"]);
        assert_eq!(lines(&dir.path().join("audit.log.1")).len(), 2);
    }

    #[test]
    fn a_line_after_a_truncated_one_is_whole() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("audit.log");
        std::fs::write(&path, "first\nhalf a li").expect("written");
        let mut file = Rotated::open(&path, 1000, 1).expect("open");
        file.write(b"third\n").expect("written");
        file.write(b"fourth\n").expect("written");
        // In operation: the disk takes a part of a line, and then no more.
        file.file.write_all(b"half a").expect("written");
        let full = File::open("/dev/null").expect("open");
        let room = std::mem::replace(&mut file.file, full);
        file.write(b"lost\n").expect_err("it takes nothing");
        file.file = room;
        file.write(b"sixth\n").expect("written");
        assert_eq!(lines(&path), ["first", "half a li", "third", "fourth", "half a", "sixth"]);
        // After a whole line there is no empty one.
        drop(file);
        let mut file = Rotated::open(&path, 1000, 1).expect("open");
        file.write(b"seventh\n").expect("written");
        assert_eq!(lines(&path)[5..], ["sixth", "seventh"]);
    }

    fn fields(n: u32) -> Map<String, Value> {
        Map::from_iter([("method".to_owned(), format!("line {n}").into())])
    }

    /// Checks that each line names the one before it, and returns how many there are. Skips lines that are not JSON.
    fn chained(all: &[String]) -> usize {
        let whole: Vec<(&String, Value)> =
            all.iter().filter_map(|line| Some((line, serde_json::from_str(line).ok()?))).collect();
        for pair in whole.windows(2) {
            assert_eq!(pair[1].1["prev"], chain::hash(pair[0].0.as_bytes()), "{all:?}");
        }
        whole.len()
    }

    #[test]
    fn each_line_names_the_one_before_it_across_files_and_restarts() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("audit.log");
        for n in 0..10 {
            // A file has two lines, so at every second opening the next line completes the file.
            let mut file = Rotated::open(&path, 250, 9).expect("open");
            file.append(fields(n)).expect("written");
        }
        let names = (1..9).rev().map(|n| format!("audit.log.{n}"));
        let files = names.chain(["audit.log".to_owned()]).map(|n| lines(&dir.path().join(n)));
        let all: Vec<String> = files.flatten().collect();
        assert_eq!(chained(&all), 10);
        assert!(lines(&path).len() < 10, "several files");
        let first: Value = serde_json::from_str(&all[0]).expect("JSON");
        assert!(first["prev"].is_null());
    }

    #[test]
    fn a_line_that_was_cut_off_is_no_part_of_the_chain_and_one_without_its_end_is() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("audit.log");
        let mut file = Rotated::open(&path, 1 << 20, 1).expect("open");
        file.append(fields(0)).expect("written");
        file.file.write_all(b"{\"method\":\"hal").expect("written");
        drop(file);
        let mut file = Rotated::open(&path, 1 << 20, 1).expect("open");
        file.append(fields(1)).expect("written");
        drop(file);
        let text = std::fs::read_to_string(&path).expect("read");
        std::fs::write(&path, text.trim_end()).expect("written");
        let mut file = Rotated::open(&path, 1 << 20, 1).expect("open");
        file.append(fields(2)).expect("written");
        // In operation: the disk accepts nothing for a while.
        let full = File::open("/dev/null").expect("open");
        let room = std::mem::replace(&mut file.file, full);
        file.append(fields(3)).expect_err("it takes nothing");
        file.file = room;
        file.append(fields(4)).expect("written");
        assert_eq!(chained(&lines(&path)), 4);
    }

    #[test]
    fn every_file_is_for_its_user_alone() {
        use std::os::unix::fs::PermissionsExt;
        for files_max in [1, 3] {
            let dir = tempfile::tempdir().expect("a directory");
            let path = dir.path().join("audit.log");
            let mut file = Rotated::open(&path, 30, files_max).expect("open");
            let mode = |path: &Path| std::fs::metadata(path).expect("there").permissions().mode();
            assert_eq!(mode(&path) & 0o777, 0o600, "the first");
            for n in 0..10 {
                file.write(format!("line number {n}\n").as_bytes()).expect("written");
            }
            let files = std::fs::read_dir(dir.path()).expect("listed");
            let modes: Vec<u32> =
                files.map(|file| mode(&file.expect("listed").path()) & 0o777).collect();
            assert_eq!(modes, vec![0o600; files_max as usize], "after rotations");
        }
    }

    #[test]
    fn a_single_file_begins_anew() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("audit.log");
        let mut file = Rotated::open(&path, 10, 1).expect("open");
        for line in ["first line\n", "second line\n"] {
            file.write(line.as_bytes()).expect("written");
        }
        assert_eq!(lines(&path), ["second line"]);
        assert_eq!(std::fs::read_dir(dir.path()).expect("listed").count(), 1);
    }
}
