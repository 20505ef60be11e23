//! All files and uploads, their indexes, and which of their records differ from the image.
//!
//! *Invariant:* the indexes and sums are derived from the records, and only this file adds and removes records. Content
//! that leaves a file or an upload is listed in [`Removals`] in the same step.
//!
//! Absent: what an operation may do, which each operation's own file decides.

use crate::kernel::deadline_queue::DeadlineQueue;
use crate::kernel::id::LedgerMs;
use crate::kernel::limits;
use crate::machine::invariants::ensure;
use crate::openai::content::{Extent, bytes_of};
use crate::openai::file::{ApiFile, FilePurpose};
use crate::openai::removals::Removals;
use crate::openai::upload::{Upload, UploadState};
use crate::openai::usage::Usage;
use std::collections::{BTreeMap, BTreeSet};

/// Files of a namespace in the order of their ids: all of them, and those of each purpose.
pub(super) type FileOrder = BTreeSet<(Option<FilePurpose>, String)>;

/// All files and uploads.
#[derive(Clone, Debug, Default)]
pub(crate) struct ApiFiles {
    pub(super) files: BTreeMap<String, ApiFile>,
    pub(super) uploads: BTreeMap<String, Upload>,
    pub(super) removals: Removals,
    // Derived.
    /// By namespace; none that has no file.
    pub(super) order: BTreeMap<String, FileOrder>,
    /// Files by namespace and hash of the idempotency key.
    requests: BTreeMap<(String, [u8; 16]), String>,
    pub(super) usage: Usage,
    file_ends: DeadlineQueue<String>,
    upload_ends: DeadlineQueue<String>,
    pub(super) dirty_files: BTreeSet<String>,
    pub(super) dirty_uploads: BTreeSet<String>,
}

impl ApiFiles {
    /// The id of the file that was created with an idempotency key.
    pub(super) fn of_request(&self, namespace: &str, request: [u8; 16]) -> Option<&str> {
        self.requests.get(&(namespace.to_owned(), request)).map(String::as_str)
    }

    /// Adds a file, whose id is free.
    pub(super) fn add_file(&mut self, id: String, file: ApiFile) {
        self.index_file(&id, &file);
        self.dirty_files.insert(id.clone());
        self.files.insert(id, file);
    }

    /// Removes a file, and lists its content as removed. Returns the number of its folders.
    pub(super) fn remove_file(&mut self, id: &str, now: LedgerMs) -> usize {
        let Some(file) = self.files.remove(id) else { return 0 };
        self.dirty_files.insert(id.to_owned());
        self.file_ends.set(&id.to_owned(), None);
        self.usage.remove_file(&file);
        let namespace = &file.spec.namespace;
        if let Some(order) = self.order.get_mut(namespace) {
            for purpose in [None, Some(file.spec.purpose)] {
                order.remove(&(purpose, id.to_owned()));
            }
            if order.is_empty() {
                self.order.remove(namespace);
            }
        }
        if let Some(request) = file.request {
            self.requests.remove(&(namespace.clone(), request));
        }
        let folders = file.content.len();
        for Extent { folder, .. } in file.content {
            self.removals.add(namespace, folder, now);
        }
        folders
    }

    /// One more batch that has not ended uses a file.
    pub(super) fn add_user(&mut self, id: &str) {
        self.change_users(id, |users| users + 1);
    }

    /// A batch that used a file has ended.
    pub(super) fn remove_user(&mut self, id: &str) {
        self.change_users(id, |users| users.saturating_sub(1));
    }

    fn change_users(&mut self, id: &str, change: impl FnOnce(u32) -> u32) {
        let Some(file) = self.files.get_mut(id) else { return };
        file.users = change(file.users);
        self.file_ends.set(&id.to_owned(), file.due());
        self.dirty_files.insert(id.to_owned());
    }

    /// Adds an upload, whose id is free.
    pub(super) fn add_upload(&mut self, id: String, upload: Upload) {
        self.index_upload(&id, &upload);
        self.dirty_uploads.insert(id.clone());
        self.uploads.insert(id, upload);
    }

    /// Adds a part to a pending upload, which has none of that id.
    pub(super) fn add_part(&mut self, upload: &str, id: String, part: Extent) {
        let Some(found) = self.uploads.get_mut(upload) else { return };
        self.usage.add_part(&found.spec, part.bytes(), part.pieces.len() as u64);
        found.parts.insert(id, part);
        self.dirty_uploads.insert(upload.to_owned());
    }

