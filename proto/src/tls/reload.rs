//! A configuration that follows its files.
//!
//! *Invariant:* the current configuration was always built from a complete, usable set of files. Files are checked when
//! a connection is made, at most once a second, so an idle process does nothing. A change that cannot be used is logged
//! once as a warning and tried again at each check.
//!
//! Absent: a watcher thread, and closing connections that are already open.

use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use super::material::Material;
use super::{TlsError, TlsFiles};
use crate::identity::Identity;
use crate::pki::Validity;

const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A configuration built from one state of the files.
pub(super) struct Loaded<C> {
    pub(super) config: Arc<C>,
    pub(super) identity: Identity,
    pub(super) validity: Validity,
}

// Identifies one state of a file: a replaced file has another inode, one written in place another length or change
// time.
type FileState = Option<(u64, u64, i64, i64)>;

struct LastCheck {
    at: Instant,
    // The state of the files that the current configuration was built from.
    built_from: [FileState; 3],
    // The state that the last check refused, and why. A broken file is logged once.
    refused: Option<([FileState; 3], String)>,
}

pub(super) type Build<C> = Box<dyn Fn(Material) -> Result<C, TlsError> + Send + Sync>;

/// A configuration `C` built from three files, rebuilt when they change.
pub(super) struct Reloading<C> {
    files: TlsFiles,
    build: Build<C>,
    current: ArcSwap<Loaded<C>>,
    looked: Mutex<LastCheck>,
}

impl<C> Reloading<C> {
    pub(super) fn load(files: &TlsFiles, build: Build<C>) -> Result<Self, TlsError> {
        // The state is read first, so that the next check notices a change during the reading.
        let built_from = states(files);
        let current = ArcSwap::from_pointee(read_and_build(files, &build)?);
        let looked = LastCheck { at: Instant::now(), built_from, refused: None };
        Ok(Reloading { files: files.clone(), build, current, looked: Mutex::new(looked) })
    }

    /// The current configuration, after a check of the files if one is due.
    pub(super) fn get(&self) -> Arc<Loaded<C>> {
        // If another caller is checking, take the current one.
        if let Some(mut looked) = self.looked.try_lock()
            && looked.at.elapsed() >= LOOK_EVERY
        {
            self.look(&mut looked);
        }
        self.current.load_full()
    }

    /// Why the current files are not in use, after a check of them if one is due; `None` if they are.
    pub(super) fn refused(&self) -> Option<String> {
        let mut looked = self.looked.lock();
        if looked.at.elapsed() >= LOOK_EVERY {
            self.look(&mut looked);
        }
        looked.refused.as_ref().map(|(_, why)| why.clone())
    }

    /// Checks the files now. Returns whether a new configuration was loaded.
    pub(super) fn refresh(&self) -> bool {
        self.look(&mut self.looked.lock())
    }

    fn look(&self, looked: &mut LastCheck) -> bool {
        looked.at = Instant::now();
        let now = states(&self.files);
        if now == looked.built_from {
            looked.refused = None;
            return false;
        }
        match read_and_build(&self.files, &self.build) {
            Ok(loaded) => {
                tracing::info!(
                    identity = %loaded.identity,
                    not_after_unix = loaded.validity.not_after_unix,
                    cert = %self.files.cert.display(),
                    "loaded the changed certificate files"
                );
                self.current.store(Arc::new(loaded));
                looked.built_from = now;
                looked.refused = None;
                true
            }
            Err(error) => {
                if looked.refused.as_ref().is_none_or(|(state, _)| *state != now) {
                    tracing::warn!(%error, "refused the changed certificate files, keeping the certificate in use");
                }
                looked.refused = Some((now, error.to_string()));
                false
            }
        }
    }
}

fn read_and_build<C>(files: &TlsFiles, build: &Build<C>) -> Result<Loaded<C>, TlsError> {
    let material = Material::read(files)?;
    let (identity, validity) = (material.identity.clone(), material.validity);
    Ok(Loaded { config: Arc::new(build(material)?), identity, validity })
}

fn states(files: &TlsFiles) -> [FileState; 3] {
    [&files.ca, &files.cert, &files.key].map(|path| {
        let meta = std::fs::metadata(path).ok()?;
        Some((meta.ino(), meta.len(), meta.ctime(), meta.ctime_nsec()))
    })
}
