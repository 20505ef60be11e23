//! Owns: objects of other writers, read as an input: found by prefix, read in pieces.
//!
//! Invariant: every piece of an object is of the version that was found: a later change is an error, recognized by the
//! entity tag. Each host finds its own credentials.
//! Absent: digests, because such objects have none; and file systems, whose files have paths.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{GetOptions, ObjectStore};
use url::Url;

use super::remote::connect;
use super::{BLOB_BYTES_MAX, BlobError};

/// A bucket or container. Clones share connections.
#[derive(Debug, Clone)]
pub struct ObjectSource {
    store: Arc<dyn ObjectStore>,
    /// `s3://bucket/`
    base: String,
}

/// An object as it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceObject {
    location: Path,
    /// Its URL.
    pub url: String,
    /// Its length in bytes.
    pub bytes: u64,
    etag: Option<String>,
}

impl ObjectSource {
    /// The bucket of `s3://bucket/key`, `gs://bucket/key` or `az://container/key`, and the key. Makes no connection
    /// yet.
    pub fn open(url: &str) -> Result<(Self, String), BlobError> {
        let bad = |reason: &str| BlobError::Url { url: url.to_owned(), reason: reason.to_owned() };
        let (scheme, rest) = url.split_once("://").ok_or_else(|| bad("it has no scheme"))?;
        let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
        let base = format!("{scheme}://{bucket}/");
        let parsed = Url::parse(&base).map_err(|error| bad(&error.to_string()))?;
        let store = connect(&parsed)?;
        Ok((Self { store, base }, key.to_owned()))
    }

    /// The objects whose keys start with `prefix` up to its last slash and are wanted; at most `max` plus one.
    pub async fn list(
        &self,
        prefix: &str,
        max: usize,
        mut wanted: impl FnMut(&str) -> bool,
    ) -> Result<Vec<SourceObject>, BlobError> {
        let folder = prefix.rsplit_once('/').map(|(folder, _)| self.path(folder)).transpose()?;
        let mut listed = self.store.list(folder.as_ref());
        let mut found = Vec::new();
        while let Some(object) =
            listed.try_next().await.map_err(|error| self.error(prefix, error))?
        {
            if wanted(object.location.as_ref()) {
                found.push(self.object(object));
            }
            if found.len() > max {
                break;
            }
        }
        Ok(found)
    }

    /// The object with that key.
    pub async fn head(&self, key: &str) -> Result<SourceObject, BlobError> {
        let found = self.store.head(&self.path(key)?).await;
        found.map(|object| self.object(object)).map_err(|error| self.error(key, error))
    }

    /// A piece of an object, which ends where the object ends.
    pub async fn read(&self, object: &SourceObject, range: Range<u64>) -> Result<Bytes, BlobError> {
        let range = range.start..range.end.min(object.bytes);
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        let (len, key) = (range.end - range.start, object.location.as_ref());
        if len > BLOB_BYTES_MAX {
            return Err(BlobError::TooLarge { key: object.url.clone(), len, max: BLOB_BYTES_MAX });
        }
        let options = GetOptions {
            if_match: object.etag.clone(),
            range: Some(range.into()),
            ..GetOptions::default()
        };
        let got = self.store.get_opts(&object.location, options).await;
        let got = got.map_err(|error| self.error(key, error))?;
        // If the store has no tags, the length reveals a change.
        if got.meta.size != object.bytes {
            return Err(BlobError::Changed { key: object.url.clone() });
        }
        let bytes = got.bytes().await.map_err(|error| self.error(key, error))?;
        match bytes.len() as u64 == len {
            true => Ok(bytes),
            false => {
                let reason = format!("it sent {} bytes of {len}", bytes.len());
                Err(BlobError::Unavailable { key: object.url.clone(), reason })
            }
        }
    }

    /// A key as it is written: encoding would turn a key with `%` or `~` into another one.
    fn path(&self, key: &str) -> Result<Path, BlobError> {
        Path::parse(key).map_err(|error| BlobError::Url {
            url: format!("{}{key}", self.base),
            reason: error.to_string(),
        })
    }

    fn object(&self, object: object_store::ObjectMeta) -> SourceObject {
        let url = format!("{}{}", self.base, object.location);
        let (location, bytes, etag) = (object.location, object.size, object.e_tag);
        SourceObject { location, url, bytes, etag }
    }

    fn error(&self, key: &str, error: object_store::Error) -> BlobError {
        BlobError::from_remote(&format!("{}{key}", self.base), error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn put(source: &ObjectSource, key: &str, text: &'static str) {
        source.store.put(&source.path(key).unwrap(), Bytes::from(text).into()).await.unwrap();
    }

    #[tokio::test]
    async fn objects_are_found_by_prefix_and_read_in_pieces() {
        let (source, key) = ObjectSource::open("memory://in/data/a*.jsonl").unwrap();
        assert_eq!(key, "data/a*.jsonl");
        for (key, text) in [("data/a.jsonl", "0123456789"), ("data/b", "x"), ("other/a", "y")] {
            put(&source, key, text).await;
        }
        let mut seen = Vec::new();
        let wanted = |key: &str| {
            seen.push(key.to_owned());
            key.ends_with("a.jsonl")
        };
        let found = source.list("data/a", 10, wanted).await.unwrap();
        seen.sort();
        assert_eq!(seen, ["data/a.jsonl", "data/b"], "the folder alone is listed");
        assert_eq!((found.len(), found[0].bytes), (1, 10));
        assert_eq!(found[0].url, "memory://in/data/a.jsonl");
        assert_eq!(source.read(&found[0], 3..6).await.unwrap(), "345");
        assert_eq!(source.read(&found[0], 8..60).await.unwrap(), "89");
        assert!(source.read(&found[0], 10..60).await.unwrap().is_empty());
        assert_eq!(source.head("data/a.jsonl").await.unwrap(), found[0]);
        assert!(matches!(source.head("no").await, Err(BlobError::Missing { .. })));
    }

    #[tokio::test]
    async fn a_key_is_read_as_written_and_an_impossible_one_is_refused() {
        let (source, key) = ObjectSource::open("memory://odd/a~b%20c#{1}^/d%2F~.jsonl").unwrap();
        put(&source, &key, "0123").await;
        let found = source.head(&key).await.unwrap();
        assert_eq!(found.url, "memory://odd/a~b%20c#{1}^/d%2F~.jsonl");
        assert_eq!(source.read(&found, 1..3).await.unwrap(), "12");
        assert_eq!(source.list("a~b%20c#{1}^/d", 10, |_| true).await.unwrap(), [found]);
        for key in ["a//b", "a/../b"] {
            let error = source.head(key).await.unwrap_err();
            assert!(matches!(error, BlobError::Url { .. }), "{error}");
        }
    }

    #[tokio::test]
    async fn an_object_that_was_changed_is_not_read() {
        let (source, _) = ObjectSource::open("memory://changing/").unwrap();
        put(&source, "a", "before").await;
        let found = source.head("a").await.unwrap();
        put(&source, "a", "behind").await;
        let error = source.read(&found, 0..3).await.unwrap_err();
        assert!(matches!(error, BlobError::Changed { .. }), "{error}");
        assert!(!error.retryable());
    }

    #[test]
    fn a_url_with_credentials_or_of_an_unknown_kind_is_refused() {
        for url in ["s3://key:secret@bucket/a", "ftp://host/a", "nothing"] {
            assert!(matches!(ObjectSource::open(url), Err(BlobError::Url { .. })), "{url}");
        }
    }
}
