//! A bound on the bytes of requests that have arrived in part.
//!
//! *Invariant:* the unfinished messages of all callers together take at most [`BUDGET_BYTES`], those of one identity three
//! quarters of that. A message that would take more fails as overloaded. So callers that send megabytes and never finish
//! cannot fill the member's memory, and one of them cannot keep the others from sending. Bytes are counted from a message's
//! first byte until its last: then the service has it, whose own bounds hold.
//!
//! Deliberately absent: bounds of one message, which each service has (`server`).

use crate::fair_room::{FairRoom, Place};
use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};
use rollout_proto::{ErrorCode, Identity, PeerInfo, RpcError};
use std::pin::Pin;
use std::task::{Context, Poll};
use tonic::Status;
use tower::{Layer, Service};

/// Bytes of unfinished messages, of all callers together.
const BUDGET_BYTES: usize = 256 << 20;
/// Before each message: one byte that tells whether it is compressed, and its length in four.
const HEADER_BYTES: usize = 5;

/// The layer, for all services of a port.
#[derive(Clone)]
pub(crate) struct BodyBudgetLayer(FairRoom);

impl BodyBudgetLayer {
    pub(crate) fn new() -> Self {
        Self::of(BUDGET_BYTES)
    }

    fn of(bytes: usize) -> Self {
        Self(FairRoom::new(bytes))
    }
}

impl<S> Layer<S> for BodyBudgetLayer {
    type Service = Budgeted<S>;

    fn layer(&self, inner: S) -> Budgeted<S> {
        Budgeted { inner, room: self.0.clone() }
    }
}

/// A service whose requests' bodies are counted.
#[derive(Clone)]
pub(crate) struct Budgeted<S> {
    inner: S,
    room: FairRoom,
}

impl<S> Service<http::Request<tonic::body::Body>> for Budgeted<S>
where
    S: Service<http::Request<tonic::body::Body>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        let caller = request.extensions().get::<PeerInfo>().map(|peer| peer.identity.clone());
        let held = self.room.none(caller.unwrap_or_else(Identity::insecure));
        let counted = |inner| Counted { inner, held, message: Message::default() };
        self.inner.call(request.map(|body| tonic::body::Body::new(counted(body))))
    }
}

/// How much of the message that is arriving is there.
#[derive(Default)]
struct Message {
    header: Vec<u8>,
    /// Bytes that are still to come after the header.
    left: usize,
}

impl Message {
    /// Follows the next bytes of the stream. True if a message ended in them.
    fn advance(&mut self, mut bytes: &[u8]) -> bool {
        let mut ended = false;
        while !bytes.is_empty() {
            if self.header.len() < HEADER_BYTES {
                self.header.push(bytes.get_u8());
                if let [_, length @ ..] = &self.header[..]
                    && let Ok(length) = <[u8; 4]>::try_from(length)
                {
                    self.left = u32::from_be_bytes(length) as usize;
                }
            } else {
                let taken = self.left.min(bytes.len());
                bytes.advance(taken);
                self.left -= taken;
            }
            if self.header.len() == HEADER_BYTES && self.left == 0 {
                self.header.clear();
                ended = true;
            }
        }
        ended
    }

    /// Nothing of the next message is there.
    fn is_whole(&self) -> bool {
        self.header.is_empty()
    }
}

/// A body whose unfinished message holds its part of the budget.
struct Counted {
    inner: tonic::body::Body,
    held: Place,
    message: Message,
}

impl Counted {
    fn count(&mut self, bytes: &Bytes) -> Result<(), Status> {
        if self.message.advance(bytes) {
            self.held.give_back();
        }
        if self.message.is_whole() || self.held.grow(bytes.len()) {
            return Ok(());
        }
        let text = format!(
            "partially received requests use all the memory that they may, or {} uses three quarters of it: try again later",
            self.held.holder()
        );
        Err(RpcError::new(ErrorCode::Overloaded, text).into())
    }
}

impl Body for Counted {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let polled = std::task::ready!(Pin::new(&mut self.inner).poll_frame(cx));
        Poll::Ready(polled.map(|frame| {
            let frame = frame?;
            if let Some(bytes) = frame.data_ref() {
                self.count(bytes)?;
            }
            Ok(frame)
        }))
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
    use futures::StreamExt;
    use http_body_util::{BodyExt, StreamBody};
    use rollout_proto::Role;
    use std::convert::Infallible;
    use std::net::SocketAddr;
    use tokio::sync::mpsc;
    use tokio_stream::wrappers::UnboundedReceiverStream;

