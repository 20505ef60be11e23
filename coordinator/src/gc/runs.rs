//! Garbage collection of runs on the leader: seals ended runs in manifests, sweeps objects that no manifest names, and
//! removes the objects of deleted runs.
//!
//! *Invariant:* objects first, then the command that relies on them: a manifest is durable before `Seal` is proposed,
//! and every object of a run is gone before `ForgetRun` is. Each step may be repeated, so a new leader starts again
//! where the old one stopped. Only a sealed run is swept: the leader removes objects that the manifest does not name. A
//! sealed run never resumes and accepts no results, so a late or deposed leader removes the same objects. `Seal` names
//! the end of the run that its manifest describes; if the run was resumed since, the ledger refuses it. A store without
//! the run's own objects does not count as the run's store: the leader writes nothing there, and counts nothing as
//! gone.
//!
//! Absent: objects that belong to no run (`gc::orphans`), and the bytes of rows. A manifest lists
//! where results are; it contains none.

use crate::gc::run_stores::RunStores;
use crate::leader::convert::{self, Kind};
use crate::leader::ledger_read::ReadLedger;
use crate::leader::retries::Retries;
use crate::leader::state::LeaderState;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{StreamExt, TryStreamExt};
use prost::Message;
use rollout_config::coordinator::Retention;
use rollout_ledger::id::{RunNo, SegmentNo};
use rollout_ledger::view::{RunView, SegmentView};
use rollout_ledger::{BlobRef, OpKind, op};
use rollout_proto::v1;
use rollout_storage::{BlobError, BlobStore};
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::MissedTickBehavior;

/// How often the leader checks whether a step is due.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long objects that could not be written or removed are left alone.
pub(crate) const AGAIN_AFTER: Duration = Duration::from_secs(30);
/// Pause after the first failure of a run. It doubles with each failure, up to [`AGAIN_AFTER`].
const PAUSE: Duration = Duration::from_secs(1);
/// Runs processed concurrently.
const AT_A_TIME: usize = 8;
/// Segments that one object of a manifest lists: at most about two megabytes.
const CHUNK_SEGMENTS: u32 = 64;
/// Objects removed concurrently.
const REMOVALS: usize = 16;
/// The kinds of objects that are swept, and the metrics that count them.
const SWEPT: [(&str, &str); 3] = [
    ("parts", "rollout_parts_swept_total"),
    ("evidence", "rollout_evidence_swept_total"),
    ("manifest", "rollout_manifests_swept_total"),
];
/// Version of the manifest's messages.
const FORMAT: u32 = 1;

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GcError {
    #[error(transparent)]
    Store(#[from] BlobError),
    #[error("{0}")]
    NotListed(String),
    #[error("{url} seems to be another store here, or not mounted: {why}")]
    Elsewhere { url: String, why: String },
    #[error("{key}: {why}")]
    Unreadable { key: String, why: String },
    #[error("the ledger refused: {0}")]
    Refused(String),
    #[error("this member no longer leads: {0}")]
    Deposed(String),
}

/// The steps of a run's collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Seal,
    Sweep,
    Delete,
    Forget,
}

/// Runs due steps for as long as the epoch lasts, a few runs concurrently. A failing run delays no other.
pub(crate) async fn collect_runs(
    leader: Arc<LeaderState>,
    stores: RunStores,
    retention: Retention,
) {
    let mut retries = Retries::new(PAUSE, AGAIN_AFTER);
    let mut under_way = BTreeSet::new();
    let mut steps = FuturesUnordered::<BoxFuture<'static, ((RunNo, Step), bool)>>::new();
    let mut look = tokio::time::interval(LOOK_EVERY);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            Some((at, done)) = steps.next() => {
                under_way.remove(&at);
                if !done {
                    retries.failed(at);
                }
                continue;
            }
            _ = look.tick() => {}
        }
        let mut due = due(&leader, &retention);
        retries.keep(&due);
        due.retain(|at| !under_way.contains(at));
        for at in retries.ready(due, AT_A_TIME) {
            if steps.len() < AT_A_TIME && under_way.insert(at) {
                let (leader, stores) = (leader.clone(), stores.clone());
                steps.push(Box::pin(async move { (at, take(&leader, &stores, at).await) }));
            }
        }
    }
}

