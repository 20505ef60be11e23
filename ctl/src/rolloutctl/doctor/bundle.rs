//! `rolloutctl doctor --bundle FILE`: everything that a bug report needs, in one archive.
//!
//! Invariant: an item that cannot be collected becomes a file that says why, so a broken cluster gives a bundle too.
//! The archive appears under its name only when complete, is readable by its owner alone, and replaces nothing.
//! Absent: keys, secrets, rows and results. Names of runs and workers are in the events.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use flate2::Compression;
use flate2::write::GzEncoder;
use rollout_batch::event_stream::{EventStream, LogPosition, Start, StreamItem};
use rollout_proto::{Client, services, v1};
use serde::Serialize;

use super::{DoctorArgs, running};
use crate::connect::ConnectArgs;
use crate::output::counted;
use crate::output::{Format, Report, render};
use crate::rolloutctl::events::line::EventLine;
use crate::rolloutctl::{Failure, alarm, member, status};

/// How many of the newest events are included.
const EVENTS_MAX: usize = 2_000;
/// The time limit of reading them.
const EVENTS_WITHIN: Duration = Duration::from_secs(15);

#[derive(Debug, Serialize)]
struct Bundle {
    file: PathBuf,
    files: Vec<String>,
    /// Items that could not be collected.
    missing: Vec<String>,
}

impl Report for Bundle {
    const KIND: &'static str = "Bundle";

    fn table(&self) -> String {
        let files = counted(self.files.len() as u64, "file");
        let mut text = format!("{files} in {}\n", self.file.display());
        for missing in &self.missing {
            text.push_str(&format!("  missing: {missing}\n"));
        }
        text.push_str(
            "review it before you send it: it contains names of hosts, runs and workers\n",
        );
        text
    }
}

/// The content of the archive, file by file.
#[derive(Default)]
struct Contents {
    files: Vec<(String, Vec<u8>)>,
    missing: Vec<String>,
}

impl Contents {
    fn add(&mut self, name: impl Into<String>, bytes: impl Into<Vec<u8>>) {
        self.files.push((name.into(), bytes.into()));
    }

    /// Adds a report, or the reason why there is none.
    fn report<R: Report>(&mut self, name: &str, report: anyhow::Result<R>) {
        let text = report.and_then(|report| Ok(render(Format::Json, &report)?));
        self.text(&format!("{name}.json"), text);
    }

    fn text(&mut self, name: &str, text: anyhow::Result<String>) {
        match text {
            Ok(text) => self.add(name, text),
            Err(error) => {
                self.missing.push(format!("{name}: {error:#}"));
                self.add(format!("{name}.error.txt"), format!("{error:#}\n"));
            }
        }
    }
}

/// Collects and writes the archive, and prints what it contains.
pub(super) async fn write(
    connect: &ConnectArgs,
    format: Format,
    args: &DoctorArgs,
    file: &Path,
) -> anyhow::Result<()> {
    if file.exists() {
        let text = format!("{} exists: name another file", file.display());
        return Err(Failure::conflict(text).into());
    }
    let client = connect.client(None)?;
    let mut contents = Contents::default();
    contents.add("rolloutctl-version.txt", concat!(env!("CARGO_PKG_VERSION"), "\n"));
    let survey = status::survey(&client).await;
    let alarms = survey.alarms.clone();
    contents.report("alarms", Ok(alarm::list::Alarms { alarms }));
    contents.report("status", Ok(survey));
    let findings = running::check(connect, args).await.map(|(found, _)| found);
    contents.report("doctor", findings);
    contents.report("members", member::list::fetch(&client).await);
    of_each_member(&client, &mut contents).await;
    contents.text("events.jsonl", events(&client).await);
    save(file, &contents.files).with_context(|| format!("cannot write {}", file.display()))?;
    let files = contents.files.into_iter().map(|(name, _)| name).collect();
    let bundle = Bundle { file: file.to_owned(), files, missing: contents.missing };
    crate::output::emit(format, &bundle)
}

/// Each member's settings and counters.
async fn of_each_member(client: &Client, contents: &mut Contents) {
    let answers = client.each_member(|_, channel| async move {
        services::maintenance(channel).diagnose(v1::DiagnoseRequest {}).await
    });
    for (member, answer) in answers.await {
        let name = if member.name.is_empty() { member.addr.clone() } else { member.name.clone() };
        let dir = format!("members/{}", name.replace(['/', ':'], "-"));
        match answer {
            Ok(answer) => {
                contents.add(format!("{dir}/version.txt"), answer.version + "\n");
                contents.add(format!("{dir}/config.json"), answer.config_json + "\n");
                contents.add(format!("{dir}/metrics.txt"), answer.metrics);
            }
            Err(error) => contents.text(&dir, Err(error.into())),
        }
    }
}

