//! Owns: bodies of `multipart/form-data`: short fields of text, and one field of bytes that goes to the store.
//!
//! Invariant: fields may come in any order. A text field is bounded, and the bytes are never in memory as a whole. Content
//! that exceeds its bound is refused at the first byte over it.
//! Absent: what the fields mean.

use crate::openai::content::{ContentWriter, Written, store_error};
use crate::openai::error::ApiError;
use axum::extract::Multipart;
use axum::extract::multipart::{Field, MultipartError, MultipartRejection};
use axum::http::StatusCode;
use std::collections::BTreeMap;

/// Fields of one body.
const FIELDS_MAX: usize = 16;
/// Bytes of a field of text.
const TEXT_BYTES_MAX: usize = 1024;

/// What a body had.
pub(super) struct Form {
    pub(super) texts: BTreeMap<String, String>,
    /// The content, and the name that the caller gave it.
    pub(super) content: Option<(Written, Option<String>)>,
}

/// How much a content may have, and the error of one byte more.
pub(super) struct Bound {
    pub(super) bytes_max: u64,
    pub(super) exceeded: ApiError,
}

/// Reads a body whose field `name` has the content, and which has no fields of text but `texts`.
///
/// # Errors
/// 400 for a malformed body, the error of the bound, 503 if the store does not take the content.
pub(super) async fn read(
    body: Result<Multipart, MultipartRejection>,
    name: &str,
    texts: &[&str],
    writer: ContentWriter,
    bound: Bound,
) -> Result<Form, ApiError> {
    let mut body = body.map_err(|rejection| malformed(rejection.body_text()))?;
    let mut form = Form { texts: BTreeMap::new(), content: None };
    let mut writer = Some(writer);
    for _ in 0..=FIELDS_MAX {
        let Some(field) = body.next_field().await.map_err(broken)? else { return Ok(form) };
        let field_name = field.name().unwrap_or_default().to_owned();
        if field_name == name {
            let Some(writer) = writer.take() else {
                return Err(ApiError::invalid(field_name, format!("The body has {name} twice.")));
            };
            let filename = field.file_name().map(str::to_owned);
            form.content = Some((write(field, writer, &bound).await?, filename));
        } else if texts.contains(&&*field_name) {
            let text = text(field, &field_name).await?;
            form.texts.insert(field_name, text);
        } else {
            let message = format!("Unknown field: the body may have {name}, {}.", texts.join(", "));
            return Err(ApiError::new(StatusCode::BAD_REQUEST, "unknown_parameter", message));
        }
    }
    Err(malformed(format!("The body has more than {FIELDS_MAX} fields.")))
}

async fn write(
    mut field: Field<'_>,
    mut writer: ContentWriter,
    bound: &Bound,
) -> Result<Written, ApiError> {
    while let Some(bytes) = field.chunk().await.map_err(broken)? {
        if writer.bytes().saturating_add(bytes.len() as u64) > bound.bytes_max {
            return Err(bound.exceeded.clone());
        }
        writer.push(bytes).await.map_err(|error| store_error(&error))?;
    }
    writer.finish().await.map_err(|error| store_error(&error))
}

async fn text(mut field: Field<'_>, name: &str) -> Result<String, ApiError> {
    let mut text = Vec::new();
    while let Some(bytes) = field.chunk().await.map_err(broken)? {
        if text.len() + bytes.len() > TEXT_BYTES_MAX {
            let message = format!("The field has more than {TEXT_BYTES_MAX} bytes.");
            return Err(ApiError::invalid(name.to_owned(), message));
        }
        text.extend_from_slice(&bytes);
    }
    let not_text = |_| ApiError::invalid(name.to_owned(), "The field is not UTF-8.");
    String::from_utf8(text).map_err(not_text)
}

fn broken(error: MultipartError) -> ApiError {
    malformed(error.body_text())
}

fn malformed(why: String) -> ApiError {
    ApiError::new(StatusCode::BAD_REQUEST, "invalid_multipart", why)
}
