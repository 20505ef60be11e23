//! What files and uploads use: by namespace, by API key, and in all.
//!
//! *Invariant:* derived from the files and the uploads. Every change of a record changes the sums, so a check of a bound is
//! a lookup.
//! Absent: content that is being removed.

use crate::openai::file::{ApiFile, FileSpec};
use crate::openai::upload::Upload;
use std::collections::BTreeMap;

/// What one namespace has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoredUsage {
    /// Files.
    pub files: u64,
    /// Uploads that are not forgotten.
    pub uploads: u64,
    /// Bytes of files and of parts of pending uploads.
    pub bytes: u64,
}

/// The sums.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    /// By namespace; none that has nothing.
    namespaces: BTreeMap<String, StoredUsage>,
    /// Bytes by API key; none that has nothing.
    keys: BTreeMap<String, u64>,
    /// In all namespaces.
    files: u64,
    uploads: u64,
    pieces: u64,
}

/// A change of the sums.
#[derive(Clone, Copy, Default)]
struct Part {
    files: u64,
    uploads: u64,
    bytes: u64,
    pieces: u64,
}

fn of_file(file: &ApiFile) -> Part {
    let pieces = super::content::pieces_of(&file.content);
    Part { files: 1, bytes: file.bytes, pieces, ..Part::default() }
}

fn of_upload(upload: &Upload) -> Part {
    let (bytes, pieces) = (upload.received(), upload.pieces());
    Part { uploads: 1, bytes, pieces, ..Part::default() }
}

impl Usage {
    pub(super) fn add_file(&mut self, file: &ApiFile) {
        self.add(&file.spec, of_file(file));
    }

    pub(super) fn remove_file(&mut self, file: &ApiFile) {
        self.remove(&file.spec, of_file(file));
    }

    pub(super) fn add_upload(&mut self, upload: &Upload) {
        self.add(&upload.spec, of_upload(upload));
    }

    pub(super) fn remove_upload(&mut self, upload: &Upload) {
        self.remove(&upload.spec, of_upload(upload));
    }

    /// A pending upload has one part more.
    pub(super) fn add_part(&mut self, spec: &FileSpec, bytes: u64, pieces: u64) {
        self.add(spec, Part { bytes, pieces, ..Part::default() });
    }

    fn add(&mut self, spec: &FileSpec, more: Part) {
        let namespace = self.namespaces.entry(spec.namespace.clone()).or_default();
        namespace.files += more.files;
        namespace.uploads += more.uploads;
        namespace.bytes += more.bytes;
        if more.bytes > 0 && !spec.key.is_empty() {
            *self.keys.entry(spec.key.clone()).or_default() += more.bytes;
        }
        self.files += more.files;
        self.uploads += more.uploads;
        self.pieces += more.pieces;
    }

    fn remove(&mut self, spec: &FileSpec, less: Part) {
        if let Some(namespace) = self.namespaces.get_mut(&spec.namespace) {
            namespace.files -= less.files;
            namespace.uploads -= less.uploads;
            namespace.bytes -= less.bytes;
            if *namespace == StoredUsage::default() {
                self.namespaces.remove(&spec.namespace);
            }
        }
        if let Some(bytes) = self.keys.get_mut(&spec.key) {
            *bytes -= less.bytes;
            if *bytes == 0 {
                self.keys.remove(&spec.key);
            }
        }
        self.files -= less.files;
        self.uploads -= less.uploads;
        self.pieces -= less.pieces;
    }

    /// What a namespace has.
    pub(super) fn of(&self, namespace: &str) -> StoredUsage {
        self.namespaces.get(namespace).copied().unwrap_or_default()
    }

    /// Bytes of an API key.
    pub(super) fn key_bytes(&self, key: &str) -> u64 {
        self.keys.get(key).copied().unwrap_or_default()
    }

    /// Files in all namespaces.
    pub(super) fn files(&self) -> u64 {
        self.files
    }

    /// Uploads in all namespaces.
    pub(super) fn uploads(&self) -> u64 {
        self.uploads
    }

    /// Pieces in all namespaces.
    pub(super) fn pieces(&self) -> u64 {
        self.pieces
    }
}