fn due(leader: &LeaderState, retention: &Retention) -> Vec<(RunNo, Step)> {
    let (now, ttl_ms, keep_ms) = (leader.now(), retention.run_ttl_ms, retention.retention_ms);
    let due = leader.node.ledger(|l| l.forgettable(now, ttl_ms, keep_ms));
    let of = |runs: Vec<RunNo>, step| runs.into_iter().map(move |run| (run, step));
    of(due.seal, Step::Seal)
        .chain(of(due.sweep, Step::Sweep))
        .chain(of(due.delete, Step::Delete))
        .chain(of(due.forget, Step::Forget))
        .collect()
}

/// Runs a step. Returns whether it succeeded.
async fn take(leader: &LeaderState, stores: &RunStores, (run, step): (RunNo, Step)) -> bool {
    let (what, result) = match step {
        Step::Seal => ("sealed", seal(leader, stores, run).await),
        Step::Sweep => ("swept", sweep(leader, stores, run).await),
        Step::Delete => {
            ("deleted", propose(leader, OpKind::DeleteRun(op::DeleteRun { run })).await)
        }
        Step::Forget => ("forgotten", remove(leader, stores, run).await),
    };
    match &result {
        Ok(()) => tracing::info!(%run, "run {what}"),
        Err(error) => tracing::warn!(%run, %error, "run not {what}; will retry"),
    }
    result.is_ok()
}

pub(crate) async fn propose(leader: &LeaderState, kind: OpKind) -> Result<(), GcError> {
    leader.applied(kind).await.map_err(GcError::Refused)
}

async fn seal(leader: &LeaderState, stores: &RunStores, no: RunNo) -> Result<(), GcError> {
    let Some(view) = leader.node.ledger(|l| l.run_view(no)) else { return Ok(()) };
    let store = stores.open(&view.spec.store_url)?;
    let mut chunks = Vec::new();
    for first_segment in (0..view.segments).step_by(CHUNK_SEGMENTS as usize) {
        let end = view.segments.min(first_segment + CHUNK_SEGMENTS);
        let mut segments = Vec::with_capacity((end - first_segment) as usize);
        for number in first_segment..end {
            let segment = leader.node.ledger(|l| l.segment_view(no, SegmentNo(number)));
            // This leader has sealed it meanwhile.
            let Some(segment) = segment else { return Ok(()) };
            if number == 0 {
                has_input(&store, &view, &segment).await?;
            }
            let listed = convert::results_out(&view.namespace, &view.folder, &segment);
            segments.push(listed);
        }
        let count = segments.len() as u32;
        let chunk = v1::SealedSegments { format: FORMAT, segments };
        let blob = Some(put(&store, &view, chunk.encode_to_vec()).await?.1);
        chunks.push(v1::SealedChunk { blob, first_segment, segments: count });
    }
    let run = Some(convert::run_out(&view, String::new()));
    let spec = Some(convert::spec_for_workers(&view.spec));
    let manifest = v1::SealedRun { format: FORMAT, run, spec, chunks };
    let (manifest, _) = put(&store, &view, manifest.encode_to_vec()).await?;
    let ended_index = view.ended_index;
    propose(leader, OpKind::Seal(op::Seal { run: no, manifest, ended_index })).await
}

/// Checks that the run's first segment is there, before anything is written. A directory where the store is not
/// mounted would accept every object, and no reader would find it.
async fn has_input(store: &BlobStore, view: &RunView, first: &SegmentView) -> Result<(), GcError> {
    let input =
        convert::blob_out(&view.namespace, &view.folder, Kind::Segment, &first.segment.blob);
    match store.size(&input.key).await {
        Err(BlobError::Missing { key }) => {
            let why = format!("the run's input {key} is not there");
            Err(GcError::Elsewhere { url: store.url().to_owned(), why })
        }
        found => Ok(found.map(drop)?),
    }
}

