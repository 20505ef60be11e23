//! Owns: the proof that this worker can use the cluster's store: it reads an object that the leader wrote, and writes
//! its own.
//!
//! Invariant: each probe writes different bytes, so an object left by an earlier probe proves nothing.
//! Absent: the stores of individual runs. A run whose store refuses is paused.

use std::time::Duration;

use rollout_proto::{Client, ClientError, services, v1};
use rollout_storage::BlobStore;
use tokio::time::timeout;

use crate::config::Config;
use crate::stores::Stores;

/// The limit of reading one object, and of writing the other.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);

/// Why this worker cannot use the cluster's store, if it cannot.
pub(crate) async fn probe(
    client: &Client,
    stores: &Stores,
    config: &Config,
) -> Result<Option<String>, ClientError> {
    let answer = client
        .with_leader("probe", |channel| async move {
            services::worker(channel).probe(v1::ProbeRequest {}).await
        })
        .await?;
    let own = own_key(&client.cluster_id(), config);
    Ok(check(stores, &answer.store_url, answer.probe, &own).await.err())
}

/// One object for each worker: a probe that ends before it has removed its object leaves at most one.
fn own_key(cluster: &str, config: &Config) -> String {
    format!("probes/{cluster}/workers/{}.{}", config.namespace, config.name)
}

async fn check(
    stores: &Stores,
    url: &str,
    written: Option<v1::BlobRef>,
    own: &str,
) -> Result<(), String> {
    stores.set_cluster(url);
    let store =
        stores.get("").map_err(|error| format!("the store {url} cannot be used: {error}"))?;
    if let Some(blob) = written {
        let read = timeout(PROBE_TIMEOUT, read(&store, &blob)).await.unwrap_or_else(|_| late());
        read.map_err(|error| format!("the store {url} cannot be read here: {error}"))?;
    }
    let write = timeout(PROBE_TIMEOUT, write(&store, own)).await.unwrap_or_else(|_| late());
    write.map_err(|error| format!("the store {url} cannot be written here: {error}"))
}

async fn read(store: &BlobStore, blob: &v1::BlobRef) -> Result<(), String> {
    let digest = <[u8; 32]>::try_from(&blob.digest[..]).map_err(|_| "the probe has no digest")?;
    store.get(&blob.key, &digest).await.map(|_| ()).map_err(|error| error.to_string())
}

async fn write(store: &BlobStore, key: &str) -> Result<(), String> {
    let bytes = format!("rollout worker probe {:032x}\n", rand::random::<u128>());
    store.put(key, bytes.into()).await.map_err(|error| error.to_string())?;
    // Workers need no permission to delete.
    if let Err(error) = store.delete(key).await {
        tracing::warn!(%error, key, "cannot remove this worker's probe; it stays in the store");
    }
    Ok(())
}

fn late() -> Result<(), String> {
    Err(format!("no answer in {} s", PROBE_TIMEOUT.as_secs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_store_that_can_be_read_and_not_written_is_reported_and_no_probe_stays() {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("file://{}", dir.path().display());
        let blob = BlobStore::open(&url).unwrap().put("from/leader", "x".into()).await.unwrap();
        let digest = blob.digest.to_vec().into();
        let blob = v1::BlobRef { key: blob.key, digest, bytes: blob.len };
        let config = Config { name: "w1".into(), ..Config::default() };
        let (stores, own) = (Stores::new(Vec::new()), own_key("ab", &config));
        let check = async || check(&stores, &url, Some(blob.clone()), &own).await;
        assert_eq!(check().await, Ok(()));
        let workers = dir.path().join("probes/ab/workers");
        assert_eq!(std::fs::read_dir(&workers).unwrap().count(), 0);
        // A file in place of the folder: no identity can write through it, including root.
        std::fs::remove_dir(&workers).unwrap();
        std::fs::write(&workers, b"in the way").unwrap();
        let why = check().await.unwrap_err();
        assert!(why.starts_with(&format!("the store {url} cannot be written here: ")), "{why}");
        std::fs::remove_file(dir.path().join("from/leader")).unwrap();
        let why = check().await.unwrap_err();
        assert!(why.ends_with("cannot be read here: object from/leader is missing"), "{why}");
    }
}
