//! Owns: the agent's directory: its lock; `worker.json` with the session, the cluster and the highest epoch seen; and
//! the cluster to which the spool belongs.
//!
//! Invariant: one process uses a directory at a time. What [`DataDir::save`] wrote survives a power loss and replaces
//! the old file as a whole. No other user of the host except root can read or change its contents. The spool names its
//! cluster before it holds a row, because another cluster uses the same numbers for runs and attempts.
//! Absent: the spool's other files, which `spool` keeps in the same directory.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The file of the spool that names its cluster.
const OWNER: &str = "CLUSTER";

/// Why the directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DiskError {
    #[error("{}: {action}: {source}", path.display())]
    Io { path: PathBuf, action: &'static str, source: io::Error },
    #[error(
        "{}: another user may change it ({why}); a worker trusts what it finds there, so use a directory of its own user",
        path.display()
    )]
    Foreign { path: PathBuf, why: String },
    #[error("{}: another rollout-worker is using this directory", path.display())]
    Locked { path: PathBuf },
    #[error("{}: unreadable: {reason}; move it away to begin as a new worker", path.display())]
    Corrupt { path: PathBuf, reason: String },
}

/// The state that outlives the process. u64 values are strings, so that no reader rounds them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WorkerState {
    /// 0: none yet.
    #[serde(with = "decimal")]
    pub(crate) session: u64,
    /// Empty if the worker has never met a cluster.
    pub(crate) cluster_id: String,
    #[serde(with = "decimal")]
    pub(crate) coord_epoch: u64,
}

#[derive(Debug)]
pub(crate) struct DataDir {
    root: PathBuf,
    _lock: File,
}

impl DataDir {
    /// Creates the directory if it is missing, for this user alone, and locks it for this process.
    pub(crate) fn open(root: &Path) -> Result<Self, DiskError> {
        if let Some(parent) = root.parent() {
            fs::create_dir_all(parent).map_err(io_error(parent, "cannot create the directory"))?;
        }
        match fs::DirBuilder::new().mode(0o700).create(root) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => claim(root)?,
            Err(source) => return Err(io_error(root, "cannot create the directory")(source)),
        }
        let path = root.join("LOCK");
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(io_error(&path, "cannot open"))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { root: root.to_owned(), _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(DiskError::Locked { path: root.to_owned() }),
            Err(TryLockError::Error(source)) => Err(io_error(&path, "cannot lock")(source)),
        }
    }

    pub(crate) fn spool(&self) -> PathBuf {
        self.root.join("spool")
    }

    /// Moves away a spool whose rows are not known to belong to `cluster_id`; returns where it is now.
    pub(crate) fn set_aside_foreign_spool(
        &self,
        cluster_id: &str,
    ) -> Result<Option<PathBuf>, DiskError> {
        let spool = self.spool();
        let named = match fs::read_to_string(spool.join(OWNER)) {
            Ok(named) => named,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(source) => return Err(io_error(&spool.join(OWNER), "cannot read")(source)),
        };
        let owner = named.trim();
        if (owner == cluster_id && !owner.is_empty()) || !holds_rows(&spool)? {
            return Ok(None);
        }
        // A name in an unknown format names no cluster.
        let hex = !owner.is_empty() && owner.bytes().all(|byte| byte.is_ascii_hexdigit());
        let stem = format!("spool-of-{}", if hex { owner } else { "unknown" });
        let mut aside = self.root.join(&stem);
        for number in 2.. {
            if !aside.exists() {
                break;
            }
            aside = self.root.join(format!("{stem}-{number}"));
        }
        fs::rename(&spool, &aside).map_err(io_error(&spool, "cannot set aside"))?;
        sync_dir(&self.root)?;
        Ok(Some(aside))
    }

    pub(crate) fn members(&self) -> PathBuf {
        self.root.join("members.json")
    }

    /// The same for the store gateway's connections.
    pub(crate) fn gateway_members(&self) -> PathBuf {
        self.members().with_extension("gateway")
    }

    /// Forgets session, cluster and members. The spool keeps its cluster's name, and is set aside at the next start.
    pub(crate) fn clear_cluster(&self) -> Result<(), DiskError> {
        for path in [self.members(), self.gateway_members()] {
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(io_error(&path, "cannot remove")(error));
                }
                _ => {}
            }
        }
        self.save(&WorkerState::default())
    }

    pub(crate) fn load(&self) -> Result<WorkerState, DiskError> {
        let path = self.root.join("worker.json");
        match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map_err(|error| DiskError::Corrupt { path, reason: error.to_string() }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(WorkerState::default()),
            Err(source) => Err(io_error(&path, "cannot read")(source)),
        }
    }

    /// Saves the state, and names the spool after its cluster. It runs before any row is granted, and so proves that
    /// both are writable.
    pub(crate) fn save(&self, state: &WorkerState) -> Result<(), DiskError> {
        let path = self.root.join("worker.json");
        let bytes = serde_json::to_vec_pretty(state)
            .map_err(|error| io_error(&path, "cannot encode")(error.into()))?;
        replace(&self.root, "worker.json", &bytes)?;
        if state.cluster_id.is_empty() {
            return Ok(());
        }
        let spool = self.spool();
        fs::create_dir_all(&spool).map_err(io_error(&spool, "cannot create the directory"))?;
        replace(&spool, OWNER, state.cluster_id.as_bytes())
    }
}

