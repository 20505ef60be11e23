//! `rolloutctl snapshot save FILE`: the ledger of a running cluster as a file; with `--from-dir`, the state that the
//! last remaining member has.
//!
//! Invariant: FILE appears under its name only after all of it is durable and was read back; until then, and after a
//! failure or a signal, the previous content stays. If the leader changes, saving starts again, a bounded number of
//! times. A complete stream that does not make an intact file is a failure at once.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use rollout_batch::leader_stream::LeaderStream;
use rollout_proto::{CallOptions, Client, services, v1};
use rollout_storage::{SnapshotFileError, SnapshotProblem};
use tokio::signal::unix::{SignalKind, signal};

use super::coordinator;
use super::summary::{SnapshotFile, unusable};
use crate::connect::ConnectArgs;
use crate::output::{self, Format, counted};
use crate::progress::Progress;
use crate::rolloutctl::Failure;
use crate::rolloutctl::dry_run::{Plan, Planned, Reader, client_plan};
use crate::rolloutctl::status;
use crate::rolloutctl::verb::{Globals, Kind, Verb};
use crate::stdio;

/// How many streams may break off: more than a rolling restart causes. Each new one transfers the whole ledger again.
const BROKEN_OFF_MAX: u32 = 8;

/// What to save where.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The file holds the ledger of every namespace: runs, states of rows, stores, datasets, checkpoints. It holds no row and no \
result; these are in the object store, which must be kept too.")]
pub(crate) struct SaveArgs {
    /// The file to write
    pub(in crate::rolloutctl) file: PathBuf,
    /// Replace an existing file
    #[arg(long)]
    pub(in crate::rolloutctl) overwrite: bool,
    /// UNSAFE: save from the data directory of a stopped member, when the majority is permanently
    /// lost
    #[arg(long, value_name = "DIR", conflicts_with = "overwrite")]
    pub(in crate::rolloutctl) from_dir: Option<PathBuf>,
    /// With --from-dir: the name of that member, to confirm that acknowledged work may be missing
    #[arg(long, value_name = "NAME", requires = "from_dir")]
    confirm: Option<String>,
}

impl Verb for SaveArgs {
    const KIND: Kind<Self> = Kind::Change { numbered: false, confirm: false, dry_run: client_plan };

    /// Saves a snapshot and shows its description.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        if !self.overwrite && self.file.exists() {
            let text =
                format!("{} exists; name another file, or give --overwrite", self.file.display());
            return Err(Failure::conflict(text).into());
        }
        if let Some(dir) = &self.from_dir {
            coordinator::salvage(&self.file, dir, self.confirm.as_deref())?;
            let shown = SnapshotFile::read(
                &self.file,
                &self.file,
                &Progress::new(stdio::are_notes_suppressed()),
            )?;
            return output::emit(globals.format, &shown);
        }
        until_signal(Box::pin(save(&globals.connect, globals.format, &self))).await
    }
}

impl Planned for SaveArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        let file = self.file.display();
        let there = self.file.exists();
        if there && !self.overwrite {
            let text = format!("{file} exists; name another file, or give --overwrite");
            return Err(Failure::conflict(text).into());
        }
        let file_now = if there { "exists and would be replaced" } else { "does not exist" };
        if let Some(dir) = &self.from_dir {
            let would = format!("save the ledger of the member in {} to {file}", dir.display());
            let dir_now = if dir.is_dir() { "is a directory" } else { "is not a directory" };
            return Ok(Plan::new(would, format!("{} {dir_now}; {file} {file_now}", dir.display())));
        }
        let survey = status::survey(&reader.client).await;
        let Some(leader) = survey.leader else {
            let text = format!(
                "there is no leader, and only a leader saves a snapshot: {}",
                survey.unknown.join("; ")
            );
            return Err(Failure::unavailable(text).into());
        };
        let would = format!("save the ledger of the cluster to {file}");
        Ok(Plan::new(would, format!("{leader} leads; {file} {file_now}")))
    }
}

async fn save(connect: &ConnectArgs, format: Format, args: &SaveArgs) -> anyhow::Result<()> {
    let client = connect.client(None)?;
    let progress = Progress::new(stdio::are_notes_suppressed());
    let partial = Partial::next_to(&args.file);
    let mut ended = 0;
    let shown = loop {
        let (end, received) = receive(&client, &partial, &progress).await?;
        // Only the file itself shows whether it is intact.
        let error = match SnapshotFile::check(&partial.path, &args.file, &progress) {
            Ok(shown) => break shown,
            Err(error) => error,
        };
        ended += 1;
        may_begin_anew(error, received, ended)?;
        progress.note("the leader changed, or its stream broke: starting over");
        end.abandon().await;
    };
    partial.finish(&args.file)?;
    output::emit(format, &shown)
}

/// Whether another stream may supply what the `ended`th one, with its `received` bytes, did not: it broke off, and not
/// too often. Any other fault of the file would recur.
fn may_begin_anew(error: SnapshotFileError, received: u64, ended: u32) -> anyhow::Result<()> {
    let broke_off = match error.problem {
        SnapshotProblem::Truncated { .. } => true,
        SnapshotProblem::Foreign => received == 0,
        _ => false,
    };
    if !broke_off {
        return Err(unusable(error).into());
    }
    if ended < BROKEN_OFF_MAX {
        return Ok(());
    }
    let text = format!(
        "the snapshot was cut short {}, because the leader changed, the connection broke, or the file could not \
         be written as fast as it came: nothing was saved; look at `rolloutctl status`, and try again",
        counted(ended.into(), "time")
    );
    Err(Failure::unavailable(text).into())
}

