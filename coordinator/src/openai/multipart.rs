//! Owns: bodies of `multipart/form-data`: short fields of text, and one field of bytes that goes to the store.
//!
//! Invariant: fields may come in any order. A text field is bounded, and the bytes are never in memory as a whole: the
//! parser gets at most [`UNREAD_MAX`] bytes more than the fields have returned. Content that exceeds its bound is refused at
//! the first byte over it.
//! Absent: what the fields mean.

use crate::openai::content::{ContentWriter, Written, store_error};
use crate::openai::error::ApiError;
use axum::body::{Body, BodyDataStream, Bytes};
use axum::extract::{FromRequest, Request};
use axum::http::{StatusCode, header};
use futures::Stream;
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

/// Fields of one body.
const FIELDS_MAX: usize = 16;
/// Bytes of a field of text.
const TEXT_BYTES_MAX: usize = 1024;
/// Bytes that the parser gets at a time.
const CHUNK_BYTES: usize = 64 << 10;
/// Bytes that the parser has got and not returned as content: the heads of all fields, and a chunk.
const UNREAD_MAX: usize = 2 * CHUNK_BYTES;
/// How often the parser may ask for more in vain. For each field it asks a few times, even if it has the whole field.
const REFUSALS_MAX: usize = 8 * FIELDS_MAX;

/// A body that has not been read.
pub(super) struct FormBody {
    parts: multer::Multipart<'static>,
    unread: Arc<AtomicUsize>,
}

impl<S: Send + Sync> FromRequest<S> for FormBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        let kind = request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let boundary = kind.and_then(|kind| multer::parse_boundary(kind).ok());
        let boundary = boundary
            .ok_or_else(|| malformed("The body must be multipart/form-data with a boundary."))?;
        let unread = Arc::new(AtomicUsize::new(0));
        let chunks = Chunks::new(request.into_body(), unread.clone());
        Ok(Self { parts: multer::Multipart::new(chunks, boundary), unread })
    }
}

/// A body as the parser gets it. The parser asks for more until there is none, so each chunk is followed by a pause, and
/// there is none while a chunk is unread: otherwise a body that arrives faster than it is stored would be collected in
/// memory.
struct Chunks {
    body: BodyDataStream,
    rest: Bytes,
    pauses: bool,
    /// How often the parser asked since the last chunk, while it had more than [`CHUNK_BYTES`].
    refusals: usize,
    unread: Arc<AtomicUsize>,
}

impl Chunks {
    fn new(body: Body, unread: Arc<AtomicUsize>) -> Self {
        let body = body.into_data_stream();
        Self { body, rest: Bytes::new(), pauses: false, refusals: 0, unread }
    }
}

impl Stream for Chunks {
    type Item = Result<Bytes, axum::Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if std::mem::take(&mut self.pauses) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if self.unread.load(Ordering::Relaxed) > UNREAD_MAX - CHUNK_BYTES {
            self.refusals += 1;
            if self.refusals > REFUSALS_MAX {
                let text = format!("the heads of the fields have more than {CHUNK_BYTES} bytes");
                return Poll::Ready(Some(Err(axum::Error::new(std::io::Error::other(text)))));
            }
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if self.rest.is_empty() {
            self.rest = match ready!(Pin::new(&mut self.body).poll_next(cx)) {
                Some(Ok(bytes)) => bytes,
                end => return Poll::Ready(end),
            };
        }
        let len = self.rest.len().min(CHUNK_BYTES);
        let chunk = self.rest.split_to(len);
        (self.pauses, self.refusals) = (true, 0);
        self.unread.fetch_add(len, Ordering::Relaxed);
        Poll::Ready(Some(Ok(chunk)))
    }
}

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

impl FormBody {
    /// Reads the body, whose field `name` has the content, and which has no fields of text but `texts`.
    ///
    /// # Errors
    /// 400 for a malformed body, the error of the bound, 503 if the store does not take the content.
    pub(super) async fn read(
        mut self,
        name: &str,
        texts: &[&str],
        writer: ContentWriter,
        bound: Bound,
    ) -> Result<Form, ApiError> {
        let mut form = Form { texts: BTreeMap::new(), content: None };
        let mut writer = Some(writer);
        for _ in 0..=FIELDS_MAX {
            let Some(field) = self.parts.next_field().await.map_err(broken)? else {
                return Ok(form);
            };
            let field_name = field.name().unwrap_or_default().to_owned();
            if field_name == name {
                let Some(writer) = writer.take() else {
                    let message = format!("The body has {name} twice.");
                    return Err(ApiError::invalid(field_name, message));
                };
                let filename = field.file_name().map(str::to_owned);
                form.content = Some((self.write(field, writer, &bound).await?, filename));
            } else if texts.contains(&field_name.as_str()) {
                let text = self.text(field, &field_name).await?;
                form.texts.insert(field_name, text);
            } else {
                let known: Vec<&str> = std::iter::once(name).chain(texts.iter().copied()).collect();
                let message = format!("Unknown field: the body may have {}.", known.join(", "));
                return Err(ApiError::new(StatusCode::BAD_REQUEST, "unknown_parameter", message));
            }
        }
        Err(malformed(format!("The body has more than {FIELDS_MAX} fields.")))
    }

    async fn chunk(&self, field: &mut multer::Field<'static>) -> Result<Option<Bytes>, ApiError> {
        let chunk = field.chunk().await.map_err(broken)?;
        if let Some(chunk) = &chunk {
            self.unread.fetch_sub(chunk.len(), Ordering::Relaxed);
        }
        Ok(chunk)
    }

    async fn write(
        &self,
        mut field: multer::Field<'static>,
        mut writer: ContentWriter,
        bound: &Bound,
    ) -> Result<Written, ApiError> {
        while let Some(bytes) = self.chunk(&mut field).await? {
            if writer.bytes().saturating_add(bytes.len() as u64) > bound.bytes_max {
                return Err(bound.exceeded.clone());
            }
            writer.push(bytes).await.map_err(|error| store_error(&error))?;
        }
        writer.finish().await.map_err(|error| store_error(&error))
    }

    async fn text(
        &self,
        mut field: multer::Field<'static>,
        name: &str,
    ) -> Result<String, ApiError> {
        let mut text = Vec::new();
        while let Some(bytes) = self.chunk(&mut field).await? {
            if text.len() + bytes.len() > TEXT_BYTES_MAX {
                let message = format!("The field has more than {TEXT_BYTES_MAX} bytes.");
                return Err(ApiError::invalid(name.to_owned(), message));
            }
            text.extend_from_slice(&bytes);
        }
        let not_text = |_| ApiError::invalid(name.to_owned(), "The field is not UTF-8.");
        String::from_utf8(text).map_err(not_text)
    }
}

fn broken(error: multer::Error) -> ApiError {
    malformed(format!("The body cannot be read: {error}."))
}

fn malformed(why: impl Into<String>) -> ApiError {
    ApiError::new(StatusCode::BAD_REQUEST, "invalid_multipart", why)
}
