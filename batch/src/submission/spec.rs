//! Owns: the run spec that a batch file means.
//!
//! Invariant: the same file gives the same spec, byte for byte, on any machine and for any user: the cluster treats
//! another spec under the same name as another run and refuses it.
//! Absent: machine paths.

use rollout_proto::v1;

use super::config::BatchConfig;
use crate::canonical::{CanonicalError, canonical_text};
use crate::input::rules::{ClientOptions, Rules};
use crate::item_id::ModelId;

/// The spec of a batch file.
pub fn run_spec(config: &BatchConfig) -> Result<v1::RunSpec, CanonicalError> {
    let json = |result: Result<String, serde_json::Error>| {
        result.map_err(|error| CanonicalError::Syntax(error.to_string()))
    };
    let options = canonical_text(&json(serde_json::to_string(&config.model.options))?)?;
    let client = ClientOptions { input: config.input.mapping.clone() };
    let mut input_name = config.input.glob.list().join(" ");
    let mut end = input_name.len().min(1024);
    while !input_name.is_char_boundary(end) {
        end -= 1;
    }
    input_name.truncate(end);
    Ok(v1::RunSpec {
        engine: Some(v1::EngineSpec {
            model: config.model.uri.clone(),
            revision: config.model.revision.clone(),
            task: config.model.task().to_owned(),
            options_json: options,
        }),
        sampling_json: config.sampling.canonical_json()?,
        selector: config.workers.labels.clone().into_iter().collect(),
        priority: config.run.priority,
        weight: config.run.weight,
        running_rows_max: config.run.running_rows_max,
        attempt_timeout_ms: config.run.attempt_timeout_ms,
        failures_max: config.run.failures_max,
        attempts_max: config.run.attempts_max,
        store_url: config.store.url.clone(),
        input_name,
        options_json: canonical_text(&json(serde_json::to_string(&client))?)?,
        tail_duplicates: config.run.tail_duplicates,
        canary_rows: config.run.canary,
        canary_failures_max: config.run.canary_failures_max,
        run_ttl_ms: config.run.run_ttl_ms,
        retention_ms: config.run.retention_ms,
        require: config.workers.require.clone().into_iter().collect(),
        deadline_ms: config.run.deadline_s.saturating_mul(1000),
        notify_url: config.notify.url.clone(),
    })
}

/// The identity of a spec's model.
pub fn model_id(spec: &v1::RunSpec) -> ModelId {
    let engine = spec.engine.clone().unwrap_or_default();
    ModelId::new(&engine.model, &engine.revision, &engine.task, &engine.options_json)
}

/// How the rows of a spec's run are read.
pub fn rules(spec: &v1::RunSpec) -> Result<Rules, CanonicalError> {
    Rules::new(spec, model_id(spec))
}
