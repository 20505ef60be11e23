//! Owns: running a command to its end: output, time limit, exit status.
//!
//! Invariant: output appears at once and whole. If commands run beside each other, it appears by the line, and long
//! lines are cut. A command that exceeds its limit is killed and counts as failed.
//! Absent: what the output means.

use crate::signals;
use anyhow::{Context, Result, ensure};
use std::io::{PipeReader, Read as _, Write as _};
use std::process::{Command, ExitStatus};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

const POLL: Duration = Duration::from_millis(100);
/// After the command's end, a process that it left behind may keep the output open for so long in silence,
const LEFT_BEHIND: Duration = Duration::from_secs(10);
/// and for so long if it prints: the command's own output may still be on its way.
const LEFT_BEHIND_MAX: Duration = Duration::from_secs(60);
const CHUNK_BYTES: usize = 16 * 1024;
const CHUNKS_MAX: usize = 64;
/// The bytes of a line that are looked at.
const LINE_BYTES_MAX: usize = 64 * 1024;

/// How a command ended.
pub(crate) struct CommandOutcome {
    status: ExitStatus,
    /// The limit, if the command exceeded it.
    limit: Option<Duration>,
}

impl CommandOutcome {
    /// Why the command failed; none if it succeeded.
    pub(crate) fn problem(&self) -> Option<String> {
        match (self.limit, self.status.success()) {
            (Some(limit), _) => Some(format!("it still ran after {} s", limit.as_secs())),
            (None, true) => None,
            (None, false) => Some(self.status.to_string()),
        }
    }
}

/// Runs a command. Prints its output, errors included, and passes each line on.
///
/// # Errors
/// When the command cannot be started, or this program cannot print.
pub(crate) fn watched(
    command: Command,
    limit: Duration,
    on_line: &mut dyn FnMut(&str),
) -> Result<CommandOutcome> {
    watch(command, limit, &mut print, on_line)
}

/// The same for one of several commands at a time. Prints whole lines, up to a bound, and the label before each.
///
/// # Errors
/// When the command cannot be started, or this program cannot print.
pub(crate) fn watched_beside_others(
    label: &str,
    command: Command,
    limit: Duration,
    on_line: &mut dyn FnMut(&str),
) -> Result<CommandOutcome> {
    let mut printed = Ok(());
    let ended = watch(command, limit, &mut |_| Ok(()), &mut |line| {
        if printed.is_ok() {
            printed = print(format!("{label}: {line}\n").as_bytes());
        }
        on_line(line);
    });
    printed.and(ended)
}

fn watch(
    mut command: Command,
    limit: Duration,
    on_bytes: &mut dyn FnMut(&[u8]) -> Result<()>,
    on_line: &mut dyn FnMut(&str),
) -> Result<CommandOutcome> {
    let begun = Instant::now();
    let (reader, writer) = std::io::pipe().context("cannot make a pipe")?;
    command.stdout(writer.try_clone().context("cannot clone a pipe")?).stderr(writer);
    let (mut child, group) = signals::spawn(&mut command)?;
    // It holds ends of the pipe; as long as one is open, the output has no end.
    drop(command);
    let chunks = read(reader)?;
    let mut lines = Lines::default();
    let mut ended: Option<(ExitStatus, Instant)> = None;
    let mut exceeded = None;
    let mut open = true;
    while open || ended.is_none() {
        if open {
            match chunks.recv_timeout(POLL) {
                Ok(bytes) => {
                    on_bytes(&bytes)?;
                    lines.feed(&bytes, on_line);
                }
                Err(RecvTimeoutError::Timeout) => {
                    open = ended.is_none_or(|(_, at)| at.elapsed() < LEFT_BEHIND);
                }
                Err(RecvTimeoutError::Disconnected) => open = false,
            }
        } else {
            std::thread::sleep(POLL); // The poll; the condition decides.
        }
        if ended.is_none() {
            ended = child.try_wait()?.map(|status| (status, Instant::now()));
        }
        open &= ended.is_none_or(|(_, at)| at.elapsed() < LEFT_BEHIND_MAX);
        let over = begun.elapsed().saturating_sub(limit);
        if ended.is_none() && exceeded.is_none() && !over.is_zero() {
            exceeded = Some(limit);
            // Scripts remove their directories then, and a nested xtask ends the commands in other groups, which also
            // takes GRACE at most.
            group.end();
        }
        if ended.is_none() && over > signals::GRACE * 2 {
            group.kill();
        }
    }
    lines.finish(on_line);
    let (status, _) = ended.context("the command has no exit status")?;
    Ok(CommandOutcome { status, limit: exceeded })
}

/// Runs a command whose output goes where this program's goes; returns its exit status.
///
/// # Errors
/// When it cannot be started.
pub(crate) fn plain(mut command: Command) -> Result<ExitStatus> {
    let (mut child, _group) = signals::spawn(&mut command)?;
    Ok(child.wait()?)
}

/// Runs a short command, and returns what it prints, without spaces at both ends.
///
/// # Errors
/// When it cannot be started or fails.
pub(crate) fn output(mut command: Command) -> Result<String> {
    let out = command.output().with_context(|| format!("cannot start {command:?}"))?;
    let errors = String::from_utf8_lossy(&out.stderr);
    ensure!(out.status.success(), "{command:?}: {}: {}", out.status, errors.trim());
    Ok(String::from_utf8_lossy(&out.stdout).trim().to_owned())
}

