//! Owns: the errors of the API, in OpenAI's form: `{"error":{"message","type","param","code"}}`.
//!
//! Invariant: the client of OpenAI repeats each request that is answered with 408, 409, 429 or 500 and above, unless
//! the answer forbids it. So an error that a repeat cannot change says `x-should-retry: false`, and one that a repeat
//! is likely to change says when to repeat it.
//! Absent: the codes of the gRPC services, from which some of these errors are made (`rollout_proto::ErrorCode`).

use crate::leader::reject;
use crate::observe::audit::HttpError;
use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use rollout_ledger::{OpenAiRefusal, Rejection};
use rollout_proto::{ErrorCode, RpcError};
use serde_json::json;
use std::borrow::Cow;
use std::time::Duration;
use tonic::Code;

/// Whether the client should send the request again.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");
/// When it should, in milliseconds. The client prefers this header to `retry-after`, which has whole seconds.
const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");
/// When to ask again while there is no leader: an election takes about as long.
pub(crate) const NO_LEADER_RETRY: Duration = Duration::from_millis(300);
/// When to ask again if the member has too much to do.
pub(crate) const OVERLOADED_RETRY: Duration = Duration::from_secs(1);

/// Why a request failed. Converts to the response.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct ApiError {
    status: StatusCode,
    /// A stable name for programs, such as `file_in_use`.
    code: &'static str,
    /// What failed, why, and what to do.
    message: String,
    /// The field or parameter of the request that is wrong.
    param: Option<Cow<'static, str>>,
    retry: Retry,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Retry {
    /// As the client decides by the status.
    ByStatus,
    Never,
    After(Duration),
}

impl ApiError {
    /// An error of any status. A conflict says that a repeat is useless.
    pub(crate) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        let retry = if status == StatusCode::CONFLICT { Retry::Never } else { Retry::ByStatus };
        Self { status, code, message: message.into(), param: None, retry }
    }

    /// 400: a field or parameter of the request is wrong.
    pub(crate) fn invalid(param: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_value", message).with_param(param)
    }

    /// 400: a field of the request has another form, which the parser describes.
    pub(super) fn malformed(field: &'static str, why: &serde_json::Error) -> Self {
        Self::invalid(field, format!("{field}: {}.", shown(&why.to_string())))
    }

    /// 400: a field that the request needs is missing.
    pub(crate) fn missing(field: &'static str) -> Self {
        let message = format!("Missing required field: {field}.");
        let error = Self::new(StatusCode::BAD_REQUEST, "missing_required_parameter", message);
        error.with_param(field)
    }

    /// 401: the key is missing, wrong, revoked or expired.
    pub(crate) fn invalid_key(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "invalid_api_key", message)
    }

    /// 404: the caller's namespace has no such object. The answer is the same if another namespace has it.
    pub(crate) fn not_found(kind: &str, id: &str) -> Self {
        // An id of the request may have any length.
        Self::new(StatusCode::NOT_FOUND, "not_found", format!("No such {kind}: {}", shown(id)))
    }

    /// 409: the object's state does not allow the request. The client does not repeat it.
    pub(crate) fn conflict(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, code, message)
    }

    /// 429: a limit of the key or of its namespace that later requests may be within.
    pub(crate) fn too_many(
        code: &'static str,
        message: impl Into<String>,
        after: Duration,
    ) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, code, message).with_retry_after(after)
    }

    /// 503: no leader answers now. The client repeats the request after an election.
    pub(crate) fn no_leader(message: impl Into<String>) -> Self {
        let error = Self::new(StatusCode::SERVICE_UNAVAILABLE, "no_leader", message);
        error.with_retry_after(NO_LEADER_RETRY)
    }

    /// 503: the member has too much to do.
    pub(crate) fn overloaded(message: impl Into<String>) -> Self {
        let error = Self::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", message);
        error.with_retry_after(OVERLOADED_RETRY)
    }

    /// 500: a defect.
    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", message)
    }

    /// Names the field or parameter that is wrong.
    pub(crate) fn with_param(mut self, param: impl Into<Cow<'static, str>>) -> Self {
        self.param = Some(param.into());
        self
    }

    /// Says when to repeat the request.
    pub(crate) fn with_retry_after(mut self, after: Duration) -> Self {
        self.retry = Retry::After(after);
        self
    }

    /// Says that a repeat is useless, whatever the status.
    pub(crate) fn without_retry(mut self) -> Self {
        self.retry = Retry::Never;
        self
    }

    /// The status of the response.
    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    /// The stable name of the error.
    pub(crate) fn code(&self) -> &'static str {
        self.code
    }

    /// OpenAI's class of the error.
    fn kind(&self) -> &'static str {
        match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        }
    }
}

