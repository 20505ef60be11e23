//! Owns: objects in S3, Google Cloud Storage, Azure Blob Storage, or this process's memory.
//!
//! Invariant: each host finds its own credentials; a URL, which members share, never contains any. An object of several
//! parts exists only when all of them do; an upload that fails removes its parts.
//! Absent: resuming an interrupted upload; it starts again. If a process dies during an upload, the bucket's lifecycle
//! rule removes the parts.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use futures::TryStreamExt;
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, RetryConfig};
use parking_lot::Mutex;
use url::Url;

use super::{BLOB_BYTES_MAX, BlobError};

/// Objects above this size are uploaded in parts, so that a lost connection costs one part and not all.
const IN_PARTS_ABOVE: usize = 16 << 20;
/// Bytes of a part. S3 requires at least 5 MiB, except for the last.
const PART_BYTES: usize = 8 << 20;
/// Parts of one object that are uploaded concurrently.
const PARTS_AT_A_TIME: usize = 4;

/// Stores of `memory://`, by URL, so that the whole process sees the same objects.
static MEMORY: OnceLock<Mutex<HashMap<String, Arc<InMemory>>>> = OnceLock::new();

#[derive(Debug)]
pub(super) struct RemoteStore {
    store: Arc<dyn ObjectStore>,
    prefix: Path,
}

impl RemoteStore {
    pub(super) fn open(url: &Url) -> Result<Self, BlobError> {
        let bad = |reason: String| BlobError::Url { url: url.to_string(), reason };
        let store = connect(url)?;
        let prefix = Path::from_url_path(url.path()).map_err(|error| bad(error.to_string()))?;
        Ok(Self { store, prefix })
    }

    pub(super) async fn put(&self, key: &str, bytes: Bytes) -> Result<(), BlobError> {
        let path = self.path(key);
        let outcome = match bytes.len() > IN_PARTS_ABOVE {
            true => match self.put_in_parts(&path, bytes.clone()).await {
                Err(error) if self.holds(&path, &bytes).await => {
                    tracing::info!(key, %error, "the object is complete although its upload failed");
                    Ok(())
                }
                outcome => outcome,
            },
            false => self.store.put(&path, bytes.into()).await.map(|_| ()),
        };
        outcome.map_err(|error| BlobError::from_remote(key, error))
    }

    async fn put_in_parts(&self, path: &Path, bytes: Bytes) -> object_store::Result<()> {
        let mut upload = self.store.put_multipart(path).await?;
        let starts: Vec<usize> = (0..bytes.len()).step_by(PART_BYTES).collect();
        let outcome = async {
            for group in starts.chunks(PARTS_AT_A_TIME) {
                let parts = group.iter().map(|&start| {
                    let end = bytes.len().min(start + PART_BYTES);
                    upload.put_part(bytes.slice(start..end).into())
                });
                // Wait for all parts before aborting the upload: a part that arrives later would stay.
                let parts = futures::future::join_all(parts.collect::<Vec<_>>()).await;
                parts.into_iter().collect::<object_store::Result<Vec<()>>>()?;
            }
            upload.complete().await.map(|_| ())
        };
        let outcome = outcome.await;
        if outcome.is_err() {
            // Best effort: without it the parts stay until the bucket's lifecycle rule removes them.
            let _ = upload.abort().await;
        }
        outcome
    }

    /// Whether the object is there with these bytes. If the answer to a completion was lost, its retry is refused,
    /// because the upload no longer exists.
    async fn holds(&self, path: &Path, bytes: &Bytes) -> bool {
        let Ok(found) = self.store.get(path).await else { return false };
        found.meta.size == bytes.len() as u64
            && found.bytes().await.is_ok_and(|found| found == *bytes)
    }

    pub(super) async fn get(&self, key: &str) -> Result<Bytes, BlobError> {
        let failed = |error| BlobError::from_remote(key, error);
        let found = self.store.get(&self.path(key)).await.map_err(failed)?;
        if found.meta.size > BLOB_BYTES_MAX {
            let (key, len) = (key.to_owned(), found.meta.size);
            return Err(BlobError::TooLarge { key, len, max: BLOB_BYTES_MAX });
        }
        found.bytes().await.map_err(failed)
    }

    pub(super) async fn size(&self, key: &str) -> Result<u64, BlobError> {
        let found = self.store.head(&self.path(key)).await;
        found.map(|object| object.size).map_err(|error| BlobError::from_remote(key, error))
    }

    pub(super) async fn delete(&self, key: &str) -> Result<(), BlobError> {
        match self.store.delete(&self.path(key)).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(BlobError::from_remote(key, error)),
        }
    }

    pub(super) async fn list(&self, prefix: &str) -> Result<Vec<String>, BlobError> {
        let listed = self.store.list(Some(&self.path(prefix)));
        let objects: Vec<_> =
            listed.try_collect().await.map_err(|error| BlobError::from_remote(prefix, error))?;
        let skip = self.prefix.as_ref().len() + usize::from(!self.prefix.as_ref().is_empty());
        let key = |object: object_store::ObjectMeta| {
            object.location.as_ref().get(skip..).map(str::to_owned)
        };
        Ok(objects.into_iter().filter_map(key).collect())
    }

    pub(super) async fn folders(&self, prefix: &str) -> Result<Vec<String>, BlobError> {
        let listed = self.store.list_with_delimiter(Some(&self.path(prefix))).await;
        let listed = listed.map_err(|error| BlobError::from_remote(prefix, error))?;
        let name = |folder: Path| folder.filename().map(str::to_owned);
        Ok(listed.common_prefixes.into_iter().filter_map(name).collect())
    }

    fn path(&self, key: &str) -> Path {
        self.prefix.parts().chain(Path::from(key).parts()).collect()
    }
}

/// The client of a URL's bucket.
pub(super) fn connect(url: &Url) -> Result<Arc<dyn ObjectStore>, BlobError> {
    let bad = |reason: String| BlobError::Url { url: url.to_string(), reason };
    if url.password().is_some() || !url.username().is_empty() || url.query().is_some() {
        let reason = "credentials and options come from each host's environment, not from the URL";
        return Err(bad(reason.to_owned()));
    }
    let store: Result<Arc<dyn ObjectStore>, object_store::Error> = match url.scheme() {
        "s3" => AmazonS3Builder::from_env()
            .with_url(url.as_str())
            .with_retry(retries())
            .build()
            .map(|store| Arc::new(store) as _),
        "gs" => GoogleCloudStorageBuilder::from_env()
            .with_url(url.as_str())
            .with_retry(retries())
            .build()
            .map(|store| Arc::new(store) as _),
        "az" => MicrosoftAzureBuilder::from_env()
            .with_url(url.as_str())
            .with_retry(retries())
            .build()
            .map(|store| Arc::new(store) as _),
        "memory" => {
            let stores = MEMORY.get_or_init(Mutex::default);
            Ok(stores.lock().entry(url.to_string()).or_default().clone())
        }
        other => {
            let supported = "use file, s3, gs, az or memory";
            return Err(bad(format!("scheme {other:?} is unknown, {supported}")));
        }
    };
    store.map_err(|error| bad(error.to_string()))
}

/// Short retries within one call; callers decide about longer ones.
fn retries() -> RetryConfig {
    RetryConfig { max_retries: 3, retry_timeout: Duration::from_secs(30), ..RetryConfig::default() }
}
