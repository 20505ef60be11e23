//! Owns: the queue that combines the operations of many callers into few requests.
//!
//! Invariant: requests go out in the order in which their parts were queued, at most `IN_FLIGHT` at a time. An idle
//! queue sends as soon as no other caller is ready to run, so callers that one event wakes share a request. There is
//! no timer. Parts that arrive while a request is in flight share the next one. The queue is bounded in bytes, and
//! callers wait when it is full. A read-only request is dropped when no caller waits for its answer.
//! Absent: what the parts mean. A request fails for every caller that shares it, so combine only parts that fail
//! together.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use rollout_proto::ClientError;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::AbortHandle;

/// Bytes of queued and in-flight parts of one queue.
const ROOM_BYTES: usize = 64 << 20;
/// Overhead of one caller besides its bytes.
const CALLER_BYTES: usize = 256;

/// One kind of request.
pub(crate) trait Exchange: Clone + Send + Sync + 'static {
    /// One caller's operation.
    type Part: Send + 'static;
    /// The answer to a part.
    type Answer: Send + 'static;
    /// Requests in flight at a time. With more than one, parts of different requests are answered in any order.
    const IN_FLIGHT: usize;
    /// Whether it is read-only. If so, it is dropped once all of its callers have gone; otherwise it would occupy its
    /// place at the leader for nothing. A change is never dropped: it may already have been made.
    const LOOKS: bool;

    /// Approximate bytes of a part.
    fn bytes(part: &Self::Part) -> usize;

    /// How many parts from the front fit into one request; at least one.
    fn fitting<'a>(parts: impl Iterator<Item = &'a Self::Part>) -> usize;

    /// Sends one request; returns one answer per part.
    fn send(
        &self,
        parts: Vec<Self::Part>,
    ) -> impl Future<Output = Result<Vec<Self::Answer>, ClientError>> + Send;
}

/// The future answer of one part.
pub(crate) type Answered<A> = oneshot::Receiver<Result<A, ClientError>>;

struct Waiting<E: Exchange> {
    part: E::Part,
    answer: oneshot::Sender<Result<E::Answer, ClientError>>,
    room: OwnedSemaphorePermit,
}

struct Queue<E: Exchange> {
    waiting: VecDeque<Waiting<E>>,
    /// Drivers, each with one request in flight.
    drivers: Vec<AbortHandle>,
    driven: usize,
    /// No more callers will come.
    closed: bool,
}

struct Shared<E: Exchange> {
    exchange: E,
    queue: Mutex<Queue<E>>,
    room: Arc<Semaphore>,
}

/// A queue of parts. Requests in flight end when it is dropped.
pub(crate) struct Batches<E: Exchange>(Arc<Shared<E>>);

impl<E: Exchange> Batches<E> {
    pub(crate) fn new(exchange: E) -> Self {
        let (waiting, drivers) = (VecDeque::new(), Vec::new());
        let queue = Queue { waiting, drivers, driven: 0, closed: false };
        let room = Arc::new(Semaphore::new(ROOM_BYTES));
        Self(Arc::new(Shared { exchange, queue: Mutex::new(queue), room }))
    }

    /// Puts a part into the queue, once there is room for it.
    pub(crate) async fn begin(&self, part: E::Part) -> Answered<E::Answer> {
        let bytes = (E::bytes(&part) + CALLER_BYTES).min(ROOM_BYTES) as u32;
        let (answer, answered) = oneshot::channel();
        // This semaphore is never closed; if it were, the caller would get no answer.
        let Ok(room) = self.0.room.clone().acquire_many_owned(bytes).await else { return answered };
        let mut queue = self.0.queue.lock();
        queue.waiting.push_back(Waiting { part, answer, room });
        let starts = queue.driven < E::IN_FLIGHT;
        queue.driven += usize::from(starts);
        drop(queue);
        if starts {
            Driver::start(&self.0, &Handle::current());
        }
        answered
    }

    /// Queues a part and waits for the answer.
    pub(crate) async fn call(&self, part: E::Part) -> Result<E::Answer, ClientError> {
        answer(self.begin(part).await).await
    }
}

/// The answer of a part that was begun.
pub(crate) async fn answer<A>(
    answered: impl Future<Output = Result<Result<A, ClientError>, oneshot::error::RecvError>>,
) -> Result<A, ClientError> {
    // No answer arrives only if the runtime ends or the request panics.
    let ended = || ClientError::OutcomeUnknown {
        what: "the shared store",
        waited_ms: 0,
        tried: vec![("this process".into(), "it is ending".into())],
        forgotten: false,
    };
    answered.await.unwrap_or_else(|_| Err(ended()))
}

