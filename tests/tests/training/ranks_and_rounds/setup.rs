//! The dataset of a job, and the samples that its checkpoints contain.

use anyhow::{Context, Result, ensure};
use rollout_proto::{Client, ClientConfig, services, v1};
use rollout_tests::{Fleet, not_once, sample_ids};
use rollout_training::mock::MockModel;
use rollout_training::restore_rank;
use std::time::Duration;

pub(crate) const PATIENCE: Duration = Duration::from_secs(180);
pub(crate) const SEED: u64 = 42;

/// The step of the last complete checkpoint.
pub(crate) fn latest(fleet: &Fleet, job: &str) -> Option<u64> {
    let all = fleet.ctl_json(&["--timeout", "5s", "checkpoint", "list", job]).ok()?;
    let complete = all["checkpoints"].as_array()?.iter().filter(|c| c["state"] == "complete");
    complete.filter_map(|c| c["step"].as_str()?.parse().ok()).max()
}

pub(crate) fn client(fleet: &Fleet) -> Result<Client> {
    let endpoints = fleet.member_names().iter().map(|m| fleet.client_addr(m).to_owned()).collect();
    Ok(Client::new(ClientConfig::new(endpoints, fleet.security("client", "user")))?)
}

/// Creates a dataset of this many samples, in shards of ten.
pub(crate) async fn create_dataset(fleet: &Fleet, samples: u64) -> Result<()> {
    let session = client(fleet)?.open_session("test").await?;
    let spec = v1::DatasetSpec {
        uri: "file:///data/{shard:4}.tar".into(),
        format: "webdataset".into(),
        samples,
        shard_samples: 10,
        seed: 7,
        ..v1::DatasetSpec::default()
    };
    let pending = session.request();
    let request = v1::CreateDatasetRequest {
        request: Some(pending.id()),
        namespace: String::new(),
        name: "pile".into(),
        spec: Some(spec),
    };
    let created = session
        .client()
        .with_leader("create a dataset", |channel| {
            let request = request.clone();
            async move { services::datasets(channel).create_dataset(request).await }
        })
        .await?;
    ensure!(created.dataset.is_some_and(|d| u64::from(d.shards) == samples / 10), "its shards");
    Ok(())
}

pub(crate) async fn latest_checkpoint(fleet: &Fleet, job: &str) -> Result<v1::Checkpoint> {
    rollout_tests::latest_checkpoint(&client(fleet)?, job).await
}

/// The combined model of all ranks in a job's last checkpoint.
pub(crate) async fn folded(fleet: &Fleet, job: &str) -> Result<MockModel> {
    let checkpoint = latest_checkpoint(fleet, job).await?;
    let mut all: Option<MockModel> = None;
    for rank in 0..checkpoint.ranks.len() {
        let restored = restore_rank(&checkpoint, rank).await?;
        let model = MockModel::load_weights(&restored.files[0].1).context("weights")?;
        match &mut all {
            Some(all) => all.absorb(&model),
            None => all = Some(model),
        }
    }
    all.context("a rank")
}

/// The model after this many steps, with these samples folded in.
pub(crate) fn expected(ids: &[u64], steps: u64) -> MockModel {
    let mut model = MockModel::new(SEED);
    for step in 0..steps {
        let (_, grad) = model.forward_with_loss(if step == 0 { ids } else { &[] });
        model.optimizer_step(grad);
    }
    model
}

/// The ids of the samples in a job's last checkpoint, over all ranks; its weights contain the same samples.
pub(crate) async fn ids_in(fleet: &Fleet, job: &str) -> Result<Vec<u64>> {
    let checkpoint = latest_checkpoint(fleet, job).await?;
    let mut ids = Vec::new();
    for rank in 0..checkpoint.ranks.len() {
        ids.extend(sample_ids(&restore_rank(&checkpoint, rank).await?.files[1].1));
    }
    let (model, wanted) = (folded(fleet, job).await?, expected(&ids, checkpoint.step));
    ensure!(model.folded() == wanted.folded(), "{:?} is not {:?}", model.folded(), wanted.folded());
    ensure!(model.save_weights() == wanted.save_weights(), "{model:?} is not {wanted:?}");
    Ok(ids)
}

/// Checks that every sample of each epoch is in the surviving lineage's weights exactly once.
pub(crate) async fn each_is_in_once(
    fleet: &Fleet,
    job: &str,
    epochs: u64,
    samples: u64,
) -> Result<()> {
    let ids = ids_in(fleet, job).await?;
    let wrong = not_once(&ids, epochs, samples);
    ensure!(wrong.is_none(), "{}", wrong.unwrap_or_default());
    Ok(())
}