/// How much of a text of the request an error repeats.
const SHOWN_BYTES_MAX: usize = 128;

/// The part of a text of the request that an error repeats.
pub(super) fn shown(text: &str) -> &str {
    &text[..text.floor_char_boundary(SHOWN_BYTES_MAX)]
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let kind = self.kind();
        let Self { status, code, message, param, retry } = self;
        let body = json!({
            "error": { "message": message, "type": kind, "param": param, "code": code },
        });
        let mut response = (status, Json(body)).into_response();
        let headers = response.headers_mut();
        match retry {
            Retry::ByStatus => {}
            Retry::Never => {
                headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
            }
            Retry::After(after) => {
                let ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
                headers.insert(RETRY_AFTER_MS, HeaderValue::from(ms));
                headers.insert(header::RETRY_AFTER, HeaderValue::from(ms.div_ceil(1000)));
            }
        }
        // For the audit, which reads no bodies.
        response.extensions_mut().insert(HttpError { code, message });
        response
    }
}

impl From<RpcError> for ApiError {
    fn from(error: RpcError) -> Self {
        let RpcError { code, message, .. } = error;
        match code {
            ErrorCode::NotLeader
            | ErrorCode::NoQuorum
            | ErrorCode::NoLeader
            | ErrorCode::StaleEpoch
            | ErrorCode::NotBootstrapped
            | ErrorCode::OutcomeUnknown
            | ErrorCode::Fenced
            | ErrorCode::ConnectFailed
            | ErrorCode::TimedOut => Self::no_leader(message),
            ErrorCode::Overloaded | ErrorCode::DiskFull => Self::overloaded(message),
            ErrorCode::OverQuota => {
                Self::new(StatusCode::TOO_MANY_REQUESTS, "quota_exceeded", message).without_retry()
            }
            ErrorCode::LimitExceeded => {
                Self::new(StatusCode::BAD_REQUEST, "limit_exceeded", message)
            }
            ErrorCode::VersionRefused => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "cluster_version_low", message)
                    .without_retry()
            }
            ErrorCode::StoreUnavailable => {
                let error =
                    Self::new(StatusCode::SERVICE_UNAVAILABLE, "store_unavailable", message);
                error.with_retry_after(OVERLOADED_RETRY)
            }
            code => Self::by_class(code.grpc(), message),
        }
    }
}

impl ApiError {
    /// The error for a class of gRPC's.
    fn by_class(class: Code, message: String) -> Self {
        match class {
            Code::InvalidArgument | Code::OutOfRange => {
                Self::new(StatusCode::BAD_REQUEST, "invalid_value", message)
            }
            Code::NotFound => Self::new(StatusCode::NOT_FOUND, "not_found", message),
            Code::AlreadyExists | Code::FailedPrecondition => Self::conflict("conflict", message),
            Code::PermissionDenied | Code::Unauthenticated => {
                Self::new(StatusCode::FORBIDDEN, "permission_denied", message)
            }
            Code::ResourceExhausted => Self::overloaded(message),
            Code::Unavailable | Code::DeadlineExceeded => Self::no_leader(message),
            _ => Self::internal(message),
        }
    }
}

impl From<&Rejection> for ApiError {
    fn from(rejection: &Rejection) -> Self {
        match rejection {
            Rejection::OpenAi(why) => why.into(),
            _ => reject::rejected(rejection).into(),
        }
    }
}

impl From<&OpenAiRefusal> for ApiError {
    fn from(refusal: &OpenAiRefusal) -> Self {
        let message = refusal.to_string();
        match refusal {
            OpenAiRefusal::FileConflict(_) => Self::conflict("file_conflict", message),
            OpenAiRefusal::FileInUse { .. } => Self::conflict("file_in_use", message),
            OpenAiRefusal::UploadEnded { .. } => Self::conflict("upload_ended", message),
            OpenAiRefusal::IdempotencyKeyReused(_) => {
                Self::new(StatusCode::UNPROCESSABLE_ENTITY, "idempotency_key_reused", message)
            }
            OpenAiRefusal::ContentStale => {
                Self::new(StatusCode::BAD_REQUEST, "upload_too_slow", message)
            }
            OpenAiRefusal::UploadUnknown(id) => Self::not_found("Upload object", id),
            OpenAiRefusal::PartUnknown(_) => Self::invalid("part_ids", message),
            OpenAiRefusal::UploadBytes { .. } => {
                Self::new(StatusCode::BAD_REQUEST, "upload_incomplete", message)
                    .with_param("part_ids")
            }
            OpenAiRefusal::FileUnknown(_) | OpenAiRefusal::FilePurpose(_) => {
                Self::invalid("input_file_id", message)
            }
            OpenAiRefusal::BatchUnknown(id) => Self::not_found("Batch object", id),
            OpenAiRefusal::BatchEnded { .. }
            | OpenAiRefusal::BatchFenceStale { .. }
            | OpenAiRefusal::BatchOtherEnd { .. }
            | OpenAiRefusal::RunOfOpenBatch { .. }
            | OpenAiRefusal::RunOfBatch { .. } => Self::conflict("batch_state_conflict", message),
            OpenAiRefusal::KeyLimit { .. } => {
                let status = StatusCode::TOO_MANY_REQUESTS;
                Self::new(status, "batch_limit_exceeded", message).without_retry()
            }
            OpenAiRefusal::StorageLimit { .. } => {
                let status = StatusCode::TOO_MANY_REQUESTS;
                Self::new(status, "storage_limit_exceeded", message).without_retry()
            }
        }
    }
}