impl<E: Exchange> Drop for Batches<E> {
    fn drop(&mut self) {
        let (drivers, waiting) = {
            let mut queue = self.0.queue.lock();
            queue.closed = true;
            (std::mem::take(&mut queue.drivers), std::mem::take(&mut queue.waiting))
        };
        drop(waiting);
        drivers.iter().for_each(AbortHandle::abort);
    }
}

/// Sends requests until the queue is empty. However it ends, another one follows for the parts that wait: a panic in
/// one request must not stop the queue for later callers.
struct Driver<E: Exchange> {
    shared: Arc<Shared<E>>,
    /// It has run. One that an ending runtime drops unused has no successor.
    at_work: bool,
    /// It is no longer counted.
    over: bool,
}

impl<E: Exchange> Driver<E> {
    /// Starts a driver that is already counted. Call it without the queue's lock: an ending runtime drops the driver
    /// within this call.
    fn start(shared: &Arc<Shared<E>>, runtime: &Handle) {
        let driver = Self { shared: shared.clone(), at_work: false, over: false };
        let started = runtime.spawn(driver.drive()).abort_handle();
        let mut queue = shared.queue.lock();
        queue.drivers.retain(|driver| !driver.is_finished());
        match queue.closed {
            true => started.abort(),
            false => queue.drivers.push(started),
        }
    }
}

impl<E: Exchange> Drop for Driver<E> {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        let mut queue = self.shared.queue.lock();
        queue.driven -= 1;
        let follows = self.at_work && !queue.waiting.is_empty();
        if let Some(runtime) = Handle::try_current().ok().filter(|_| follows) {
            queue.driven += 1;
            drop(queue);
            Self::start(&self.shared, &runtime);
        }
    }
}

