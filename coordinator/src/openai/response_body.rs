//! Owns: the body of an answer while it is sent.
//!
//! Invariant: the request keeps its place until the body's last byte is handed on or the caller is gone. The body
//! breaks off when the caller's key ends, and the caller sees that it is not complete.
//! Absent: what the body contains.

use crate::openai::error::ApiError;
use axum::body::{Body, Bytes};
use futures::future::{BoxFuture, Fuse};
use http_body::{Frame, SizeHint};
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::sync::OwnedSemaphorePermit;

/// The end of the caller's key. It is ready once, and the answer that says so is then sent whole.
pub(super) type KeyEnd = Fuse<BoxFuture<'static, ApiError>>;

/// A body that its caller's key allows to be sent.
pub(super) struct ResponseBody {
    inner: Body,
    /// `None` once the body has broken off.
    key_end: Option<KeyEnd>,
    _place: OwnedSemaphorePermit,
}

impl ResponseBody {
    pub(super) fn new(inner: Body, key_end: KeyEnd, place: OwnedSemaphorePermit) -> Self {
        Self { inner, key_end: Some(key_end), _place: place }
    }
}

impl http_body::Body for ResponseBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let Some(key_end) = &mut self.key_end else { return Poll::Ready(None) };
        if let Poll::Ready(why) = Pin::new(key_end).poll(cx) {
            self.key_end = None;
            return Poll::Ready(Some(Err(axum::Error::new(why))));
        }
        Pin::new(&mut self.inner).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::{FutureExt, StreamExt};
    use http_body_util::BodyExt;
    use std::sync::Arc;
    use tokio::sync::{Semaphore, oneshot};

    #[tokio::test]
    async fn a_body_breaks_off_when_the_key_ends_and_keeps_its_place_until_then() {
        let room = Arc::new(Semaphore::new(1));
        let place = room.clone().try_acquire_owned().expect("a place");
        let (end, ended) = oneshot::channel::<()>();
        let key_end = async move {
            let _ = ended.await;
            ApiError::invalid_key("revoked")
        };
        let endless = futures::stream::repeat_with(|| Ok::<_, axum::Error>(Bytes::from("line\n")));
        let endless = Body::from_stream(endless.take(1_000_000));
        let mut body = ResponseBody::new(endless, key_end.boxed().fuse(), place);
        let frame = body.frame().await.expect("a frame").expect("no error");
        assert_eq!(frame.into_data().expect("data"), "line\n");
        assert_eq!(room.available_permits(), 0);
        end.send(()).expect("it waits");
        assert!(
            body.frame().await.expect("an end").is_err(),
            "the caller must see that it broke off"
        );
        assert!(body.frame().await.is_none());
        drop(body);
        assert_eq!(room.available_permits(), 1);
    }

    #[test]
    fn a_body_of_known_length_keeps_it() {
        let room = Arc::new(Semaphore::new(1));
        let place = room.try_acquire_owned().expect("a place");
        let body = ResponseBody::new(
            Body::from("12345"),
            futures::future::pending().boxed().fuse(),
            place,
        );
        assert_eq!(http_body::Body::size_hint(&body).exact(), Some(5));
    }
}
