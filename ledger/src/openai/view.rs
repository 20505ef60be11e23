//! Files and uploads as readers see them.
//!
//! *Invariant:* a page begins after an id, not after a number of files. So a reader that deletes files while it lists them
//! skips none. The cost of a page grows with the page alone.
//! Absent: who may see what. The caller compares namespaces.

use crate::machine::ledger::Ledger;
use crate::openai::content::Extent;
use crate::openai::file::{ApiFile, FilePurpose};
use crate::openai::upload::{Upload, file_of_upload, upload_of_part};
use crate::openai::usage::StoredUsage;
use std::ops::Bound::{Excluded, Included};

/// Which files a page has.
#[derive(Clone, Copy, Debug)]
pub struct FilePage<'a> {
    /// The namespace.
    pub namespace: &'a str,
    /// Only files of this purpose.
    pub purpose: Option<FilePurpose>,
    /// Only files that come after this id, whether or not that file still exists.
    pub after: Option<&'a str>,
    /// Whether the newest come first.
    pub descending: bool,
    /// The most files.
    pub max: usize,
}

impl Ledger {
    /// The file with that id, in whichever namespace.
    pub fn api_file(&self, id: &str) -> Option<&ApiFile> {
        self.api_files.files.get(id)
    }

    /// The id of the file that was created with an idempotency key of this hash.
    pub fn api_file_of_request(&self, namespace: &str, request: [u8; 16]) -> Option<&str> {
        self.api_files.of_request(namespace, request)
    }

    /// A page of files by id, and whether more follow.
    pub fn api_file_page(&self, page: FilePage<'_>) -> (Vec<(&str, &ApiFile)>, bool) {
        let Some(order) = self.api_files.order.get(page.namespace) else {
            return (Vec::new(), false);
        };
        let bound = |id: &str| (page.purpose, id.to_owned());
        // No id is that large.
        let (first, end) = (bound(""), bound("\u{10ffff}"));
        let range = match (page.after, page.descending) {
            (None, _) => (Included(first), Excluded(end)),
            (Some(after), false) => (Excluded(bound(after)), Excluded(end)),
            (Some(after), true) => (Included(first), Excluded(bound(after))),
        };
        let is_empty = matches!(&range, (Included(a) | Excluded(a), Excluded(b)) if a >= b);
        if is_empty {
            return (Vec::new(), false);
        }
        let ids = order.range(range);
        let mut ids: Box<dyn Iterator<Item = &(Option<FilePurpose>, String)>> =
            if page.descending { Box::new(ids.rev()) } else { Box::new(ids) };
        let of = |id: &'_ str| self.api_files.files.get_key_value(id);
        let files = ids.by_ref().take(page.max).filter_map(|(_, id)| of(id));
        let files = files.map(|(id, file)| (id.as_str(), file)).collect();
        (files, ids.next().is_some())
    }

    /// The upload with that id, in whichever namespace.
    pub fn api_upload(&self, id: &str) -> Option<&Upload> {
        self.api_files.uploads.get(id)
    }

    /// What files and uploads of a namespace use.
    pub fn stored_usage(&self, namespace: &str) -> StoredUsage {
        self.api_files.usage.of(namespace)
    }

    /// Bytes of files and of parts of pending uploads that count for an API key.
    pub fn stored_bytes_of_key(&self, key: &str) -> u64 {
        self.api_files.usage.key_bytes(key)
    }

    /// Some folders, with their namespaces, whose objects are to be removed, after this one.
    pub fn removable_content(
        &self,
        after: Option<&(String, String)>,
        max: usize,
    ) -> Vec<(String, String)> {
        self.api_files.removals.pending(after, max).cloned().collect()
    }

    /// Whether a file, an upload or the garbage collector has a folder that was written under this id.
    pub fn has_content(&self, namespace: &str, folder: &str, id: &str) -> bool {
        let named = |content: &[Extent]| content.iter().any(|extent| extent.folder == folder);
        let of_file = |id: &str| {
            let file = self.api_files.files.get(id);
            file.is_some_and(|f| f.spec.namespace == namespace && named(&f.content))
        };
        if self.api_files.removals.contains(namespace, folder) || of_file(id) {
            return true;
        }
        let Some(upload) = upload_of_part(id) else { return false };
        let of_upload = self.api_files.uploads.get(&upload).is_some_and(|upload| {
            upload.spec.namespace == namespace
                && upload.parts.get(id).is_some_and(|part| part.folder == folder)
        });
        of_upload || of_file(&file_of_upload(&upload))
    }
}
