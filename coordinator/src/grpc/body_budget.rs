//! A bound on the memory of requests that arrive or are being answered.
//!
//! *Invariant:* the messages of all callers together take at most [`BUDGET_BYTES`], and those of one identity at most
//! three quarters of that. A message that would exceed the bound fails as overloaded. So callers that send megabytes
//! and never finish, or messages that grow many times on decoding, cannot fill the member's memory, and one caller
//! cannot keep the others from sending. A message counts with its weight (`message_weight`) from its first byte. A
//! small message counts until its last byte; a larger one until its call is answered or, in a stream, until the service
//! asks for the next message. If the service itself counts the elements that it holds, a whole message counts with its
//! length. If the service decodes another request from the bytes of a message, it takes room for that one.
//!
//! Absent: bounds of one message, which each service has (`server`).

use crate::grpc::message_weight::{self, Method, Weighing};
use crate::leader::fair_room::{FairRoom, Permit};
use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use rollout_proto::{ErrorCode, Identity, PeerInfo, RpcError};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tonic::Status;
use tower::{Layer, Service};

/// The weight of all callers' messages together.
const BUDGET_BYTES: usize = 256 << 20;
/// A complete message of this weight or less no longer counts: thousands of workers may report at once.
const FREE_BYTES: usize = 64 << 10;
/// The prefix of each message: one byte that tells whether it is compressed, and its length in four.
const HEADER_BYTES: usize = 5;

/// The layer, for all services of a port.
#[derive(Clone)]
pub(crate) struct BodyBudgetLayer(FairRoom);

impl BodyBudgetLayer {
    pub(crate) fn new() -> Self {
        Self::of(BUDGET_BYTES)
    }

    pub(super) fn of(bytes: usize) -> Self {
        Self(FairRoom::new(bytes))
    }

    /// Room for a request that is decoded from the bytes of another one, which is too small to count until its answer.
    ///
    /// # Errors
    /// There is no room for it.
    pub(crate) fn room_for(&self, caller: Identity, weight: usize) -> Result<Permit, RpcError> {
        let mut room = self.0.none(caller);
        match room.grow(weight) {
            true => Ok(room),
            false => Err(overloaded(room.holder())),
        }
    }
}

fn overloaded(caller: &Identity) -> RpcError {
    let text = format!(
        "requests in progress use all the memory that they may, or {caller} uses three quarters of it: try again later"
    );
    RpcError::new(ErrorCode::Overloaded, text)
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

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl<S> Service<http::Request<tonic::body::Body>> for Budgeted<S>
where
    S: Service<http::Request<tonic::body::Body>>,
    S::Future: Send + 'static,
    S::Response: 'static,
    S::Error: 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Boxed<Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        let caller = request.extensions().get::<PeerInfo>().map(|peer| peer.identity.clone());
        let caller = caller.unwrap_or_else(Identity::insecure);
        let method = message_weight::method(request.uri().path());
        let arriving = self.room.none(caller.clone());
        let handed = Arc::new(Mutex::new(self.room.none(caller)));
        let until_answered = handed.clone();
        let message = Message::new(method);
        let counted = |inner| Counted { inner, arriving, handed, message };
        let answer = self.inner.call(request.map(|body| tonic::body::Body::new(counted(body))));
        Box::pin(async move {
            let answer = answer.await;
            drop(until_answered);
            answer
        })
    }
}

/// How much of the arriving message has arrived.
struct Message {
    method: Option<Method>,
    header: Vec<u8>,
    /// Its length after the header.
    length: usize,
    /// Bytes that are still to come.
    left: usize,
    /// Set when the header is complete, if the message can be weighed.
    weighing: Option<Weighing>,
    /// The weight of the bytes so far.
    weight: usize,
}

impl Message {
    fn new(method: Option<Method>) -> Self {
        Self { method, header: Vec::new(), length: 0, left: 0, weighing: None, weight: 0 }
    }