async fn put(
    store: &BlobStore,
    view: &RunView,
    bytes: Vec<u8>,
) -> Result<(BlobRef, v1::BlobRef), BlobError> {
    let digest = *blake3::hash(&bytes).as_bytes();
    let blob = BlobRef { digest, bytes: bytes.len() as u32 };
    let wire = convert::blob_out(&view.namespace, &view.folder, Kind::Manifest, &blob);
    store.put(&wire.key, bytes.into()).await?;
    Ok((blob, wire))
}

/// Removes parts and texts that no row names (those of refused attempts, of attempts before the last, and of abandoned
/// uploads), and refused manifests.
async fn sweep(leader: &LeaderState, stores: &RunStores, no: RunNo) -> Result<(), GcError> {
    let Some(view) = leader.node.ledger(|l| l.run_view(no)) else { return Ok(()) };
    let Some(sealed) = &view.sealed else { return Ok(()) };
    let store = stores.open(&view.spec.store_url)?;
    let manifest =
        convert::blob_out(&view.namespace, &view.folder, Kind::Manifest, &sealed.manifest);
    let named = named_in(&store, manifest).await?;
    let prefix = rollout_storage::run_prefix(&view.namespace, &view.folder);
    for (kind, metric) in SWEPT {
        let all = store.list(&format!("{prefix}/{kind}")).await?;
        let orphans: Vec<String> = all.into_iter().filter(|key| !named.contains(key)).collect();
        metrics::counter!(metric).increment(orphans.len() as u64);
        remove_all(&store, orphans).await?;
    }
    propose(leader, OpKind::Swept(op::Swept { run: no })).await
}

/// Every object that a manifest needs, including itself but not the input segments.
async fn named_in(store: &BlobStore, manifest: v1::BlobRef) -> Result<HashSet<String>, GcError> {
    let run: v1::SealedRun = read(store, &manifest).await?;
    let mut named = HashSet::from([manifest.key]);
    for chunk in run.chunks.into_iter().filter_map(|chunk| chunk.blob) {
        let listed: v1::SealedSegments = read(store, &chunk).await?;
        named.insert(chunk.key);
        for segment in listed.segments {
            named.extend(segment.part_table.into_iter().map(|part| part.key));
            let texts = segment.failures.into_iter().filter_map(|f| f.evidence?.text);
            named.extend(texts.map(|text| text.key));
        }
    }
    Ok(named)
}

async fn read<M: Message + Default>(store: &BlobStore, blob: &v1::BlobRef) -> Result<M, GcError> {
    let unreadable = |why: String| GcError::Unreadable { key: blob.key.clone(), why };
    let digest = convert::digest_in(&blob.digest).map_err(|error| unreadable(error.message))?;
    let bytes = store.get(&blob.key, &digest).await?;
    M::decode(bytes).map_err(|error| unreadable(error.to_string()))
}

async fn remove(leader: &LeaderState, stores: &RunStores, no: RunNo) -> Result<(), GcError> {
    let Some(view) = leader.node.ledger(|l| l.run_view(no)) else { return Ok(()) };
    let store = stores.open(&view.spec.store_url)?;
    let prefix = rollout_storage::run_prefix(&view.namespace, &view.folder);
    let keys = store.list(&prefix).await?;
    // If nothing is listed, an earlier leader may have removed all objects and been deposed before it reported that.
    // Then the folder of the run's name still exists.
    if keys.is_empty() && view.rows > 0 && !store.was_written(&prefix).await? {
        let why = format!("the folder of {prefix} was never written to");
        return Err(GcError::Elsewhere { url: store.url().to_owned(), why });
    }
    remove_all(&store, keys).await?;
    store.prune(&prefix).await?;
    leader.remove_folder(no);
    propose(leader, OpKind::ForgetRun(op::ForgetRun { run: no })).await
}

pub(crate) async fn remove_all(store: &BlobStore, keys: Vec<String>) -> Result<(), BlobError> {
    let removals = futures::stream::iter(keys).map(|key| {
        let store = store.clone();
        async move { store.delete(&key).await }
    });
    removals.buffer_unordered(REMOVALS).try_collect().await
}

#[cfg(test)]
mod tests;
