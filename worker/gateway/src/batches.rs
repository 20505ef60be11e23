//! Owns: what many callers ask at once, sent as few requests.
//!
//! Invariant: requests go out in the order in which their parts were asked for, `IN_FLIGHT` at a time at most, and an
//! idle queue delays nothing: what is asked first goes out at once, and what comes while it is under way shares the next
//! request. No timer. What waits is bounded in bytes, over which callers wait to get in.
//! Absent: what is asked. A request fails for all who share it, so put together only what one refusal concerns.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use rollout_proto::ClientError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::AbortHandle;

/// Bytes of what waits or is under way in one queue.
const ROOM_BYTES: usize = 64 << 20;
/// What one caller costs besides its bytes.
const CALLER_BYTES: usize = 256;

/// One kind of request.
pub(crate) trait Exchange: Clone + Send + Sync + 'static {
    /// What one caller asks.
    type Part: Send + 'static;
    /// What it is answered.
    type Answer: Send + 'static;
    /// Requests under way at a time. More than one, and parts of different requests are answered in any order.
    const IN_FLIGHT: usize;

    /// Bytes of a part, about.
    fn bytes(part: &Self::Part) -> usize;

    /// How many from the front share a request: at least one of several.
    fn fitting<'a>(parts: impl Iterator<Item = &'a Self::Part>) -> usize;

    /// Asks; an answer a part.
    fn ask(
        &self,
        parts: Vec<Self::Part>,
    ) -> impl Future<Output = Result<Vec<Self::Answer>, ClientError>> + Send;
}

/// The answer of one part, once it is there.
pub(crate) type Answered<A> = oneshot::Receiver<Result<A, ClientError>>;

struct Waiting<E: Exchange> {
    part: E::Part,
    answer: oneshot::Sender<Result<E::Answer, ClientError>>,
    room: OwnedSemaphorePermit,
}

struct Queue<E: Exchange> {
    waiting: VecDeque<Waiting<E>>,
    /// Drivers, of which each has one request under way.
    drivers: Vec<AbortHandle>,
    driven: usize,
}

struct Shared<E: Exchange> {
    exchange: E,
    queue: Mutex<Queue<E>>,
    room: Arc<Semaphore>,
}

/// Where parts are asked. What is under way ends when it is dropped.
pub(crate) struct Batches<E: Exchange>(Arc<Shared<E>>);

impl<E: Exchange> Batches<E> {
    pub(crate) fn new(exchange: E) -> Self {
        let queue = Queue { waiting: VecDeque::new(), drivers: Vec::new(), driven: 0 };
        let room = Arc::new(Semaphore::new(ROOM_BYTES));
        Self(Arc::new(Shared { exchange, queue: Mutex::new(queue), room }))
    }

    /// Puts a part into the queue, once there is room for it.
    pub(crate) async fn begin(&self, part: E::Part) -> Answered<E::Answer> {
        let bytes = (E::bytes(&part) + CALLER_BYTES).min(ROOM_BYTES) as u32;
        let (answer, answered) = oneshot::channel();
        // Nobody closes this semaphore; were it closed, the answer would be that there is none.
        let Ok(room) = self.0.room.clone().acquire_many_owned(bytes).await else { return answered };
        let mut queue = self.0.queue.lock();
        queue.waiting.push_back(Waiting { part, answer, room });
        if queue.driven < E::IN_FLIGHT {
            queue.driven += 1;
            queue.drivers.retain(|driver| !driver.is_finished());
            queue.drivers.push(tokio::spawn(drive(self.0.clone())).abort_handle());
        }
        answered
    }

    /// Asks, and waits for the answer.
    pub(crate) async fn ask(&self, part: E::Part) -> Result<E::Answer, ClientError> {
        answer(self.begin(part).await).await
    }
}

/// The answer of a part that was begun.
pub(crate) async fn answer<A>(
    answered: impl Future<Output = Result<Result<A, ClientError>, oneshot::error::RecvError>>,
) -> Result<A, ClientError> {
    // Only where the runtime ends is nobody left to answer.
    let ended = || ClientError::OutcomeUnknown {
        what: "the shared store",
        waited_ms: 0,
        tried: vec![("this process".into(), "it is ending".into())],
    };
    answered.await.unwrap_or_else(|_| Err(ended()))
}

