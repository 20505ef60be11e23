//! Owns: the names of objects.
//!
//! Invariant: a key is a relative path of plain names, so it can never leave its store's root or prefix.
//! Absent: the objects themselves.

use super::BlobError;

const KEY_BYTES_MAX: usize = 512;
/// Characters of the cluster's id in the folders of its runs.
const CLUSTER_CHARS: usize = 16;

/// The folder of a run within its namespace's: its name, and a part that distinguishes it from every other run of that
/// name, in this cluster and in others that use the same store. `drawn` is random for each creation, so that objects
/// of a deleted run never belong to a later one. A client generates it before the run has a number.
pub fn run_folder(run_name: &str, cluster_id: &str, drawn: u64) -> String {
    format!("{run_name}/{}{drawn:016x}", folder_mark(cluster_id))
}

/// The prefix of the folders of a cluster's runs, after the run's name.
pub fn folder_mark(cluster_id: &str) -> String {
    let short: String = cluster_id.chars().take(CLUSTER_CHARS).collect();
    format!("{short}-")
}

/// The key of a segment of a run's input. `folder` comes from [`run_folder`], here and below.
pub fn segment_key(namespace: &str, folder: &str, digest: &[u8; 32]) -> String {
    object_key(namespace, folder, "segments", digest)
}

/// The key of a part of a run's results.
pub fn part_key(namespace: &str, folder: &str, digest: &[u8; 32]) -> String {
    object_key(namespace, folder, "parts", digest)
}

/// The key of a sealed run's manifest, or of a chunk of it.
pub fn manifest_key(namespace: &str, folder: &str, digest: &[u8; 32]) -> String {
    object_key(namespace, folder, "manifest", digest)
}

/// The key of a long text about the failure of rows of a run.
pub fn evidence_key(namespace: &str, folder: &str, digest: &[u8; 32]) -> String {
    object_key(namespace, folder, "evidence", digest)
}

/// The folder of all objects of a run: its segments, its parts, its evidence and its manifest.
pub fn run_prefix(namespace: &str, folder: &str) -> String {
    format!("runs/{namespace}/{folder}")
}

/// The folder of all objects of a training job.
pub fn training_prefix(namespace: &str, job: &str) -> String {
    format!("training/{namespace}/{job}")
}

/// The folder of a checkpoint's objects.
pub fn checkpoint_prefix(namespace: &str, job: &str, number: u32) -> String {
    format!("{}/{number:08}", training_prefix(namespace, job))
}

/// The key of an object of a checkpoint: a manifest, or a chunk of a file.
pub fn checkpoint_key(namespace: &str, job: &str, number: u32, digest: &[u8; 32]) -> String {
    let digest = blake3::Hash::from_bytes(*digest).to_hex();
    format!("{}/{digest}", checkpoint_prefix(namespace, job, number))
}

/// The folder of all content of files of OpenAI's API: a folder per namespace.
pub const CONTENT_ROOT: &str = "files";

/// The folder of one content of a file. `folder` begins with the mark of its cluster.
pub fn content_prefix(namespace: &str, folder: &str) -> String {
    format!("{CONTENT_ROOT}/{namespace}/{folder}")
}

/// The key of a piece of a file's content.
pub fn content_key(namespace: &str, folder: &str, digest: &[u8; 32]) -> String {
    let digest = blake3::Hash::from_bytes(*digest).to_hex();
    format!("{}/{digest}", content_prefix(namespace, folder))
}

fn object_key(namespace: &str, folder: &str, kind: &str, digest: &[u8; 32]) -> String {
    format!("runs/{namespace}/{folder}/{kind}/{}", blake3::Hash::from_bytes(*digest).to_hex())
}

/// Refuses a text that is not a key.
pub(super) fn check(key: &str) -> Result<(), BlobError> {
    let plain = |name: &str| {
        !name.is_empty()
            && !name.starts_with('.')
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
    };
    if key.len() <= KEY_BYTES_MAX && key.split('/').all(plain) {
        Ok(())
    } else {
        Err(BlobError::Key { key: key.chars().take(KEY_BYTES_MAX).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_cannot_leave_the_root() {
        for key in ["", "/a", "a/", "a//b", "../a", "a/../b", "a/.hidden", "a\\b", "a b", "a\0"] {
            assert!(check(key).is_err(), "{key:?} was accepted");
        }
        assert!(check(&"a".repeat(513)).is_err());
        assert!(check("runs/7/parts/00ff-a_b.json").is_ok());
    }

    #[test]
    fn two_runs_of_one_name_share_no_folder() {
        let cluster = "0123456789abcdef0123456789abcdef";
        assert_eq!(run_folder("chat", cluster, 10), "chat/0123456789abcdef-000000000000000a");
        assert_ne!(run_folder("chat", cluster, 10), run_folder("chat", cluster, 11));
        assert_eq!(folder_mark(cluster), "0123456789abcdef-");
    }

    #[test]
    fn keys_are_stable() {
        let digest = [0xab; 32];
        let hex = "ab".repeat(32);
        assert_eq!(
            segment_key("default", "eval-7", &digest),
            format!("runs/default/eval-7/segments/{hex}")
        );
        assert_eq!(
            part_key("default", "eval-7", &digest),
            format!("runs/default/eval-7/parts/{hex}")
        );
        assert_eq!(
            evidence_key("default", "eval-7", &digest),
            format!("runs/default/eval-7/evidence/{hex}")
        );
        assert_eq!(
            checkpoint_key("default", "sft", 7, &digest),
            format!("training/default/sft/00000007/{hex}")
        );
        assert_eq!(
            content_key("default", "0123456789abcdef-file-1", &digest),
            format!("files/default/0123456789abcdef-file-1/{hex}")
        );
        let longest = "n".repeat(128);
        let folder = format!("{}-part_{}", "c".repeat(32), "p".repeat(80));
        assert!(check(&content_key(&longest, &folder, &digest)).is_ok());
        assert!(check(&checkpoint_key(&longest, &longest, u32::MAX, &digest)).is_ok());
        let folder = run_folder(&longest, &"c".repeat(32), u64::MAX);
        assert!(check(&segment_key(&longest, &folder, &digest)).is_ok());
    }
}
