//! Owns: making the data directory of a member of a new cluster from a snapshot file, offline.
//!
//! Invariant: the same file, list of members and token make the same cluster id and the same state wherever they are
//! used, and any other input makes another id, so that members restored from different inputs never form one cluster.
//! The identity is written last: a directory whose restore was interrupted is not part of any cluster and is refused.
//! Absent: the network, and what is left of the old cluster; its ids, sessions and epochs mean nothing here.

use std::io;
use std::path::{Path, PathBuf};

use rollout_ledger::Ledger;
use rollout_storage::{
    ImageBatch, RaftLog, SnapshotFileError, SnapshotFileReader, SnapshotHeader, SnapshotSummary,
    StorageError,
};

use crate::codec::{encode_log_id, encode_stored_membership};
use crate::errors::{ClusterError, OpenError};
use crate::member::{ClusterId, MemberRecord};
use crate::membership::cluster::number_members;
use crate::state::identity::Identity;
use crate::state::machine::{APPLIED, MEMBERSHIP};
use crate::state::records::is_own;
use crate::state::stores::Stores;
use crate::types::{LogId, Membership, StoredMembership, log_id};

/// Bytes of records written to the image at a time.
const BATCH_BYTES: usize = 8 << 20;

/// The plan of a restore.
#[derive(Debug, Clone)]
pub struct RestorePlan {
    /// The new member's directory: missing, or empty.
    pub data_dir: PathBuf,
    pub member: String,
    /// All members of the new cluster, this one included; ids are given out.
    pub members: Vec<MemberRecord>,
    /// Distinguishes this restore from others of the same file to the same members. Not empty.
    pub token: String,
}

/// A member that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restored {
    /// The new cluster.
    pub cluster_id: ClusterId,
    /// The member's number in it.
    pub member_id: u64,
    pub header: SnapshotHeader,
    /// The verified contents of the file.
    pub summary: SnapshotSummary,
}

/// Why nothing was restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The file is not whole, or something else.
    #[error(transparent)]
    File(#[from] SnapshotFileError),
    /// The file is intact, but not a valid state of this program.
    #[error("{}: {what}", path.display())]
    Content {
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// The directory has something in it.
    #[error("{}: it has {found:?}; a member is restored into an empty directory only: name another one, or move what is there away", dir.display())]
    NotEmpty {
        dir: PathBuf,
        /// One of the entries found there.
        found: String,
    },
    /// The list of members, the name or the token.
    #[error("{0}")]
    Plan(String),
    /// The disk refused.
    #[error(transparent)]
    Open(#[from] OpenError),
}

impl From<StorageError> for RestoreError {
    fn from(error: StorageError) -> Self {
        Self::Open(error.into())
    }
}

impl From<ClusterError> for RestoreError {
    fn from(error: ClusterError) -> Self {
        Self::Plan(error.to_string())
    }
}

/// Makes the member's directory. Blocks. `progress` gets the number of bytes read so far.
///
/// After an error, unless it is about the plan, the file or a non-empty directory, the directory may hold a part of a
/// member, from which no coordinator starts.
pub fn restore(
    file: &Path,
    plan: &RestorePlan,
    progress: &mut dyn FnMut(u64),
) -> Result<Restored, RestoreError> {
    let members = number_members(plan.members.clone())?;
    let Some(me) = members.iter().find(|member| member.name == plan.member) else {
        return Err(RestoreError::Plan(format!("{:?} is not in the list of members", plan.member)));
    };
    if plan.token.is_empty() {
        return Err(RestoreError::Plan("the token is empty".to_owned()));
    }
    refuse_used(&plan.data_dir)?;
    let (ledger, header, summary) = read(file, progress)?;
    check_versions(file, &header, &members)?;
    let cluster_id = cluster_id(&summary, &members, &plan.token);
    let ledger = ledger.restored(cluster_id.0, header.taken_unix_ms);
    // The entry that forms a cluster has term 0, as if its log had been here before.
    let applied = log_id(0, header.index);
    let (me, dir) = (me.id, &plan.data_dir);
    let stores = Stores::open(dir)?;
    // From here on the directory looks like that of a member that has lost its identity: no member starts from it.
    begin_log(&stores.log, &applied)?;
    write_image(&stores, &ledger, &applied, &members)?;
    stores.log.close();
    drop(stores.image);
    let identity = Identity { cluster_id, member_id: me, name: plan.member.clone() };
    identity.create(dir)?;
    Ok(Restored { cluster_id, member_id: me, header, summary })
}

/// Refuses a directory that contains anything except what a file system puts there by itself.
fn refuse_used(dir: &Path) -> Result<(), RestoreError> {
    let failed = |source| StorageError::Io { path: dir.to_owned(), action: "list", source };
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error).into()),
    };
    for entry in entries {
        let found = entry.map_err(failed)?.file_name().to_string_lossy().into_owned();
        if found != "lost+found" {
            return Err(RestoreError::NotEmpty { dir: dir.to_owned(), found });
        }
    }
    Ok(())
}

/// Reads the whole file, and trusts nothing in it before its end.
fn read(
    file: &Path,
    progress: &mut dyn FnMut(u64),
) -> Result<(Ledger, SnapshotHeader, SnapshotSummary), RestoreError> {
    let mut reader = SnapshotFileReader::open(file)?;
    let mut failed = None;
    let records = std::iter::from_fn(|| {
        let next = reader.next()?;
        progress(reader.bytes_read());
        next.map_err(|error| failed = Some(error)).ok()
    });
    let loaded = Ledger::load(records.filter(|(key, _)| !is_own(key)));
    if let Some(error) = failed {
        return Err(error.into());
    }
    let content = |what: String| RestoreError::Content { path: file.to_owned(), what };
    let ledger = loaded.map_err(|error| content(error.to_string()))?;
    // A ledger takes all records, or fails at one before the end.
    for rest in reader.by_ref() {
        rest?;
    }
    let header = reader.header().clone();
    let summary = reader.summary().ok_or_else(|| content("it was not read to its end".into()))?;
    if ledger.applied().index != header.index {
        let index = ledger.applied().index;
        return Err(content(format!(
            "the header says index {}, the state stands at {index}",
            header.index
        )));
    }
    Ok((ledger, header, summary))
}

