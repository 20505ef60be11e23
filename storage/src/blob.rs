//! Owns: immutable objects in an object store, or in a file system that every host sees.
//!
//! Invariant: when [`put`](BlobStore::put) returns, its object is durable; a [`get`](BlobStore::get) returns exactly
//! the bytes that its caller's digest names, or an error.
//! Absent: what objects mean, and which of them still count; readers follow the ledger, never a listing.

mod error;
mod file;
mod key;
mod remote;
mod source;
mod store_identity;

use std::sync::Arc;

use bytes::Bytes;

pub use self::error::BlobError;
use self::file::FileStore;
pub use self::key::{
    CONTENT_ROOT, checkpoint_key, checkpoint_prefix, content_key, content_prefix, evidence_key,
    folder_mark, manifest_key, part_key, run_folder, run_prefix, segment_key, training_prefix,
};
use self::remote::RemoteStore;
pub use self::source::{ObjectSource, SourceObject};
pub use self::store_identity::same_store;

/// The most bytes of one object.
pub const BLOB_BYTES_MAX: u64 = 256 << 20;

/// A reference to an object, as a ledger stores it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BlobRef {
    /// The object's name in its store.
    pub key: String,
    /// The blake3 digest of its bytes.
    pub digest: [u8; 32],
    /// Its length in bytes.
    pub len: u64,
}

/// An object store. Clones share connections.
#[derive(Debug, Clone)]
pub struct BlobStore {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    url: String,
    backend: Backend,
}

#[derive(Debug)]
enum Backend {
    File(FileStore),
    Remote(RemoteStore),
}

impl BlobStore {
    /// Opens `file:///dir`, `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix`, or `memory://name`,
    /// which exists only in this process. Credentials come from this host's own chain (environment, instance
    /// metadata). Makes no connection yet.
    pub fn open(url: &str) -> Result<Self, BlobError> {
        let parsed = url::Url::parse(url)
            .map_err(|error| BlobError::Url { url: url.to_owned(), reason: error.to_string() })?;
        let backend = match parsed.scheme() {
            "file" => {
                let root = parsed.to_file_path().map_err(|()| BlobError::Url {
                    url: url.to_owned(),
                    reason: "it needs an absolute path: file:///path".to_owned(),
                })?;
                Backend::File(FileStore::new(root))
            }
            _ => Backend::Remote(RemoteStore::open(&parsed)?),
        };
        Ok(Self { inner: Arc::new(Inner { url: url.to_owned(), backend }) })
    }

    /// The URL with which the store was opened.
    pub fn url(&self) -> &str {
        &self.inner.url
    }

    /// Writes an object; durable on return. Writing the same bytes again changes nothing.
    pub async fn put(&self, key: &str, bytes: Bytes) -> Result<BlobRef, BlobError> {
        key::check(key)?;
        let len = bytes.len() as u64;
        if len > BLOB_BYTES_MAX {
            return Err(BlobError::TooLarge { key: key.to_owned(), len, max: BLOB_BYTES_MAX });
        }
        let digest = *blake3::hash(&bytes).as_bytes();
        match &self.inner.backend {
            Backend::File(store) => store.put(key, bytes).await?,
            Backend::Remote(store) => store.put(key, bytes).await?,
        }
        Ok(BlobRef { key: key.to_owned(), digest, len })
    }

    /// Reads an object and checks its digest.
    pub async fn get(&self, key: &str, digest: &[u8; 32]) -> Result<Bytes, BlobError> {
        let bytes = self.read(key).await?;
        let found = blake3::hash(&bytes);
        // This comparison takes constant time, which is not required.
        if found != *digest {
            return Err(BlobError::Corrupt {
                key: key.to_owned(),
                expected: blake3::Hash::from_bytes(*digest).to_hex().to_string(),
                found: found.to_hex().to_string(),
            });
        }
        Ok(bytes)
    }

    /// The size of an object, without reading it.
    pub async fn size(&self, key: &str) -> Result<u64, BlobError> {
        key::check(key)?;
        match &self.inner.backend {
            Backend::File(store) => store.size(key).await,
            Backend::Remote(store) => store.size(key).await,
        }
    }

    /// Removes an object. It is not an error if it is gone already.
    pub async fn delete(&self, key: &str) -> Result<(), BlobError> {
        key::check(key)?;
        match &self.inner.backend {
            Backend::File(store) => store.delete(key).await,
            Backend::Remote(store) => store.delete(key).await,
        }
    }

    /// The keys that begin with the folder `prefix`, in order. For sweeping only: a listing may be stale.
    pub async fn list(&self, prefix: &str) -> Result<Vec<String>, BlobError> {
        key::check(prefix.trim_end_matches('/'))?;
        let prefix = prefix.trim_end_matches('/');
        let mut keys = match &self.inner.backend {
            Backend::File(store) => store.list(prefix).await?,
            Backend::Remote(store) => store.list(prefix).await?,
        };
        keys.sort_unstable();
        Ok(keys)
    }

    /// The names of the folders directly below the folder `prefix`, in order. For sweeping only, as [`list`](Self::list).
    pub async fn folders(&self, prefix: &str) -> Result<Vec<String>, BlobError> {
        key::check(prefix)?;
        let mut names = match &self.inner.backend {
            Backend::File(store) => store.folders(prefix).await?,
            Backend::Remote(store) => store.folders(prefix).await?,
        };
        names.sort_unstable();
        Ok(names)
    }

    /// Removes the empty directories of a folder to which nothing is written any more, in stores that have
    /// directories.
    pub async fn prune(&self, prefix: &str) -> Result<(), BlobError> {
        key::check(prefix)?;
        match &self.inner.backend {
            Backend::File(store) => store.prune(prefix).await,
            Backend::Remote(_) => Ok(()),
        }
    }

    /// Whether an empty folder may have had objects here. In a file system the folder above it shows that, because
    /// [`prune`](Self::prune) leaves it; if it is missing, this host sees another file system. Object stores have no
    /// folders, and a store that answers is the one that its URL names.
    pub async fn was_written(&self, prefix: &str) -> Result<bool, BlobError> {
        key::check(prefix)?;
        match &self.inner.backend {
            Backend::File(store) => store.was_written(prefix).await,
            Backend::Remote(_) => Ok(true),
        }
    }

    /// Removes temporary files that killed writers have left below a folder, but not those of live writers. Returns
    /// how many there were. An object store has no such files.
    pub async fn remove_abandoned(&self, prefix: &str) -> Result<u64, BlobError> {
        key::check(prefix.trim_end_matches('/'))?;
        match &self.inner.backend {
            Backend::File(store) => store.remove_abandoned(prefix.trim_end_matches('/')).await,
            Backend::Remote(_) => Ok(0),
        }
    }

    async fn read(&self, key: &str) -> Result<Bytes, BlobError> {
        key::check(key)?;
        match &self.inner.backend {
            Backend::File(store) => store.get(key).await,
            Backend::Remote(store) => store.get(key).await,
        }
    }
}
