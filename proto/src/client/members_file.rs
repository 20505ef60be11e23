//! The last member list and epoch seen, on disk.
//!
//! *Invariant:* the file is replaced as a whole or not at all.
//!
//! Absent: the leader; each process asks for it again.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use super::members::ClusterView;
use crate::v1;

const FORMAT: u32 = 1;
/// Far larger than any list.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

#[derive(Serialize, Deserialize)]
struct FileMembers {
    format: u32,
    cluster_id: String,
    coord_epoch: u64,
    members_version: u64,
    members: Vec<FileMember>,
}

#[derive(Serialize, Deserialize)]
struct FileMember {
    id: u64,
    name: String,
    peer_addr: String,
    client_addr: String,
    zone: String,
    version_min: u32,
    version_max: u32,
    voter: bool,
}

impl From<&v1::MemberInfo> for FileMember {
    fn from(m: &v1::MemberInfo) -> Self {
        FileMember {
            id: m.id,
            name: m.name.clone(),
            peer_addr: m.peer_addr.clone(),
            client_addr: m.client_addr.clone(),
            zone: m.zone.clone(),
            version_min: m.version_min,
            version_max: m.version_max,
            voter: m.voter,
        }
    }
}

impl From<FileMember> for v1::MemberInfo {
    fn from(m: FileMember) -> Self {
        v1::MemberInfo {
            id: m.id,
            name: m.name,
            peer_addr: m.peer_addr,
            client_addr: m.client_addr,
            zone: m.zone,
            version_min: m.version_min,
            version_max: m.version_max,
            voter: m.voter,
        }
    }
}

/// Reads the file. `None` if there is none yet.
pub(super) fn read(path: &Path) -> io::Result<Option<ClusterView>> {
    let size = match std::fs::metadata(path) {
        Ok(metadata) => metadata.len(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    if size > FILE_BYTES_MAX {
        return Err(io::Error::other(format!("{size} bytes are too many for a member list")));
    }
    parse(&std::fs::read(path)?).map(Some)
}

/// Parses the bytes of the file.
pub(super) fn parse(bytes: &[u8]) -> io::Result<ClusterView> {
    let kept: FileMembers = serde_json::from_slice(bytes)?;
    if kept.format != FORMAT {
        return Err(io::Error::other(format!("unknown format {}", kept.format)));
    }
    Ok(ClusterView {
        cluster_id: kept.cluster_id,
        coord_epoch: kept.coord_epoch,
        version: kept.members_version,
        members: kept.members.into_iter().map(v1::MemberInfo::from).collect(),
        unused: true,
        ..ClusterView::default()
    })
}

/// Replaces the file, durably.
pub(super) fn write(path: &Path, view: &ClusterView) -> io::Result<()> {
    let kept = FileMembers {
        format: FORMAT,
        cluster_id: view.cluster_id.clone(),
        coord_epoch: view.coord_epoch,
        members_version: view.version,
        members: view.members.iter().map(FileMember::from).collect(),
    };
    let mut bytes = serde_json::to_vec_pretty(&kept)?;
    bytes.push(b'\n');
    // Several processes may save to one path, so each write has a temporary file of its own.
    static WRITES: AtomicU64 = AtomicU64::new(0);
    let write = WRITES.fetch_add(1, Ordering::Relaxed);
    let staged = path.with_extension(format!("{}-{write}.tmp", std::process::id()));
    let result = replace(path, &staged, &bytes);
    if result.is_err() {
        // The temporary file is useless; the first error is the one to report.
        let _ = std::fs::remove_file(&staged);
    }
    result
}

fn replace(path: &Path, staged: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(staged)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(staged, path)?;
    match path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        Some(parent) => File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster_view() -> ClusterView {
        let member = v1::MemberInfo {
            id: 3,
            name: "c3".into(),
            client_addr: "h3:7".into(),
            voter: true,
            ..Default::default()
        };
        let members = vec![member];
        ClusterView {
            cluster_id: "a".into(),
            coord_epoch: 9,
            version: 4,
            members,
            ..Default::default()
        }
    }

    #[test]
    fn a_saved_list_is_read_back_and_no_other_file_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("members.json");
        assert_eq!(read(&path).unwrap(), None);
        write(&path, &ClusterView::default()).unwrap();
        write(&path, &cluster_view()).unwrap();
        let back = ClusterView { unused: true, ..cluster_view() };
        assert_eq!(read(&path).unwrap(), Some(back));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    /// Clients and workers of every version read it. `ROLLOUT_REWRITE=1` writes the file anew.
    #[test]
    fn the_file_is_one_that_earlier_builds_wrote() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("members.json");
        let whole = v1::MemberInfo {
            id: 300,
            name: "c1".into(),
            peer_addr: "h1:6".into(),
            client_addr: "h1:7".into(),
            zone: "a".into(),
            version_min: 1,
            version_max: 3,
            voter: false,
        };
        let mut view = cluster_view();
        view.members.push(whole);
        write(&path, &view).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let kept = rollout_recorded::check(
            concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/members.json"),
            &text,
        );
        let back = ClusterView { unused: true, ..view };
        assert_eq!(parse(kept.as_bytes()).unwrap(), back);
    }

    #[test]
    fn a_damaged_or_newer_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("members.json");
        std::fs::write(&path, b"{").unwrap();
        assert!(read(&path).is_err());
        write(&path, &cluster_view()).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replace("\"format\": 1", "\"format\": 2")).unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("unknown format 2"));
    }
}