/// The newest events of a member, one per line.
async fn events(client: &Client) -> anyhow::Result<String> {
    let mut stream = EventStream::new(client, v1::EventFilter::default(), false, Start::Oldest);
    let mut newest: VecDeque<v1::Event> = VecDeque::new();
    let reading = async {
        loop {
            match stream.next().await? {
                StreamItem::Events(events) => {
                    newest.extend(events);
                    let surplus = newest.len().saturating_sub(EVENTS_MAX);
                    newest.drain(..surplus);
                }
                StreamItem::Compacted { oldest } => {
                    stream.resume_at(LogPosition { index: oldest, position: 0 });
                }
                StreamItem::End => return anyhow::Ok(()),
            }
        }
    };
    // A partial list is better than none.
    let read = tokio::time::timeout(EVENTS_WITHIN, reading).await;
    if let Ok(Err(error)) = read
        && newest.is_empty()
    {
        return Err(error);
    }
    let lines = newest.into_iter().map(|event| {
        render(Format::Jsonl, &EventLine::from(event)).map(|line| line.trim_end().to_owned() + "\n")
    });
    Ok(lines.collect::<Result<String, _>>()?)
}

fn save(file: &Path, files: &[(String, Vec<u8>)]) -> std::io::Result<()> {
    let dir = match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    // Readable by its owner only, and removed unless it gets its name.
    let mut partial = tempfile::NamedTempFile::new_in(dir)?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let packed = GzEncoder::new(partial.as_file_mut(), Compression::default());
    let mut archive = tar::Builder::new(packed);
    for (name, bytes) in files {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Regular);
        header.set_mode(0o600);
        header.set_mtime(now.as_secs());
        header.set_size(bytes.len() as u64);
        archive.append_data(&mut header, format!("rollout-bundle/{name}"), &bytes[..])?;
    }
    archive.into_inner()?.finish()?.sync_all()?;
    partial.persist_noclobber(file).map_err(|error| error.error)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_bundle_is_its_owners_alone_and_has_every_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("b.tar.gz");
        let files =
            [("a.txt".to_owned(), b"first".to_vec()), ("m/c1.json".to_owned(), vec![7; 600])];
        save(&file, &files).unwrap();
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        let mut bytes = Vec::new();
        let gz = std::fs::File::open(&file).unwrap();
        flate2::read::GzDecoder::new(gz).read_to_end(&mut bytes).unwrap();
        let text = String::from_utf8_lossy(&bytes);
        assert!(text.contains("rollout-bundle/a.txt") && text.contains("first"));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left behind");
    }

    #[test]
    fn a_name_of_any_length_is_the_one_that_readers_see() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("b.tar.gz");
        let names = ["n", "o", "p"].map(|letter| letter.repeat(90));
        let names: Vec<String> =
            (1..=3).map(|parts| names[..parts].join("/")).chain(["y".repeat(101)]).collect();
        let files: Vec<(String, Vec<u8>)> =
            names.iter().map(|name| (name.clone(), name.clone().into_bytes())).collect();
        save(&file, &files).unwrap();
        let listed = std::process::Command::new("tar").arg("-tzf").arg(&file).output().unwrap();
        assert!(listed.status.success(), "{listed:?}");
        let listed = String::from_utf8(listed.stdout).unwrap();
        let listed: Vec<_> =
            listed.lines().map(|name| name.trim_start_matches("rollout-bundle/")).collect();
        assert_eq!(listed, names);
    }

    #[test]
    fn a_bundle_that_cannot_be_written_replaces_nothing_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("b.tar.gz");
        let files = [("a.txt".to_owned(), b"first".to_vec())];
        std::fs::write(&file, "theirs").unwrap();
        assert!(save(&file, &files).is_err());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "theirs");
        std::fs::remove_file(&file).unwrap();
        std::fs::create_dir(&file).unwrap();
        assert!(save(&file, &files).is_err());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "something is left behind");
    }

    #[test]
    fn an_item_that_cannot_be_collected_is_a_file_that_says_why() {
        let mut contents = Contents::default();
        contents.text("events.jsonl", Err(anyhow::anyhow!("no member answers")));
        let names: Vec<&str> = contents.files.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["events.jsonl.error.txt"]);
        assert_eq!(contents.missing, ["events.jsonl: no member answers"]);
    }

    #[test]
    fn output_matches_the_golden_file() {
        let report = Bundle {
            file: "rollout-bundle.tar.gz".into(),
            files: ["status.json", "members/c1.json"].map(String::from).into(),
            missing: vec!["c2: refused at tcp".into()],
        };
        crate::golden::report("doctor-bundle.txt", &report);
    }
}