    /// Advances in the stream to the end of the message or of the bytes. Returns the weight that these bytes add and,
    /// if the message ends, the weight that the whole message has from then on.
    fn advance(&mut self, bytes: &mut &[u8]) -> Result<(usize, Option<usize>), RpcError> {
        let before = self.weight;
        while !bytes.is_empty() && self.header.len() < HEADER_BYTES {
            self.header.push(bytes.get_u8());
            self.weight += 1;
            if let [compressed, length @ ..] = &self.header[..]
                && let Ok(length) = <[u8; 4]>::try_from(length)
            {
                self.length = u32::from_be_bytes(length) as usize;
                self.left = self.length;
                // The services refuse compressed messages.
                let method = self.method.filter(|_| *compressed == 0);
                self.weighing = method.map(|method| Weighing::new(method, self.left));
            }
        }
        let all = *bytes;
        let (taken, rest) = all.split_at(self.left.min(all.len()));
        self.weight += match &mut self.weighing {
            Some(weighing) => weighing.add(taken)?,
            None => taken.len(),
        };
        self.left -= taken.len();
        *bytes = rest;
        let added = self.weight - before;
        if self.header.len() < HEADER_BYTES || self.left > 0 {
            return Ok((added, None));
        }
        self.header.clear();
        self.weighing = None;
        let weight = std::mem::take(&mut self.weight);
        let counts = self.method.is_some_and(|method| method.counts);
        Ok((added, Some(if counts { HEADER_BYTES + self.length } else { weight })))
    }

    /// Whether the caller may send another message after this one.
    fn streams(&self) -> bool {
        self.method.is_some_and(|method| method.streams)
    }
}

/// A body whose messages hold their share of the budget.
struct Counted {
    inner: tonic::body::Body,
    /// For the message that is not complete.
    arriving: Permit,
    /// For the messages that the service has; shared with the answer.
    handed: Arc<Mutex<Permit>>,
    message: Message,
}

impl Counted {
    fn count(&mut self, mut bytes: &[u8]) -> Result<(), Status> {
        while !bytes.is_empty() {
            let (added, whole) = self.message.advance(&mut bytes)?;
            let has_room = match whole {
                None => self.arriving.grow(added),
                Some(weight) => {
                    self.arriving.give_back();
                    weight <= FREE_BYTES || self.handed.lock().grow(weight)
                }
            };
            if !has_room {
                return Err(overloaded(self.arriving.holder()).into());
            }
        }
        Ok(())
    }
}

impl Body for Counted {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        // In a stream, a request for the next message means that the service is done with those before it.
        if self.message.streams() {
            self.handed.lock().give_back();
        }
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

    /// A request that is written piece by piece while the service behind the layer reads it.
    struct SlowRequest {
        send: mpsc::UnboundedSender<Bytes>,
        body: tonic::body::Body,
    }

    async fn ask(layer: &BodyBudgetLayer) -> SlowRequest {
        ask_as(layer, Identity::insecure()).await
    }

    async fn ask_as(layer: &BodyBudgetLayer, caller: Identity) -> SlowRequest {
        ask_at(layer, caller, "/").await
    }

    async fn ask_at(layer: &BodyBudgetLayer, caller: Identity, path: &'static str) -> SlowRequest {
        let (send, receive) = mpsc::unbounded_channel::<Bytes>();
        let frames =
            UnboundedReceiverStream::new(receive).map(|b| Ok::<_, Infallible>(Frame::data(b)));
        let mut request = http::Request::new(tonic::body::Body::new(StreamBody::new(frames)));
        *request.uri_mut() = http::Uri::from_static(path);
        let addr = SocketAddr::from(([127, 0, 0, 1], 1));
        request.extensions_mut().insert(PeerInfo::uncertified(caller, addr));
        let echo = tower::service_fn(|request: http::Request<tonic::body::Body>| async move {
            Ok::<_, Infallible>(request.into_body())
        });
        let body = layer.layer(echo).call(request).await.expect("it answers");
        SlowRequest { send, body }
    }

    impl SlowRequest {
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
        // A message that arrives complete holds none.
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
    async fn a_request_within_another_one_shares_the_budget_of_its_caller() {
        let layer = BodyBudgetLayer::of(1000);
        let room = layer.room_for(Identity::insecure(), 600).expect("there is room");
        let refused = layer.room_for(Identity::insecure(), 200).err().map(|why| why.code);
        assert_eq!(refused, Some(ErrorCode::Overloaded));
        let mut arriving = ask(&layer).await;
        let refused = arriving.send(message(2000)[..200].to_vec()).await.expect_err("no room");
        assert_eq!(RpcError::from_status(&refused).code, ErrorCode::Overloaded);
        drop((room, arriving));
        assert_eq!(layer.0.left(), 1000);
    }