impl<E: Exchange> Driver<E> {
    async fn drive(mut self) {
        self.at_work = true;
        loop {
            // Callers that one event wakes, such as the end of a wait, queue one after another: a request for each
            // would cost the leader that many times the work.
            tokio::task::yield_now().await;
            let Some(taken) = self.next() else { return };
            let (mut parts, mut callers) = (Vec::new(), Vec::new());
            for Waiting { part, answer, room } in taken {
                parts.push(part);
                callers.push((answer, room));
            }
            let exchange = self.shared.exchange.send(parts);
            let answered = match E::LOOKS {
                true => tokio::select! {
                    biased;
                    answered = exchange => answered,
                    () = all_gone(&mut callers) => continue,
                },
                false => exchange.await,
            };
            match answered {
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

    /// The callers that share the next request. Without any, this driver ends, and the next caller starts another one.
    fn next(&mut self) -> Option<Vec<Waiting<E>>> {
        let mut queue = self.shared.queue.lock();
        // A caller that has gone needs no answer, and an unsent part need not be sent.
        queue.waiting.retain(|waiting| !waiting.answer.is_closed());
        let count = E::fitting(queue.waiting.iter().map(|waiting| &waiting.part));
        if count == 0 {
            queue.driven -= 1;
            self.over = true;
            return None;
        }
        Some(queue.waiting.drain(..count).collect())
    }
}

type Caller<A> = (oneshot::Sender<Result<A, ClientError>>, OwnedSemaphorePermit);

/// Returns once no caller waits for an answer.
async fn all_gone<A>(callers: &mut [Caller<A>]) {
    for (caller, _room) in callers {
        caller.closed().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::sync::mpsc;

    /// Shows each request to the test, which releases it.
    #[derive(Clone)]
    struct ShownExchange(mpsc::UnboundedSender<(Vec<u32>, oneshot::Sender<bool>)>);

    impl Exchange for ShownExchange {
        type Part = u32;
        type Answer = u32;
        const IN_FLIGHT: usize = 1;
        const LOOKS: bool = true;

        fn bytes(_: &u32) -> usize {
            4
        }

        fn fitting<'a>(parts: impl Iterator<Item = &'a u32>) -> usize {
            parts.take(4).count()
        }

        async fn send(&self, parts: Vec<u32>) -> Result<Vec<u32>, ClientError> {
            let (go, gone) = oneshot::channel();
            self.0.send((parts.clone(), go)).expect("the test listens");
            match gone.await.expect("the test answers") {
                true => Ok(parts.into_iter().map(|part| part * 10).collect()),
                false => Err(ClientError::NoEndpoints),
            }
        }
    }

    #[tokio::test]
    async fn parts_that_arrive_during_a_request_share_the_next_one_in_order() {
        let (sender, mut asked) = mpsc::unbounded_channel();
        let batches = Batches::new(ShownExchange(sender));
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

    /// The last task that a worker thread starts runs before those that were ready earlier, so the driver would, too.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn callers_that_are_ready_at_the_same_time_share_a_request() {
        let (sender, mut asked) = mpsc::unbounded_channel();
        let batches = Arc::new(Batches::new(ShownExchange(sender)));
        let callers = tokio::spawn(async move {
            let mut callers = tokio::task::JoinSet::new();
            for part in 1..=4 {
                let batches = batches.clone();
                callers.spawn(async move { batches.call(part).await.expect("an answer") });
            }
            callers.join_all().await
        });
        let (mut parts, go) = asked.recv().await.expect("one request");
        parts.sort_unstable();
        assert_eq!(parts, [1, 2, 3, 4]);
        go.send(true).expect("it waits");
        let mut answers = callers.await.expect("no panic");
        answers.sort_unstable();
        assert_eq!(answers, [10, 20, 30, 40]);
    }

    #[tokio::test]
    async fn an_unsent_part_is_dropped_with_its_caller_and_frees_its_room() {
        let (sender, mut asked) = mpsc::unbounded_channel();
        let batches = Batches::new(ShownExchange(sender));
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

    #[tokio::test]
    async fn a_read_only_request_ends_when_all_of_its_callers_have_gone() {
        let (sender, mut asked) = mpsc::unbounded_channel();
        let batches = Batches::new(ShownExchange(sender));
        let first = batches.begin(1).await;
        let (_, go) = asked.recv().await.expect("at once");
        let (second, third) = (batches.begin(2).await, batches.begin(3).await);
        go.send(true).expect("it waits");
        let (parts, mut go) = asked.recv().await.expect("the next");
        assert_eq!((parts.as_slice(), answer(first).await.expect("an answer")), (&[2, 3][..], 10));
        drop(second);
        tokio::task::yield_now().await;
        assert!(!go.is_closed(), "a caller waits for it");
        drop(third);
        let limit = Duration::from_secs(30);
        tokio::time::timeout(limit, go.closed()).await.expect("the request is dropped");
        let fourth = batches.begin(4).await;
        let (parts, go) = asked.recv().await.expect("the next");
        assert_eq!(parts, [4]);
        go.send(true).expect("it waits");
        assert_eq!(answer(fourth).await.expect("an answer"), 40);
    }

    /// A change that panics at the first part and is shown for the others.
    #[derive(Clone)]
    struct Fragile(ShownExchange);

    impl Exchange for Fragile {
        type Part = u32;
        type Answer = u32;
        const IN_FLIGHT: usize = 1;
        const LOOKS: bool = false;

        fn bytes(_: &u32) -> usize {
            4
        }

        fn fitting<'a>(parts: impl Iterator<Item = &'a u32>) -> usize {
            parts.take(1).count()
        }

        async fn send(&self, parts: Vec<u32>) -> Result<Vec<u32>, ClientError> {
            let answers = self.0.send(parts).await?;
            assert_ne!(answers, [10], "as the test wants it");
            Ok(answers)
        }
    }

    #[tokio::test]
    async fn a_panic_in_one_request_does_not_stop_the_queue() {
        let (sender, mut asked) = mpsc::unbounded_channel();
        let batches = Batches::new(Fragile(ShownExchange(sender)));
        let (first, second) = (batches.begin(1).await, batches.begin(2).await);
        let (_, go) = asked.recv().await.expect("at once");
        go.send(true).expect("it waits");
        assert!(answer(first).await.is_err(), "it gets no answer");
        let (parts, go) = asked.recv().await.expect("another driver");
        assert_eq!(parts, [2]);
        go.send(true).expect("it waits");
        assert_eq!(answer(second).await.expect("an answer"), 20);
        let third = batches.begin(3).await;
        let (_, go) = asked.recv().await.expect("and one for what comes later");
        go.send(true).expect("it waits");
        assert_eq!(answer(third).await.expect("an answer"), 30);
    }

    #[tokio::test]
    async fn a_change_goes_on_when_its_caller_has_gone() {
        let (sender, mut asked) = mpsc::unbounded_channel();
        let batches = Batches::new(Fragile(ShownExchange(sender)));
        let second = batches.begin(2).await;
        let (_, go) = asked.recv().await.expect("at once");
        drop(second);
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        go.send(true).expect("it waits");
    }
}