impl<E: Exchange> Drop for Batches<E> {
    fn drop(&mut self) {
        self.0.queue.lock().drivers.iter().for_each(AbortHandle::abort);
    }
}

/// Sends requests until nothing waits.
async fn drive<E: Exchange>(shared: Arc<Shared<E>>) {
    loop {
        let mut taken: Vec<Waiting<E>> = {
            let mut queue = shared.queue.lock();
            // Who has gone away needs no answer, and what was not sent need not be.
            queue.waiting.retain(|waiting| !waiting.answer.is_closed());
            let count = E::fitting(queue.waiting.iter().map(|waiting| &waiting.part));
            if count == 0 {
                queue.driven -= 1;
                return;
            }
            queue.waiting.drain(..count).collect()
        };
        let (mut parts, mut callers) = (Vec::new(), Vec::new());
        for Waiting { part, answer, room } in taken.drain(..) {
            parts.push(part);
            callers.push((answer, room));
        }
        match shared.exchange.ask(parts).await {
            Ok(answers) => {
                for ((caller, _room), answer) in callers.into_iter().zip(answers) {
                    drop(caller.send(Ok(answer)));
                }
            }
            Err(error) => {
                for (caller, _room) in callers {
                    drop(caller.send(Err(error.clone())));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::sync::mpsc;

    /// Each request is shown to the test, which lets it go on.
    #[derive(Clone)]
    struct Shown(mpsc::UnboundedSender<(Vec<u32>, oneshot::Sender<bool>)>);

    impl Exchange for Shown {
        type Part = u32;
        type Answer = u32;
        const IN_FLIGHT: usize = 1;

        fn bytes(_: &u32) -> usize {
            4
        }

        fn fitting<'a>(parts: impl Iterator<Item = &'a u32>) -> usize {
            parts.take(4).count()
        }

        async fn ask(&self, parts: Vec<u32>) -> Result<Vec<u32>, ClientError> {
            let (go, gone) = oneshot::channel();
            self.0.send((parts.clone(), go)).expect("the test listens");
            match gone.await.expect("the test answers") {
                true => Ok(parts.into_iter().map(|part| part * 10).collect()),
                false => Err(ClientError::NoEndpoints),
            }
        }
    }

    #[tokio::test]
    async fn what_comes_while_a_request_is_under_way_shares_the_next_in_its_order() {
        let (sender, mut asked) = mpsc::unbounded_channel();
        let batches = Batches::new(Shown(sender));
        let first = batches.begin(1).await;
        let (parts, go) = asked.recv().await.expect("at once");
        assert_eq!(parts, [1], "an idle queue delays nothing");
        let mut later = Vec::new();
        for part in 2..=6 {
            later.push(batches.begin(part).await);
        }
        assert!(asked.try_recv().is_err(), "one at a time");
        go.send(true).expect("it waits");
        assert_eq!(answer(first).await.expect("an answer"), 10);
        let (parts, go) = asked.recv().await.expect("the next");
        assert_eq!(parts, [2, 3, 4, 5], "as many as fit");
        go.send(false).expect("it waits");
        let (parts, go) = asked.recv().await.expect("the last");
        assert_eq!(parts, [6]);
        go.send(true).expect("it waits");
        let mut later = later.into_iter();
        for refused in later.by_ref().take(4) {
            assert!(answer(refused).await.is_err(), "a refusal is for all who share the request");
        }
        assert_eq!(answer(later.next().expect("the fifth")).await.expect("an answer"), 60);
    }

    #[tokio::test]
    async fn what_was_not_sent_goes_with_its_caller_and_the_room_that_it_had_is_free_again() {
        let (sender, mut asked) = mpsc::unbounded_channel();
        let batches = Batches::new(Shown(sender));
        let _first = batches.begin(1).await;
        let (_, go) = asked.recv().await.expect("at once");
        drop(batches.begin(2).await);
        let third = batches.begin(3).await;
        go.send(true).expect("it waits");
        let (parts, go) = asked.recv().await.expect("the next");
        assert_eq!(parts, [3]);
        go.send(true).expect("it waits");
        assert_eq!(answer(third).await.expect("an answer"), 30);
        let all = batches.0.room.clone();
        let limit = Duration::from_secs(30);
        let free = tokio::time::timeout(limit, all.acquire_many(ROOM_BYTES as u32));
        assert!(free.await.is_ok(), "nothing waits");
    }
}
