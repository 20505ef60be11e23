//! A batch as JSON.
//!
//! *Invariant:* the fields and their types are those of OpenAI's batch object. A field that does not apply is null.
//! Absent: where the values come from, which the ledger's view says.

use rollout_ledger::{BatchError, BatchStatus, BatchUsage, BatchView};
use serde::Serialize;
use std::collections::BTreeMap;

/// The code of the explanation in a batch without an output file.
const NO_REQUEST_SUCCEEDED: &str = "no_request_succeeded";

/// OpenAI's batch object. Times are seconds since 1970.
#[derive(Debug, Serialize)]
pub(super) struct BatchObject {
    id: String,
    object: &'static str,
    endpoint: String,
    model: Option<String>,
    errors: Option<Errors>,
    input_file_id: String,
    completion_window: String,
    status: &'static str,
    output_file_id: Option<String>,
    error_file_id: Option<String>,
    created_at: u64,
    in_progress_at: Option<u64>,
    expires_at: Option<u64>,
    finalizing_at: Option<u64>,
    completed_at: Option<u64>,
    failed_at: Option<u64>,
    expired_at: Option<u64>,
    cancelling_at: Option<u64>,
    cancelled_at: Option<u64>,
    request_counts: Counts,
    usage: Option<Usage>,
    metadata: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Serialize)]
struct Errors {
    object: &'static str,
    data: Vec<ErrorObject>,
}

#[derive(Debug, Serialize)]
struct ErrorObject {
    code: String,
    message: String,
    param: Option<String>,
    line: Option<u64>,
}

#[derive(Debug, Serialize)]
struct Counts {
    total: u64,
    completed: u64,
    failed: u64,
}

#[derive(Debug, Serialize)]
struct Usage {
    input_tokens: u64,
    input_tokens_details: InputDetails,
    output_tokens: u64,
    output_tokens_details: OutputDetails,
    total_tokens: u64,
}

#[derive(Debug, Serialize)]
struct InputDetails {
    cached_tokens: u64,
}

#[derive(Debug, Serialize)]
struct OutputDetails {
    reasoning_tokens: u64,
}

impl BatchObject {
    pub(super) fn id(&self) -> &str {
        &self.id
    }
}

impl From<BatchView> for BatchObject {
    fn from(view: BatchView) -> Self {
        let seconds = |ms: Option<u64>| ms.map(|ms| ms / 1000);
        let ended_as = |status| seconds(view.ended_ms).filter(|_| view.status == status);
        let (completed_at, failed_at) =
            (ended_as(BatchStatus::Completed), ended_as(BatchStatus::Failed));
        let (expired_at, cancelled_at) =
            (ended_as(BatchStatus::Expired), ended_as(BatchStatus::Cancelled));
        Self {
            errors: errors(&view),
            id: view.id,
            object: "batch",
            endpoint: view.spec.endpoint,
            model: Some(view.model).filter(|model| !model.is_empty()),
            input_file_id: view.spec.input_file,
            completion_window: view.spec.completion_window,
            status: view.status.name(),
            output_file_id: view.output_file,
            error_file_id: view.error_file,
            created_at: view.created_ms / 1000,
            in_progress_at: seconds(view.in_progress_ms),
            expires_at: seconds(view.expires_ms),
            finalizing_at: seconds(view.finalizing_ms),
            completed_at,
            failed_at,
            expired_at,
            cancelling_at: seconds(view.cancelling_ms),
            cancelled_at,
            request_counts: Counts {
                total: view.total,
                completed: view.completed,
                failed: view.failed,
            },
            usage: view.usage.map(Usage::from),
            metadata: Some(view.spec.metadata).filter(|metadata| !metadata.is_empty()),
        }
    }
}

impl From<BatchUsage> for Usage {
    fn from(usage: BatchUsage) -> Self {
        let BatchUsage { input_tokens, cached_tokens, output_tokens, reasoning_tokens } = usage;
        Self {
            input_tokens,
            input_tokens_details: InputDetails { cached_tokens },
            output_tokens,
            output_tokens_details: OutputDetails { reasoning_tokens },
            total_tokens: input_tokens.saturating_add(output_tokens),
        }
    }
}

/// What is wrong with the batch's file, or why the batch has no output file.
fn errors(view: &BatchView) -> Option<Errors> {
    let of_file = view.errors.iter().map(ErrorObject::from);
    let data: Vec<_> = of_file.chain(no_output(view)).collect();
    (!data.is_empty()).then_some(Errors { object: "list", data })
}

/// Why a batch that had a run has no output file. Users take the null `output_file_id` for a defect.
fn no_output(view: &BatchView) -> Option<ErrorObject> {
    if view.ended_ms.is_none() || view.output_file.is_some() || view.total == 0 {
        return None;
    }
    let total = view.total;
    let message = format!(
        "None of the batch's requests ({total}) succeeded, so output_file_id is null. The file error_file_id has the \
         reason for each of them."
    );
    let code = NO_REQUEST_SUCCEEDED.to_owned();
    Some(ErrorObject { code, message, param: None, line: None })
}

impl From<&BatchError> for ErrorObject {
    fn from(error: &BatchError) -> Self {
        let BatchError { code, message, param, line } = error.clone();
        Self { code, message, param, line }
    }
}

#[cfg(test)]
mod tests;
