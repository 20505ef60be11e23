//! A failure's long text, such as an engine's last output: an object of the run's store.
//!
//! Invariant: if the object is too large or cannot be read, the description has its name and the reason instead, and
//! nothing else fails. The printed text moves no cursor. Absent: what it means.

use rollout_batch::export::parts::{digest_of, fetch};
use rollout_proto::v1;
use rollout_storage::BlobStore;
use serde::Serialize;

use crate::output::u64_string;

/// How much of a text is read, in bytes.
const TEXT_BYTES_MAX: u64 = 1 << 20;

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Text {
    /// The object that has it.
    pub(super) key: String,
    /// Its blake3.
    pub(super) digest: String,
    #[serde(serialize_with = "u64_string")]
    pub(super) bytes: u64,
    /// Its content, if it was read.
    pub(super) content: Option<String>,
    /// Why it could not be read, if that was tried.
    pub(super) problem: Option<String>,
    #[serde(skip)]
    blob: v1::BlobRef,
}

impl From<v1::BlobRef> for Text {
    fn from(blob: v1::BlobRef) -> Self {
        let digest = digest_of(&blob).map(|digest| blake3::Hash::from_bytes(digest).to_hex());
        Self {
            key: blob.key.clone(),
            digest: digest.map(|hex| hex.to_string()).unwrap_or_default(),
            bytes: blob.bytes,
            content: None,
            problem: None,
            blob,
        }
    }
}

impl Text {
    pub(super) async fn read(&mut self, store: &BlobStore) {
        match content(store, &self.blob).await {
            Ok(content) => self.content = Some(content),
            Err(problem) => self.problem = Some(problem),
        }
    }

    /// Its content for a terminal, or why it is unknown.
    pub(super) fn display(&self) -> String {
        match (&self.content, &self.problem) {
            (Some(content), _) => plain(content),
            (None, Some(problem)) => format!("cannot be read: {problem}"),
            (None, None) => String::new(),
        }
    }
}

async fn content(store: &BlobStore, blob: &v1::BlobRef) -> Result<String, String> {
    if blob.bytes > TEXT_BYTES_MAX {
        return Err(format!("{} bytes are more than the {TEXT_BYTES_MAX} shown", blob.bytes));
    }
    let digest = digest_of(blob).map_err(|error| error.to_string())?;
    let bytes = fetch(store, &blob.key, &digest).await.map_err(|error| error.to_string())?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Removes control sequences: an engine may print anything.
fn plain(text: &str) -> String {
    text.chars().filter(|c| matches!(c, '\n' | '\t') || !c.is_control()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blob(key: &str, bytes: &[u8]) -> v1::BlobRef {
        let digest = blake3::hash(bytes).as_bytes().to_vec().into();
        v1::BlobRef { key: key.into(), digest, bytes: bytes.len() as u64 }
    }

    #[tokio::test]
    async fn a_text_is_read_or_the_reason_is_printed() {
        let store = BlobStore::open("memory://texts").unwrap();
        let said = b"device \x1b[31mlost\x1b[0m\n";
        store.put("runs/d/r/evidence/ab", said.to_vec().into()).await.unwrap();
        let mut text = Text::from(blob("runs/d/r/evidence/ab", said));
        text.read(&store).await;
        assert_eq!(text.content.as_deref().map(str::as_bytes), Some(&said[..]));
        assert_eq!(text.display(), "device [31mlost[0m\n");
        let mut gone = Text::from(blob("runs/d/r/evidence/cd", b"x"));
        gone.read(&store).await;
        assert!(gone.content.is_none() && gone.display().contains("evidence/cd"), "{gone:?}");
        let large = v1::BlobRef { bytes: 1 << 30, ..blob("runs/d/r/evidence/ab", said) };
        let mut large = Text::from(large);
        large.read(&store).await;
        assert!(large.display().contains("1073741824 bytes"), "{large:?}");
    }
}