/// Refuses a cluster of a version that a member does not run.
fn check_versions(
    file: &Path,
    header: &SnapshotHeader,
    members: &[MemberRecord],
) -> Result<(), RestoreError> {
    for member in members {
        if !(member.version_min..=member.version_max).contains(&header.cluster_version) {
            let what = format!(
                "the cluster was of version {}, member {} runs {} to {}",
                header.cluster_version, member.name, member.version_min, member.version_max
            );
            return Err(RestoreError::Content { path: file.to_owned(), what });
        }
    }
    Ok(())
}

/// The first state of the cluster that a restore to the members of the file makes; for fuzz targets only.
#[cfg(feature = "fuzzing")]
pub(crate) fn state(file: &Path) -> Result<Ledger, RestoreError> {
    let (ledger, header, summary) = read(file, &mut |_| ())?;
    let members = header.members.iter().map(|member| MemberRecord {
        name: member.name.clone(),
        peer_addr: member.peer_addr.clone(),
        client_addr: member.client_addr.clone(),
        zone: member.zone.clone(),
        version_min: rollout_ledger::SUPPORTED_VERSIONS.0,
        version_max: rollout_ledger::SUPPORTED_VERSIONS.1,
        ..MemberRecord::default()
    });
    let members = number_members(members.collect())?;
    check_versions(file, &header, &members)?;
    first_membership(&log_id(0, header.index), &members)?;
    let cluster_id = cluster_id(&summary, &members, "fuzz");
    Ok(ledger.restored(cluster_id.0, header.taken_unix_ms))
}

/// Another file, other members or another restore give another cluster.
fn cluster_id(summary: &SnapshotSummary, members: &[MemberRecord], token: &str) -> ClusterId {
    let mut hasher = blake3::Hasher::new();
    hasher.update(b"rollout restored cluster 1").update(&summary.digest);
    let mut text = |text: &str| {
        hasher.update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
    };
    text(token);
    for member in members {
        [&member.name, &member.peer_addr, &member.client_addr, &member.zone]
            .into_iter()
            .for_each(|each| text(each));
    }
    let mut id = [0; 16];
    hasher.finalize_xof().fill(&mut id);
    ClusterId(id)
}

fn begin_log(log: &RaftLog, applied: &LogId) -> Result<(), RestoreError> {
    log.purge(applied.index(), &encode_log_id(applied))?;
    Ok(log.sync_now()?)
}

/// The membership that an entry at `applied` made.
fn first_membership(
    applied: &LogId,
    members: &[MemberRecord],
) -> Result<StoredMembership, RestoreError> {
    let voters = members.iter().map(|member| member.id).collect();
    let nodes = members.iter().map(|member| (member.id, member.clone()));
    let nodes: std::collections::BTreeMap<u64, MemberRecord> = nodes.collect();
    let membership = Membership::new(vec![voters], nodes)
        .map_err(|error| RestoreError::Plan(error.to_string()))?;
    Ok(StoredMembership::new(Some(*applied), membership))
}

fn write_image(
    stores: &Stores,
    ledger: &Ledger,
    applied: &LogId,
    members: &[MemberRecord],
) -> Result<(), RestoreError> {
    let membership = first_membership(applied, members)?;
    let (mut batch, mut bytes, mut result) = (ImageBatch::default(), 0, Ok(()));
    ledger.for_each_record(|key, value| {
        bytes += key.len() + value.len();
        batch.puts.push((key.to_vec(), value.to_vec()));
        if bytes >= BATCH_BYTES && result.is_ok() {
            bytes = 0;
            result = stores.image.write(std::mem::take(&mut batch));
        }
    });
    result?;
    batch.puts.push((APPLIED.to_vec(), encode_log_id(applied)));
    batch.puts.push((MEMBERSHIP.to_vec(), encode_stored_membership(&membership)));
    stores.image.write(batch)?;
    // Take the snapshot that this member sends to others: the log does not reach back before it.
    stores.image.snapshot()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_id_is_what_file_members_and_token_make_it() -> Result<(), ClusterError> {
        let member = |name: &str, port: u16| MemberRecord {
            name: name.into(),
            peer_addr: format!("h:{port}"),
            client_addr: format!("h:{}", port + 1),
            ..MemberRecord::default()
        };
        let members = number_members(vec![member("a", 1), member("b", 3)])?;
        let summary = |byte| SnapshotSummary { records: 1, bytes: 2, digest: [byte; 32] };
        let id = cluster_id(&summary(1), &members, "t");
        assert_eq!(
            id.to_string(),
            "e14a1cc5b5315de68969bac934b83d26",
            "made otherwise, two hosts would differ"
        );
        let others = [
            cluster_id(&summary(2), &members, "t"),
            cluster_id(&summary(1), &members, "u"),
            cluster_id(&summary(1), &members[..1], "t"),
            cluster_id(&summary(1), &number_members(vec![member("a", 1), member("b", 5)])?, "t"),
        ];
        for other in others {
            assert_ne!(other, id);
        }
        Ok(())
    }
}
