//! A file as JSON, and the fields of a request that describe one.

use crate::openai::error::ApiError;
use axum::http::StatusCode;
use rollout_ledger::{ApiFile, FilePurpose, limits};
use serde::{Deserialize, Serialize};

/// OpenAI's file object.
#[derive(Clone, Debug, Serialize)]
pub(in crate::openai) struct FileObject {
    id: String,
    object: &'static str,
    bytes: u64,
    created_at: u64,
    expires_at: Option<u64>,
    filename: String,
    purpose: &'static str,
    /// Clients wait until it is `processed`: a file can be used once it is listed.
    status: &'static str,
    status_details: Option<String>,
}

impl FileObject {
    pub(in crate::openai) fn new(id: &str, file: &ApiFile) -> Self {
        let created_at = file.created_ms / 1000;
        let ttl_s = file.spec.ttl_ms / 1000;
        Self {
            id: id.to_owned(),
            object: "file",
            bytes: file.bytes,
            created_at,
            expires_at: (ttl_s > 0).then_some(created_at + ttl_s),
            filename: file.spec.filename.clone(),
            purpose: name_of(file.spec.purpose),
            status: "processed",
            status_details: None,
        }
    }

    pub(in crate::openai) fn id(&self) -> &str {
        &self.id
    }
}

/// The name of a purpose in OpenAI's API.
pub(in crate::openai) fn name_of(purpose: FilePurpose) -> &'static str {
    match purpose {
        FilePurpose::Batch => "batch",
        FilePurpose::BatchOutput => "batch_output",
        FilePurpose::UserData => "user_data",
    }
}

/// The purpose of that name.
pub(super) fn purpose_named(name: &str) -> Option<FilePurpose> {
    let all = [FilePurpose::Batch, FilePurpose::BatchOutput, FilePurpose::UserData];
    all.into_iter().find(|purpose| name_of(*purpose) == name)
}

/// The purpose of that name, for a file that a client creates.
///
/// # Errors
/// 400.
pub(in crate::openai) fn client_purpose(name: Option<&str>) -> Result<FilePurpose, ApiError> {
    match name.and_then(purpose_named) {
        Some(purpose) if purpose != FilePurpose::BatchOutput => Ok(purpose),
        _ => Err(ApiError::invalid("purpose", "purpose is batch or user_data.")),
    }
}

/// When a file expires, as a request says.
#[derive(Clone, Debug, Deserialize)]
pub(in crate::openai) struct ExpiresAfter {
    pub(in crate::openai) anchor: String,
    pub(in crate::openai) seconds: u64,
}

/// The field of a file's request that says when it expires.
pub(in crate::openai) const EXPIRES_AFTER: &str = "expires_after";

/// For how long a file is kept, by the field of that name; 0 without the field.
///
/// # Errors
/// 400.
pub(in crate::openai) fn ttl_ms(
    field: &str,
    expires_after: Option<&ExpiresAfter>,
) -> Result<u64, ApiError> {
    let Some(ExpiresAfter { anchor, seconds }) = expires_after else { return Ok(0) };
    if anchor != "created_at" {
        let param = format!("{field}.anchor");
        let message = format!("{param} is created_at.");
        return Err(ApiError::invalid(param, message));
    }
    let ttl_ms = seconds.saturating_mul(1000);
    if limits::FILE_TTL_MS.contains(&ttl_ms) {
        return Ok(ttl_ms);
    }
    let (min, max) = (limits::FILE_TTL_MS.start() / 1000, limits::FILE_TTL_MS.end() / 1000);
    let param = format!("{field}.seconds");
    let message = format!("{param} is {min} to {max}.");
    Err(ApiError::invalid(param, message))
}

/// Refuses a name of a file that is missing or too long.
pub(super) fn filename(name: Option<String>) -> Result<String, ApiError> {
    let max = limits::FILENAME_BYTES_MAX;
    match name.filter(|name| !name.is_empty()) {
        Some(name) if name.len() <= max => Ok(name),
        Some(_) => {
            Err(ApiError::invalid("file", format!("The file's name has more than {max} bytes.")))
        }
        None => Err(ApiError::new(
            StatusCode::BAD_REQUEST,
            "missing_required_parameter",
            "The field file must have a filename.",
        )
        .with_param("file")),
    }
}