/// Durably replaces a file of a directory as a whole.
fn replace(dir: &Path, name: &str, bytes: &[u8]) -> Result<(), DiskError> {
    let (path, temporary) = (dir.join(name), dir.join(format!("{name}.tmp")));
    File::create(&temporary)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
        .map_err(io_error(&temporary, "cannot write"))?;
    fs::rename(&temporary, &path).map_err(io_error(&path, "cannot replace"))?;
    sync_dir(dir)
}

fn sync_dir(dir: &Path) -> Result<(), DiskError> {
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(io_error(dir, "cannot sync"))
}

/// Whether any slot's spool has a file.
fn holds_rows(spool: &Path) -> Result<bool, DiskError> {
    let failed = |source| io_error(spool, "cannot list")(source);
    let slots = match fs::read_dir(spool) {
        Ok(slots) => slots,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(failed(error)),
    };
    for slot in slots {
        let slot = slot.map_err(failed)?.path();
        if slot.is_dir() && fs::read_dir(&slot).map_err(failed)?.next().is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

fn io_error(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> DiskError {
    let path = path.to_owned();
    move |source| DiskError::Io { path, action, source }
}

mod decimal {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(value: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

/// Why a process of user `own` cannot trust a directory of this owner and mode. A directory of root's is accepted as
/// an orchestrator mounts it, with access for the group if that is the process's group.
fn objection(own: u32, owner: u32, mode: u32) -> Option<String> {
    if owner != own && owner != 0 {
        return Some(format!("it belongs to uid {owner}, this process to {own}"));
    }
    (mode & 0o002 != 0).then(|| format!("its mode is {mode:o}"))
}

/// Checks an existing directory. An earlier version made its own world-readable and group-writable: those permissions
/// are removed.
fn claim(root: &Path) -> Result<(), DiskError> {
    let cannot = || io_error(root, "cannot look at the directory");
    let of_path = fs::symlink_metadata(root).map_err(cannot())?;
    let found = fs::metadata(root).map_err(cannot())?;
    // SAFETY: the call has no arguments and cannot fail.
    let own = unsafe { libc::geteuid() };
    let foreign = |why: String| Err(DiskError::Foreign { path: root.to_owned(), why });
    let link_uid = of_path.uid();
    if link_uid != own && link_uid != 0 {
        return foreign(format!("the link belongs to uid {link_uid}, this process to {own}"));
    }
    let mode = found.mode() & 0o7777;
    if let Some(why) = objection(own, found.uid(), mode) {
        return foreign(why);
    }
    if found.uid() == own && mode & 0o077 != 0 {
        let private = fs::Permissions::from_mode(mode & !0o077);
        fs::set_permissions(root, private).map_err(io_error(root, "cannot make it private"))?;
        tracing::info!(path = %root.display(), "made the data directory private");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rollout_recorded::check;

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    fn with_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn the_directory_is_for_its_user_alone() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("a/data");
        drop(DataDir::open(&path).unwrap());
        assert_eq!(mode(&path), 0o700);
        // As an earlier version created it.
        with_mode(&path, 0o775);
        drop(DataDir::open(&path).unwrap());
        assert_eq!(mode(&path), 0o700);
    }

    #[test]
    fn a_directory_that_others_may_change_is_refused() {
        let root = tempfile::tempdir().unwrap();
        with_mode(root.path(), 0o777);
        let error = DataDir::open(root.path()).unwrap_err();
        assert!(error.to_string().contains("its mode is 777"), "{error}");
        assert!(!root.path().join("LOCK").exists());
        with_mode(root.path(), 0o700);
        // Only root can give a directory to another user.
        if std::os::unix::fs::chown(root.path(), Some(65_533), None).is_ok() {
            let error = DataDir::open(root.path()).unwrap_err();
            assert!(error.to_string().contains("belongs to uid 65533"), "{error}");
        }
    }

    #[test]
    fn a_directory_is_judged_by_its_owner_and_by_what_others_may_do() {
        const OWN: u32 = 1000;
        for (owner, mode) in [(OWN, 0o700), (OWN, 0o775), (0, 0o755), (0, 0o2770)] {
            assert_eq!(objection(OWN, owner, mode), None, "{owner} {mode:o}");
        }
        // Owned by root and yet writable by everyone, such as /tmp.
        for (owner, mode, why) in [
            (0, 0o1777, "its mode is 1777"),
            (0, 0o2777, "its mode is 2777"),
            (OWN, 0o777, "its mode is 777"),
            (1001, 0o700, "it belongs to uid 1001, this process to 1000"),
        ] {
            assert_eq!(objection(OWN, owner, mode).as_deref(), Some(why));
        }
    }

    #[test]
    fn the_session_and_the_highest_epoch_survive() {
        let root = tempfile::tempdir().unwrap();
        let state = WorkerState { session: u64::MAX, cluster_id: "ab".into(), coord_epoch: 7 };
        {
            let dir = DataDir::open(root.path()).unwrap();
            assert_eq!(dir.load().unwrap(), WorkerState::default());
            dir.save(&state).unwrap();
        }
        assert_eq!(DataDir::open(root.path()).unwrap().load().unwrap(), state);
    }

    #[test]
    fn the_files_of_a_directory_are_those_that_earlier_builds_wrote() {
        let root = tempfile::tempdir().unwrap();
        let dir = DataDir::open(root.path()).unwrap();
        let state = WorkerState {
            session: u64::MAX,
            cluster_id: "0123456789abcdef0123456789abcdef".into(),
            coord_epoch: 70_000,
        };
        dir.save(&state).unwrap();
        let text = fs::read_to_string(root.path().join("worker.json")).unwrap();
        let kept = check(concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/worker.json"), &text);
        fs::write(root.path().join("worker.json"), kept).unwrap();
        assert_eq!(dir.load().unwrap(), state);
        check(
            concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/CLUSTER"),
            &fs::read_to_string(dir.spool().join(OWNER)).unwrap(),
        );
        // The names of its files are a format too.
        let mut names: Vec<String> = [root.path().to_owned(), dir.spool()]
            .iter()
            .flat_map(|of| fs::read_dir(of).unwrap())
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, ["CLUSTER", "LOCK", "spool", "worker.json"]);
        assert_eq!(dir.members(), root.path().join("members.json"));
        assert_eq!(dir.gateway_members(), root.path().join("members.gateway"));
    }

    #[test]
    fn a_spool_that_another_cluster_could_take_for_its_own_is_set_aside() {
        let root = tempfile::tempdir().unwrap();
        let dir = DataDir::open(root.path()).unwrap();
        let state = WorkerState { cluster_id: "ab".into(), ..WorkerState::default() };
        dir.save(&state).unwrap();
        let slot = dir.spool().join("slot-0");
        fs::create_dir_all(&slot).unwrap();
        assert_eq!(dir.set_aside_foreign_spool("cd").unwrap(), None, "there is nothing in it");
        let fill =
            || fs::create_dir_all(&slot).and_then(|()| fs::write(slot.join("x.spool"), b"x"));
        fill().unwrap();
        assert_eq!(dir.set_aside_foreign_spool("ab").unwrap(), None);
        let aside = root.path().join("spool-of-ab");
        assert_eq!(dir.set_aside_foreign_spool("cd").unwrap(), Some(aside.clone()));
        assert!(aside.join("slot-0/x.spool").exists() && !dir.spool().exists());

        // One spool without a known cluster, and one of a worker that no longer knows its cluster.
        fill().unwrap();
        let unknown = root.path().join("spool-of-unknown");
        assert_eq!(dir.set_aside_foreign_spool("ab").unwrap(), Some(unknown));
        fill().unwrap();
        dir.save(&state).unwrap();
        let second = root.path().join("spool-of-ab-2");
        assert_eq!(dir.set_aside_foreign_spool("").unwrap(), Some(second));
    }

    #[test]
    fn a_worker_that_forgot_its_cluster_is_new_and_its_spool_is_set_aside() {
        let root = tempfile::tempdir().unwrap();
        let dir = DataDir::open(root.path()).unwrap();
        dir.save(&WorkerState { session: 7, cluster_id: "ab".into(), coord_epoch: 9 }).unwrap();
        let slot = dir.spool().join("slot-0");
        fs::create_dir_all(&slot).and_then(|()| fs::write(slot.join("x.spool"), b"x")).unwrap();
        fs::write(dir.members(), b"{}").unwrap();
        dir.clear_cluster().unwrap();
        assert_eq!(dir.load().unwrap(), WorkerState::default());
        assert!(!dir.members().exists());
        let aside = Some(root.path().join("spool-of-ab"));
        assert_eq!(dir.set_aside_foreign_spool("").unwrap(), aside);
        dir.clear_cluster().unwrap();
    }

    #[test]
    fn a_second_process_cannot_use_the_directory() {
        let root = tempfile::tempdir().unwrap();
        let _first = DataDir::open(root.path()).unwrap();
        assert!(matches!(DataDir::open(root.path()), Err(DiskError::Locked { .. })));
    }
}