    /// Ends a pending upload. The content of these parts, in this order, is returned. That of the others is listed as
    /// removed.
    pub(super) fn end_upload(
        &mut self,
        id: &str,
        state: UploadState,
        parts: &[String],
        now: LedgerMs,
    ) -> Vec<Extent> {
        let Some(upload) = self.uploads.get_mut(id) else { return Vec::new() };
        self.usage.remove_upload(upload);
        let mut of_upload = std::mem::take(&mut upload.parts);
        upload.state = state;
        self.usage.add_upload(upload);
        let taken = parts.iter().filter_map(|part| of_upload.remove(part)).collect();
        let namespace = upload.spec.namespace.clone();
        for Extent { folder, .. } in of_upload.into_values() {
            self.removals.add(&namespace, folder, now);
        }
        self.dirty_uploads.insert(id.to_owned());
        taken
    }

    /// Forgets an upload, and lists the content of its parts as removed. Returns the number of its parts.
    fn forget_upload(&mut self, id: &str, now: LedgerMs) -> usize {
        let Some(upload) = self.uploads.remove(id) else { return 0 };
        self.usage.remove_upload(&upload);
        self.upload_ends.set(&id.to_owned(), None);
        self.dirty_uploads.insert(id.to_owned());
        let parts = upload.parts.len();
        for Extent { folder, .. } in upload.parts.into_values() {
            self.removals.add(&upload.spec.namespace, folder, now);
        }
        parts
    }

    /// When the next file or upload expires, or the next removed content is forgotten.
    pub(crate) fn next_end(&self) -> Option<LedgerMs> {
        let ends = [self.file_ends.first(), self.upload_ends.first(), self.removals.next_end()];
        ends.into_iter().flatten().min()
    }

    /// Ends what is due, within the bound of a `Tick`. The rest stays due.
    pub(crate) fn end_due(&mut self, now: LedgerMs) {
        let mut room = limits::TICK_FOLDERS_MAX;
        while room > 0
            && let Some(id) = self.file_ends.first_by(now).cloned()
        {
            room = room.saturating_sub(1 + self.remove_file(&id, now));
        }
        while room > 0
            && let Some(id) = self.upload_ends.first_by(now).cloned()
        {
            room = room.saturating_sub(1 + self.forget_upload(&id, now));
        }
        self.removals.forget_due(now, room);
    }

    fn index_file(&mut self, id: &str, file: &ApiFile) {
        self.file_ends.set(&id.to_owned(), file.due());
        self.usage.add_file(file);
        let order = self.order.entry(file.spec.namespace.clone()).or_default();
        for purpose in [None, Some(file.spec.purpose)] {
            order.insert((purpose, id.to_owned()));
        }
        if let Some(request) = file.request {
            self.requests.insert((file.spec.namespace.clone(), request), id.to_owned());
        }
    }

    fn index_upload(&mut self, id: &str, upload: &Upload) {
        self.upload_ends.set(&id.to_owned(), Some(upload.ends_at));
        self.usage.add_upload(upload);
    }

    /// Rebuilds what is derived.
    pub(crate) fn derive(&mut self) {
        let (files, uploads) = (std::mem::take(&mut self.files), std::mem::take(&mut self.uploads));
        files.iter().for_each(|(id, file)| self.index_file(id, file));
        uploads.iter().for_each(|(id, upload)| self.index_upload(id, upload));
        (self.files, self.uploads) = (files, uploads);
        self.removals.derive();
    }

    /// Checks the invariants of files and uploads.
    pub(crate) fn check(&self) -> Result<(), String> {
        let (files, uploads) = (self.files.clone(), self.uploads.clone());
        let mut own = Self { files, uploads, ..Self::default() };
        own.derive();
        ensure!(own.usage == self.usage, "files use {:?}, not {:?}", own.usage, self.usage);
        ensure!(own.order == self.order, "the order of files differs");
        ensure!(own.requests == self.requests, "the idempotency keys of files differ");
        ensure!(own.file_ends == self.file_ends, "files expire at {:?}", own.file_ends);
        ensure!(own.upload_ends == self.upload_ends, "uploads expire at {:?}", own.upload_ends);
        for (id, file) in &self.files {
            ensure!(file.bytes == bytes_of(&file.content), "file {id} has another length");
            self.check_folders(&file.spec.namespace, &file.content)?;
        }
        for (id, upload) in &self.uploads {
            let pending = upload.state == UploadState::Pending;
            ensure!(pending || upload.parts.is_empty(), "upload {id} has ended and has parts");
            upload.parts.values().try_for_each(|part| {
                self.check_folders(&upload.spec.namespace, std::slice::from_ref(part))
            })?;
        }
        self.removals.check()
    }

    fn check_folders(&self, namespace: &str, content: &[Extent]) -> Result<(), String> {
        for Extent { folder, .. } in content {
            ensure!(!self.removals.contains(namespace, folder), "{folder} is named and removed");
        }
        Ok(())
    }
}
