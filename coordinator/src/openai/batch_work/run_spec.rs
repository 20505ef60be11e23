//! The run that a batch becomes.
//!
//! *Invariant:* it depends on the batch and its model alone, so every member makes the same run. A row becomes the same
//! item as in a run of `rollout infer batch` without settings.

use super::error::WorkError;
use crate::openai::batches::options::RunOptions;
use rollout_ledger::{BatchSpec, EngineSpec, RunSpec};

/// The task of rows in OpenAI's format.
const TASK: &str = "openai";
/// No settings, as canonical JSON.
const NONE: &str = "{}";

/// The spec of the run of a batch with this model. The ledger sets the deadline.
///
/// # Errors
/// The batch has settings of a later build.
pub(super) fn run_spec(batch: &BatchSpec, model: &str) -> Result<RunSpec, WorkError> {
    let mut spec = RunOptions::defaults();
    let options = RunOptions::of_json(&batch.options_json);
    options.map_err(WorkError::failed)?.apply_to(&mut spec);
    spec.engine = EngineSpec {
        model: model.to_owned(),
        revision: String::new(),
        task: TASK.to_owned(),
        options_json: NONE.to_owned(),
    };
    NONE.clone_into(&mut spec.sampling_json);
    NONE.clone_into(&mut spec.options_json);
    spec.input_name.clone_from(&batch.input_file);
    spec.require_route(&batch.endpoint);
    Ok(spec)
}