/// At Ctrl-C or SIGTERM, drops the work and its partial file, which the end of the process would leave behind.
async fn until_signal(work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    let listen = |kind| signal(kind).context("cannot listen for signals");
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut terminate = listen(SignalKind::terminate())?;
    let code = tokio::select! {
        done = work => return done,
        _ = interrupt.recv() => 130,
        _ = terminate.recv() => 143,
    };
    stdio::print_note(format_args!("interrupted: nothing was saved"));
    Err(Failure::reported(code).into())
}

/// A partial file, removed on drop unless it has got its name.
struct Partial {
    path: PathBuf,
}

impl Partial {
    fn next_to(file: &Path) -> Self {
        let mut path = file.as_os_str().to_owned();
        path.push(format!(".partial-{}", std::process::id()));
        Self { path: path.into() }
    }

    fn create(&self) -> anyhow::Result<File> {
        let mut options = OpenOptions::new();
        // A snapshot contains everything that the cluster knows, so only this user may read it.
        options.write(true).create(true).truncate(true).mode(0o600);
        options.open(&self.path).with_context(|| format!("cannot write {}", self.path.display()))
    }

    fn finish(self, file: &Path) -> anyhow::Result<()> {
        std::fs::rename(&self.path, file)
            .with_context(|| format!("cannot write {}", file.display()))?;
        let dir = match file.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        File::open(dir)
            .and_then(|dir| dir.sync_all())
            .with_context(|| format!("cannot sync {}", dir.display()))
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        // It does not exist if it got its name, or was never created.
        drop(std::fs::remove_file(&self.path));
    }
}

/// Receives a stream to its end; returns the stream, and how many bytes of the file it brought.
async fn receive(
    client: &Client,
    partial: &Partial,
    progress: &Progress,
) -> anyhow::Result<(LeaderStream<v1::SaveSnapshotResponse>, u64)> {
    let stream = client
        .with_leader_opts("save snapshot", CallOptions::read(), |channel| async move {
            services::maintenance(channel).save_snapshot(v1::SaveSnapshotRequest {}).await
        })
        .await?;
    let mut stream = LeaderStream::new(client, stream);
    let mut file = partial.create()?;
    let (mut received, mut expected) = (0_u64, 0);
    while let Some(message) = stream.next(|message| message.header.as_ref()).await? {
        expected = message.bytes_estimated.max(expected);
        file.write_all(&message.data)
            .with_context(|| format!("cannot write {}", partial.path.display()))?;
        received += message.data.len() as u64;
        progress.receiving(received, expected.max(received));
    }
    file.sync_all().with_context(|| format!("cannot sync {}", partial.path.display()))?;
    Ok((stream, received))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rolloutctl::exit;

    #[test]
    fn a_snapshot_is_for_its_user_alone_before_and_after_it_has_its_name() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("one.snap");
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let partial = Partial::next_to(&path);
        partial.create().unwrap().write_all(b"all that the cluster knows").unwrap();
        assert_eq!(mode(&partial.path), 0o600);
        partial.finish(&path).unwrap();
        assert_eq!(mode(&path), 0o600);
    }

    #[test]
    fn only_a_stream_that_broke_off_is_begun_anew_and_not_for_ever() {
        let outcome = |problem, received, ended| {
            let error = SnapshotFileError { path: "one.snap".into(), problem };
            may_begin_anew(error, received, ended).map_err(|error| exit::code(&error))
        };
        let cut = || SnapshotProblem::Truncated { bytes: 9, what: "a block" };
        assert_eq!(outcome(cut(), 9, 1), Ok(()));
        assert_eq!(
            outcome(SnapshotProblem::Foreign, 0, 1),
            Ok(()),
            "it ended before its first byte"
        );
        assert_eq!(outcome(cut(), 9, BROKEN_OFF_MAX - 1), Ok(()));
        assert_eq!(outcome(cut(), 9, BROKEN_OFF_MAX), Err(3));
        for fault in [
            SnapshotProblem::Foreign,
            SnapshotProblem::Newer { found: 9, supported: 1 },
            SnapshotProblem::Damaged { at: 1, what: "a block".into() },
            SnapshotProblem::Io(std::io::Error::other("no disk")),
        ] {
            let text = fault.to_string();
            assert!(outcome(fault, 9, 1).is_err(), "it would come again: {text}");
        }
    }

    #[tokio::test]
    async fn a_signal_takes_the_unfinished_file_away() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("one.snap");
        let told = until_signal(async {
            let partial = Partial::next_to(&file);
            partial.create()?.write_all(b"half").expect("written");
            let own = std::process::id().to_string();
            let sent = std::process::Command::new("kill").args(["-TERM", &own]).status()?;
            assert!(sent.success() && partial.path.exists());
            std::future::pending().await
        });
        let error = told.await.expect_err("it was interrupted");
        assert_eq!(exit::code(&error), 143);
        assert_eq!(std::fs::read_dir(&dir).expect("a directory").count(), 0, "it left something");
    }
}
