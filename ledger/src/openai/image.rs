//! Image records of files, uploads and removed content.
//!
//! *Invariant:* as in [`crate::machine::image`]. Keys: `E\x02` and the id of a file; `E\x03` and that of an upload; `E\x04`,
//! a namespace, a slash and a folder. They are below the tag of join tokens, whose names begin with a letter or digit: no
//! letter is left.

use crate::kernel::codec;
use crate::machine::image::{ImageDelta, key};
use crate::machine::image_load::{LoadError, bad, read};
use crate::openai::files::ApiFiles;
use crate::openai::removals::FolderKey;

const FILE: u8 = 2;
const UPLOAD: u8 = 3;
const REMOVAL: u8 = 4;

fn file_key(id: &str) -> Vec<u8> {
    key(b'E', &[&[FILE], id.as_bytes()])
}

fn upload_key(id: &str) -> Vec<u8> {
    key(b'E', &[&[UPLOAD], id.as_bytes()])
}

fn removal_key((namespace, folder): &FolderKey) -> Vec<u8> {
    key(b'E', &[&[REMOVAL], namespace.as_bytes(), b"/", folder.as_bytes()])
}

impl ApiFiles {
    /// Whether a record with this key is one of a file, an upload or removed content.
    pub(crate) fn owns(key: &[u8]) -> bool {
        matches!(key, [b'E', FILE | UPLOAD | REMOVAL, ..])
    }

    /// Takes the records that changed since the last call.
    pub(crate) fn drain(&mut self, delta: &mut ImageDelta) {
        for id in std::mem::take(&mut self.dirty_files) {
            delta.set(file_key(&id), self.files.get(&id).map(codec::encode));
        }
        for id in std::mem::take(&mut self.dirty_uploads) {
            delta.set(upload_key(&id), self.uploads.get(&id).map(codec::encode));
        }
        for folder in self.removals.take_dirty() {
            delta.set(removal_key(&folder), self.removals.get(&folder).map(codec::encode));
        }
    }

    /// Forgets which records differ from the image, because there is no image yet.
    pub(crate) fn forget_dirty(&mut self) {
        self.dirty_files.clear();
        self.dirty_uploads.clear();
        self.removals.take_dirty();
    }

    pub(crate) fn each_record(&self, each: &mut impl FnMut(&[u8], &[u8])) {
        for (id, file) in &self.files {
            each(&file_key(id), &codec::encode(file));
        }
        for (id, upload) in &self.uploads {
            each(&upload_key(id), &codec::encode(upload));
        }
        // A namespace whose name begins with that of another one may come before it in the order of keys.
        let removals = self.removals.iter();
        let mut removals: Vec<_> = removals.map(|(folder, of)| (removal_key(folder), of)).collect();
        removals.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        for (key, removal) in removals {
            each(&key, &codec::encode(removal));
        }
    }

    /// Reads a record.
    pub(crate) fn load(&mut self, key: &[u8], value: &[u8]) -> Result<(), LoadError> {
        let rest = key.get(2..).and_then(|rest| std::str::from_utf8(rest).ok());
        let rest = rest.ok_or_else(|| bad(key))?;
        match key.get(1) {
            Some(&FILE) => drop(self.files.insert(rest.into(), read(key, value)?)),
            Some(&UPLOAD) => drop(self.uploads.insert(rest.into(), read(key, value)?)),
            Some(&REMOVAL) => {
                let (namespace, folder) = rest.split_once('/').ok_or_else(|| bad(key))?;
                self.removals.load((namespace.into(), folder.into()), read(key, value)?);
            }
            _ => return Err(bad(key)),
        }
        Ok(())
    }
}