impl From<JsonRejection> for ApiError {
    fn from(rejection: JsonRejection) -> Self {
        let message = rejection.body_text();
        match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => {
                Self::new(StatusCode::PAYLOAD_TOO_LARGE, "request_too_large", message)
            }
            _ => Self::new(StatusCode::BAD_REQUEST, "invalid_json", message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;
    use serde_json::Value;

    async fn sent(error: ApiError) -> (StatusCode, axum::http::HeaderMap, Value) {
        let response = error.into_response();
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.expect("a body").to_bytes();
        (parts.status, parts.headers, serde_json::from_slice(&bytes).expect("JSON"))
    }

    #[tokio::test]
    async fn an_error_has_the_form_of_openai() {
        let (status, headers, body) = sent(ApiError::invalid("limit", "limit is 1 to 100")).await;
        assert_eq!(status, StatusCode::BAD_REQUEST);
        let wanted = json!({ "error": {
            "message": "limit is 1 to 100",
            "type": "invalid_request_error",
            "param": "limit",
            "code": "invalid_value",
        } });
        assert_eq!(body, wanted);
        assert_eq!(headers[header::CONTENT_TYPE], "application/json");
        let (.., body) = sent(ApiError::not_found("file", "file-1")).await;
        assert_eq!(body["error"]["param"], Value::Null, "every error has the field");
    }

    #[tokio::test]
    async fn a_client_repeats_only_what_a_repeat_can_change() {
        let (status, headers, _) = sent(ApiError::conflict("file_in_use", "in use")).await;
        assert_eq!(
            (status, &headers[SHOULD_RETRY]),
            (StatusCode::CONFLICT, &"false".parse().unwrap())
        );
        let (status, headers, body) = sent(ApiError::no_leader("no leader is known")).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(
            (&headers[RETRY_AFTER_MS], &headers[header::RETRY_AFTER]),
            (&"300".parse().unwrap(), &"1".parse().unwrap())
        );
        assert_eq!(body["error"]["type"], "server_error");
        let after = Duration::from_millis(1500);
        let (status, headers, body) =
            sent(ApiError::too_many("rate_limit_exceeded", "slow", after)).await;
        assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(headers[header::RETRY_AFTER], "2", "whole seconds, rounded up");
        assert_eq!(body["error"]["type"], "rate_limit_error");
    }

    #[test]
    fn errors_of_the_cluster_keep_their_meaning() {
        let status = |code| ApiError::from(RpcError::new(code, "why")).status();
        for (code, wanted) in [
            (ErrorCode::NoQuorum, 503),
            (ErrorCode::OutcomeUnknown, 503),
            (ErrorCode::Overloaded, 503),
            (ErrorCode::InvalidArgument, 400),
            (ErrorCode::LimitExceeded, 400),
            (ErrorCode::OverQuota, 429),
            (ErrorCode::NamespaceUnknown, 404),
            (ErrorCode::RunActive, 409),
            (ErrorCode::PermissionDenied, 403),
            (ErrorCode::Internal, 500),
        ] {
            assert_eq!(status(code).as_u16(), wanted, "{code:?}");
        }
        let rejected = ApiError::from(&Rejection::Invalid("bad".into()));
        assert_eq!((rejected.status().as_u16(), rejected.code()), (400, "invalid_value"));
    }

    #[test]
    fn an_error_repeats_only_a_part_of_a_long_id() {
        let error = ApiError::not_found("file", &"é".repeat(1000));
        assert!(error.to_string().len() < 200, "{error}");
    }
}