    /// A request that is written by and by, as the service behind the layer reads it.
    struct Asked {
        send: mpsc::UnboundedSender<Bytes>,
        body: tonic::body::Body,
    }

    async fn ask(layer: &BodyBudgetLayer) -> Asked {
        ask_as(layer, Identity::insecure()).await
    }

    async fn ask_as(layer: &BodyBudgetLayer, caller: Identity) -> Asked {
        let (send, receive) = mpsc::unbounded_channel::<Bytes>();
        let frames =
            UnboundedReceiverStream::new(receive).map(|b| Ok::<_, Infallible>(Frame::data(b)));
        let mut request = http::Request::new(tonic::body::Body::new(StreamBody::new(frames)));
        let addr = SocketAddr::from(([127, 0, 0, 1], 1));
        request.extensions_mut().insert(PeerInfo::uncertified(caller, addr));
        let echo = tower::service_fn(|request: http::Request<tonic::body::Body>| async move {
            Ok::<_, Infallible>(request.into_body())
        });
        let body = layer.layer(echo).call(request).await.expect("it answers");
        Asked { send, body }
    }

    impl Asked {
        async fn send(&mut self, bytes: Vec<u8>) -> Result<(), Status> {
            self.send.send(bytes.into()).expect("it is read");
            self.body.frame().await.expect("a frame").map(drop)
        }
    }

    fn message(length: u32) -> Vec<u8> {
        let mut bytes = vec![0];
        bytes.extend(length.to_be_bytes());
        bytes.resize(HEADER_BYTES + length as usize, 7);
        bytes
    }

    #[tokio::test]
    async fn unfinished_messages_of_all_callers_share_one_budget() {
        let layer = BodyBudgetLayer::of(1000);
        let (mut one, mut two) = (ask(&layer).await, ask(&layer).await);
        one.send(message(2000)[..600].to_vec()).await.expect("there is room");
        let refused = two.send(message(2000)[..600].to_vec()).await.expect_err("no room");
        assert_eq!(RpcError::from_status(&refused).code, ErrorCode::Overloaded);
        // One that is whole at once needs none.
        let mut three = ask(&layer).await;
        three.send(message(5000)).await.expect("it is whole");
        drop(one);
        let mut four = ask(&layer).await;
        four.send(message(2000)[..600].to_vec()).await.expect("the first has gone");
    }

    #[tokio::test]
    async fn one_caller_leaves_a_quarter_of_the_budget_to_others() {
        let layer = BodyBudgetLayer::of(1000);
        let named = |name: &str| Identity::new(Role::Client, name, Vec::new()).expect("a name");
        let mut greedy = Vec::new();
        for _ in 0..3 {
            let mut one = ask_as(&layer, named("greedy")).await;
            one.send(message(2000)[..250].to_vec()).await.expect("there is room");
            greedy.push(one);
        }
        let mut more = ask_as(&layer, named("greedy")).await;
        let refused = more.send(message(2000)[..10].to_vec()).await.expect_err("it has its share");
        assert_eq!(RpcError::from_status(&refused).code, ErrorCode::Overloaded);
        let mut other = ask_as(&layer, named("other")).await;
        other.send(message(2000)[..250].to_vec()).await.expect("the rest is for others");
        drop((greedy, other));
        assert_eq!(layer.0.left(), 1000);
    }

    #[tokio::test]
    async fn a_stream_of_finished_messages_holds_nothing() {
        let layer = BodyBudgetLayer::of(1000);
        let mut stream = ask(&layer).await;
        let whole = message(900);
        for _ in 0..10 {
            // In pieces, of which one ends in the header.
            for piece in [&whole[..3], &whole[3..500], &whole[500..]] {
                stream.send(piece.to_vec()).await.expect("there is room");
            }
        }
        assert_eq!(layer.0.left(), 1000);
        // Two messages and the beginning of a third in one piece.
        let mut bytes = [message(10), message(0), message(100)].concat();
        let end = bytes.split_off(40);
        stream.send(bytes).await.expect("there is room");
        assert_eq!(layer.0.left(), 960);
        stream.send(end).await.expect("there is room");
        assert_eq!(layer.0.left(), 1000);
        // Messages that never end with a piece.
        let many = message(90).repeat(100);
        for piece in many.chunks(100) {
            stream.send(piece.to_vec()).await.expect("there is room");
        }
    }
}