fn print(bytes: &[u8]) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).context("cannot print")
}

/// Reads the pipe in a thread: a process that a command left behind can keep it open.
fn read(mut reader: PipeReader) -> Result<Receiver<Vec<u8>>> {
    let (sender, chunks) = sync_channel(CHUNKS_MAX);
    let copy = move || {
        let mut chunk = vec![0; CHUNK_BYTES];
        while let Ok(count) = reader.read(&mut chunk) {
            if count == 0 || sender.send(chunk[..count].to_vec()).is_err() {
                break;
            }
        }
    };
    std::thread::Builder::new()
        .name("output".into())
        .spawn(copy)
        .context("cannot start a thread")?;
    Ok(chunks)
}

/// The lines of an output that arrives in chunks.
#[derive(Default)]
struct Lines {
    pending: Vec<u8>,
}

impl Lines {
    fn feed(&mut self, bytes: &[u8], on_line: &mut dyn FnMut(&str)) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let room = LINE_BYTES_MAX.saturating_sub(self.pending.len());
            self.pending.extend_from_slice(&part[..part.len().min(room)]);
            if part.ends_with(b"\n") {
                self.finish(on_line);
            }
        }
    }

    /// The last line may have no end.
    fn finish(&mut self, on_line: &mut dyn FnMut(&str)) {
        if !self.pending.is_empty() {
            let line = String::from_utf8_lossy(&self.pending).into_owned();
            self.pending.clear();
            on_line(line.trim_end_matches(['\n', '\r']));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> (CommandOutcome, Vec<String>) {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let mut lines = Vec::new();
        let ended = watched(command, limit, &mut |line| lines.push(line.to_owned()));
        (ended.unwrap(), lines)
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn output_and_errors_arrive_in_order_and_the_last_line_needs_no_end() {
        let (ended, lines) = shell("echo one; echo two >&2; printf three", LONG);
        assert_eq!(ended.problem(), None);
        assert_eq!(lines, ["one", "two", "three"]);
    }

    #[test]
    fn one_of_several_commands_passes_its_lines_on_without_its_label() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo one; printf two"]);
        let mut lines = Vec::new();
        let mut on_line = |line: &str| lines.push(line.to_owned());
        let ended = watched_beside_others("label", command, LONG, &mut on_line);
        assert_eq!((ended.unwrap().problem(), lines), (None, vec!["one".into(), "two".into()]));
    }

    #[test]
    fn a_command_that_fails_says_how() {
        assert!(shell("exit 3", LONG).0.problem().is_some_and(|said| said.contains('3')));
        assert!(shell("kill -KILL $$", LONG).0.problem().is_some_and(|said| said.contains('9')));
    }

    #[test]
    fn a_command_that_exceeds_its_limit_is_killed_with_its_children() {
        let begun = Instant::now();
        let (ended, _) = shell("sleep 600 & sleep 600", Duration::from_millis(200));
        assert!(ended.problem().is_some_and(|said| said.contains("still ran")));
        assert!(begun.elapsed() < LONG);
    }

    #[test]
    fn a_command_that_exceeds_its_limit_can_clean_up_first() {
        let script = "trap 'echo removed; exit' TERM; sleep 600 & wait";
        let (ended, lines) = shell(script, Duration::from_millis(200));
        assert!(ended.problem().is_some_and(|said| said.contains("still ran")));
        assert_eq!(lines, ["removed"]);
    }

    #[test]
    fn a_process_that_is_left_behind_ends_with_its_command() {
        let begun = Instant::now();
        let (ended, lines) = shell("sleep 600 & echo done", LONG);
        assert_eq!((ended.problem(), lines), (None, vec!["done".to_owned()]));
        assert!(begun.elapsed() < LONG);
    }

    #[test]
    fn a_command_that_cannot_be_started_is_an_error() {
        assert!(watched(Command::new("/no/such/program"), LONG, &mut |_| {}).is_err());
        assert!(output(Command::new("/no/such/program")).is_err());
    }

    #[test]
    fn the_output_of_a_command_that_fails_is_no_result() {
        let shell = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            output(command)
        };
        assert_eq!(shell("echo a; echo b >&2").unwrap(), "a");
        let error = shell("echo a; echo b >&2; exit 3").unwrap_err().to_string();
        assert!(error.ends_with("exit status: 3: b"), "{error}");
    }

    #[test]
    fn lines_that_arrive_in_pieces_are_put_together_and_long_ones_are_cut() {
        let (mut lines, mut found) = (Lines::default(), Vec::new());
        for piece in ["a", "b\n\nc", "\r\n"] {
            lines.feed(piece.as_bytes(), &mut |line| found.push(line.to_owned()));
        }
        lines.feed(&vec![b'x'; LINE_BYTES_MAX + 7], &mut |_| panic!("the line has no end"));
        lines.feed(b"\n", &mut |line| found.push(line.len().to_string()));
        assert_eq!(found, ["ab", "", "c", &LINE_BYTES_MAX.to_string()]);
    }
}
