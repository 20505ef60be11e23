//! Loads the state from the records of an image, derived parts included.
//!
//! *Invariant:* loading restores what was drained. A record that cannot be read, or that belongs to nothing, is an
//! error: the member stops rather than serve a state that is not the cluster's.

use crate::batch::incident::Incident;
use crate::batch::run::{PauseState, Run, RunHead};
use crate::batch::trouble::Trouble;
use crate::fleet::setting::SETTINGS_KEY;
use crate::identity::client_image::HOLDERS_KEY;
use crate::identity::member::MEMBERS_KEY;
use crate::kernel::codec;
use crate::kernel::id::RunNo;
use crate::machine::ledger::{Ledger, Meta};
use serde::de::DeserializeOwned;

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

/// Reads a run's head. The state of its pauses follows it unless that is the default, from cluster version 3 on.
fn load_head(key: &[u8], value: &[u8]) -> Result<RunHead, LoadError> {
    if let Some(head) = codec::decode(value) {
        return Ok(head);
    }
    let (head, pause): (RunHead, PauseState) = read(key, value)?;
    // The default is never written, and every worker has a name.
    if pause == PauseState::default() || pause.refused.as_deref() == Some("") {
        return Err(bad(key));
    }
    Ok(RunHead { pause, ..head })
}

/// Reads a row's trouble. From cluster version 3 on an incident may follow it.
fn load_trouble(key: &[u8], value: &[u8]) -> Result<Trouble, LoadError> {
    if let Some(trouble) = codec::decode(value) {
        return Ok(trouble);
    }
    let (trouble, incident): (Trouble, Incident) = read(key, value)?;
    Ok(Trouble { incident: Some(incident), ..trouble })
}

impl Ledger {
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
            has_meta |= key == b"M";
            ledger.load_record(&key, &value)?;
        }
        if !has_meta {
            return Err(LoadError::NoMeta);
        }
        // A run without a name lacks its own record; a run whose segments do not cover its rows lacks some of them.
        let whole = |run: &Run| {
            let end = run.segments.last().map_or(0, |s| s.end());
            !run.head.name.is_empty() && (end == run.head.rows || !run.has_rows())
        };
        if let Some(run) = ledger.runs.values().find(|run| !whole(run)) {
            return Err(bad(&crate::machine::image::run_key(b'R', run.no, &[])));
        }
        ledger.stores.check_loaded()?;
        ledger.jobs.check_loaded()?;
        if let Some(no) = ledger.runs.values().find(|run| !run.counts_fit()).map(|run| run.no) {
            return Err(bad(&crate::machine::image::run_key(b'R', no, &[])));
        }
        ledger.datasets.derive();
        if !ledger.trainings.derive(&ledger.datasets) {
            return Err(bad(b"L"));
        }
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
            Some(b'E') => self.tokens.load(key, value)?,
            Some(b'R') => self.loading_run(key)?.head = load_head(key, value)?,
            Some(b'F') => self.loading_run(key)?.load_flight(key, value)?,
            Some(b'O') => self.loading_run(key)?.load_attempt(key, value)?,
            Some(b'Y') => self.loading_run(key)?.load_block(key, value)?,
            Some(b'V') => self.loading_run(key)?.load_returned(key, value)?,
            Some(b'S') => {
                let at = u32::from_be_bytes(number(key, 5)?);
                let run = self.loading_run(key)?;
                if at as usize != run.segments.len() {
                    return Err(bad(key));
                }
                run.segments.push(read(key, value)?);
            }
            Some(b'P') => {
                let parts: Vec<_> = read(key, value)?;
                self.loading_run(key)?.parts.extend(parts);
            }
            Some(b'T') => {
                let row = u64::from_be_bytes(number(key, 5)?);
                let trouble = load_trouble(key, value)?;
                self.loading_run(key)?.troubles.insert(row, trouble);
            }
            Some(b'W') => self.workers.load(key, value)?,
            Some(b'Z') => self.workers.load_slot(key, value)?,
            Some(b'X') => self.unreported_starts.load(key, value)?,
            Some(b'C') => self.clients.load(key, value)?,
            Some(b'J' | b'K' | b'Q') => self.stores.load(key, value)?,
            Some(b'A' | b'B' | b'G') => self.jobs.load(key, value)?,
            Some(b'D') => self.datasets.load(key, value)?,
            _ => self.trainings.load(key, value)?,
        }
        Ok(())
    }

    fn loading_run(&mut self, key: &[u8]) -> Result<&mut Run, LoadError> {
        let no = RunNo(u32::from_be_bytes(number(key, 1)?));
        Ok(self.runs.entry(no).or_insert_with(|| Run { no, ..Run::default() }))
    }

    fn derive(&mut self) {
        self.split_segments();
        self.clients.derive();
        self.tokens.derive();
        self.stores.derive();
        self.jobs.derive();
        for (no, run) in &mut self.runs {
            run.flight.mark_none();
            let name = (run.head.namespace.clone(), run.head.name.clone());
            self.run_names.insert(name, *no);
            self.namespaces.add_running(&run.head.namespace, run.head.counts.running);
            let times = run.troubles.iter().filter_map(|(row, t)| Some((t.not_before?, *row)));
            self.waiting.extend(times.map(|(at, row)| (at, *no, row)));
            if !run.flight.lapsed.is_empty() {
                self.lapsed_runs.insert(*no);
            }
        }
        self.workers.derive();
        self.workers.sessions().into_iter().for_each(|session| self.index_slots(session));
        let runs: Vec<RunNo> = self.runs.keys().copied().collect();
        runs.into_iter().for_each(|no| self.refresh_active(no));
        self.runs.values_mut().for_each(Run::derive_avoided);
        self.derive_incidents();
        self.derive_cordon_ends();
        self.derive_indexes();
        self.turn_changes.forget_loaded();
    }
}
