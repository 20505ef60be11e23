//! Loads the state from the records of an image, derived parts included.
//!
//! *Invariant:* loading restores what was drained. A record that cannot be read, or that belongs to nothing, is an
//! error: the member stops rather than serve a state that is not the cluster's.

use crate::fleet::setting::SETTINGS_KEY;
use crate::identity::api_keys::API_KEY_TAG;
use crate::identity::client::HOLDERS_KEY;
use crate::identity::member::MEMBERS_KEY;
use crate::kernel::codec;
use crate::machine::ledger::{Ledger, Meta};
use crate::openai::batches::Batches;
use crate::openai::files::ApiFiles;
use serde::de::DeserializeOwned;

/// The key of an image's record of its position and the cluster's version.
pub const META_KEY: &[u8] = b"M";

/// Why an image is no state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// The record of its position is missing.
    #[error("the image has no meta record")]
    NoMeta,
    /// A record cannot be read.
    #[error("the image's record {key} cannot be read")]
    Record {
        /// Its key, escaped.
        key: String,
    },
    /// Its trainings have numbers of their own, as below version 4.
    #[error(
        "the image was written by an unreleased build of cluster version {version}, in which a training job was not one record: form the cluster anew, or go on with that build"
    )]
    Unreleased {
        /// The cluster's version.
        version: u32,
    },
}

pub(crate) fn bad(key: &[u8]) -> LoadError {
    LoadError::Record { key: key.escape_ascii().to_string() }
}

pub(crate) fn read<T: DeserializeOwned>(key: &[u8], value: &[u8]) -> Result<T, LoadError> {
    codec::decode(value).ok_or_else(|| bad(key))
}

pub(crate) fn number<const N: usize>(key: &[u8], at: usize) -> Result<[u8; N], LoadError> {
    key.get(at..at + N).and_then(|b| b.try_into().ok()).ok_or_else(|| bad(key))
}

impl Ledger {
    /// The cluster version of an image, from its record under [`META_KEY`] alone. Check it before [`Ledger::load`]: a
    /// later version may have records that this build cannot read.
    ///
    /// # Errors
    /// [`LoadError::Record`] if the record cannot be read.
    pub fn image_version(meta: &[u8]) -> Result<u32, LoadError> {
        Ok(read::<Meta>(META_KEY, meta)?.version())
    }

    /// Builds the state from an image's records. Any order works that has a run's segments and parts ascending, and
    /// its segments before their outcomes. The caller must leave out keys that do not begin with an upper-case
    /// letter.
    ///
    /// # Errors
    /// [`LoadError`] if a record is missing or cannot be read.
    pub fn load(records: impl IntoIterator<Item = (Vec<u8>, Vec<u8>)>) -> Result<Self, LoadError> {
        let mut ledger = Self::empty(Meta::default());
        let mut has_meta = false;
        for (key, value) in records {
            has_meta |= key == META_KEY;
            ledger.load_record(&key, &value)?;
        }
        if !has_meta {
            return Err(LoadError::NoMeta);
        }
        ledger.runs.check_loaded()?;
        ledger.stores.check_loaded()?;
        ledger.batches.check_loaded()?;
        ledger.jobs.check_loaded()?;
        ledger.datasets.derive();
        ledger.jobs.derive_trainings(ledger.meta.version, &ledger.datasets)?;
        ledger.derive();
        Ok(ledger)
    }

    fn load_record(&mut self, key: &[u8], value: &[u8]) -> Result<(), LoadError> {
        match key.first() {
            Some(b'M') if key == HOLDERS_KEY => self.clients.load(key, value)?,
            Some(b'M') if key == MEMBERS_KEY => self.members.load(key, value)?,
            Some(b'M') if key == SETTINGS_KEY => self.settings.load(key, value)?,
            Some(b'M') => self.meta = read(key, value)?,
            Some(b'N') => self.namespaces.load(key, value)?,
            Some(b'E') if key.get(1) == Some(&0) => self.revocations.load(key, value)?,
            Some(b'E') if key.get(1) == Some(&API_KEY_TAG) => self.api_keys.load(key, value)?,
            Some(b'E') if ApiFiles::owns(key) => self.api_files.load(key, value)?,
            Some(b'E') if Batches::owns(key) => self.batches.load(key, value)?,
            Some(b'E') => self.tokens.load(key, value)?,
            Some(b'F' | b'O' | b'P' | b'R' | b'S' | b'T' | b'V' | b'Y') => {
                self.runs.load(key, value)?;
            }
            Some(b'W') => self.workers.load(key, value)?,
            Some(b'Z') => self.workers.load_slot(key, value)?,
            Some(b'X') => self.unreported_starts.load(key, value)?,
            Some(b'C') => self.clients.load(key, value)?,
            Some(b'J' | b'K' | b'Q') => self.stores.load(key, value)?,
            Some(b'A' | b'B' | b'G') => self.jobs.load(key, value)?,
            Some(b'D') => self.datasets.load(key, value)?,
            _ => self.jobs.load_training(key, value)?,
        }
        Ok(())
    }

    fn derive(&mut self) {
        self.split_segments();
        self.clients.derive();
        self.tokens.derive();
        self.api_keys.derive(self.meta.applied.index);
        self.api_files.derive();
        self.batches.derive();
        self.stores.derive();
        self.jobs.derive();
        self.runs.derive();
        for run in self.runs.values() {
            self.namespaces.add_running(run.namespace(), run.running());
        }
        self.workers.derive();
        self.workers.sessions().into_iter().for_each(|session| self.index_slots(session));
        self.runs.numbers().into_iter().for_each(|no| self.refresh_active(no));
        self.derive_cordon_ends();
        self.derive_indexes();
        self.turn_changes.forget_loaded();
    }
}