    #[tokio::test]
    async fn a_stream_of_complete_messages_holds_no_budget() {
        let layer = BodyBudgetLayer::of(1000);
        let mut stream = ask(&layer).await;
        let whole = message(900);
        for _ in 0..10 {
            // In pieces, one of which ends within the header.
            for piece in [&whole[..3], &whole[3..500], &whole[500..]] {
                stream.send(piece.to_vec()).await.expect("there is room");
            }
        }
        assert_eq!(layer.0.left(), 1000);
        // Two messages and the start of a third in one piece.
        let mut bytes = [message(10), message(0), message(100)].concat();
        let end = bytes.split_off(40);
        stream.send(bytes).await.expect("there is room");
        assert_eq!(layer.0.left(), 980, "of the third, twenty bytes");
        stream.send(end).await.expect("there is room");
        assert_eq!(layer.0.left(), 1000);
        // Messages whose ends never coincide with that of a piece.
        let many = message(90).repeat(100);
        for piece in many.chunks(100) {
            stream.send(piece.to_vec()).await.expect("there is room");
        }
    }
    const ADD_SEGMENTS: &str = "/rollout.v1.Runs/AddSegments";

    /// A message with this many empty elements of the given field.
    fn empty_elements(field: u8, count: usize) -> Vec<u8> {
        let content = [(field << 3) | 2, 0].repeat(count);
        [&[0][..], &(content.len() as u32).to_be_bytes()[..], &content[..]].concat()
    }

    #[tokio::test]
    async fn a_message_of_millions_of_empty_elements_is_refused_before_it_is_whole() {
        let layer = BodyBudgetLayer::new();
        let mut asked = ask_at(&layer, Identity::insecure(), ADD_SEGMENTS).await;
        let mut bytes = empty_elements(3, 8_000_000);
        bytes.truncate(bytes.len() / 4);
        let refused = asked.send(bytes).await.expect_err("it would take two gigabytes");
        assert_eq!(RpcError::from_status(&refused).code, ErrorCode::InvalidArgument);
        drop(asked);
        assert_eq!(layer.0.left(), BUDGET_BYTES);
    }

    /// The part of the budget that a message to this path holds while the service has it.
    async fn held_until_answered(path: &'static str, message: Vec<u8>) -> usize {
        let layer = BodyBudgetLayer::of(1 << 20);
        let [read, answer] = [(); 2].map(|()| Arc::new(tokio::sync::Notify::new()));
        let (has_read, may_answer) = (read.clone(), answer.clone());
        let slow = tower::service_fn(move |request: http::Request<tonic::body::Body>| {
            let (has_read, may_answer) = (has_read.clone(), may_answer.clone());
            async move {
                request.into_body().collect().await.expect("it has an end");
                has_read.notify_one();
                may_answer.notified().await;
                Ok::<_, Infallible>(())
            }
        });
        let body = tonic::body::Body::new(http_body_util::Full::new(Bytes::from(message)));
        let mut request = http::Request::new(body);
        *request.uri_mut() = http::Uri::from_static(path);
        let call = tokio::spawn(layer.layer(slow).call(request));
        read.notified().await;
        let held = (1 << 20) - layer.0.left();
        answer.notify_one();
        call.await.expect("no panic").expect("it answers");
        assert_eq!(layer.0.left(), 1 << 20);
        held
    }

    #[tokio::test]
    async fn a_message_that_decoding_makes_large_counts_until_it_is_answered() {
        let held = held_until_answered(ADD_SEGMENTS, empty_elements(3, 1000)).await;
        assert!(held > 200_000, "its 2,005 bytes became {held}");
    }

    #[tokio::test]
    async fn a_held_wait_counts_with_its_length_because_its_service_counts_its_keys() {
        const WAIT: &str = "/rollout.v1.Store/Wait";
        assert_eq!(held_until_answered(WAIT, empty_elements(2, 1000)).await, 0, "it is small");
        let many = empty_elements(2, FREE_BYTES);
        let length = many.len();
        let layer = BodyBudgetLayer::new();
        let mut asked = ask_at(&layer, Identity::insecure(), WAIT).await;
        asked.send(many).await.expect("there is room");
        assert_eq!(BUDGET_BYTES - layer.0.left(), length);
    }

    #[tokio::test]
    async fn a_large_message_of_a_stream_counts_until_the_next_one_is_read() {
        let layer = BodyBudgetLayer::of(1 << 20);
        let path = "/rollout.v1.Worker/Work";
        let mut stream = ask_at(&layer, Identity::insecure(), path).await;
        for _ in 0..10 {
            stream.send(empty_elements(15, 1000)).await.expect("there is room");
            let held = (1 << 20) - layer.0.left();
            assert!((200_000..400_000).contains(&held), "one of them, not {held}");
        }
        stream.send(empty_elements(15, 1)).await.expect("there is room");
        assert_eq!(layer.0.left(), 1 << 20);
    }
}
