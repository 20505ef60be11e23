//! Owns: the answers that wait for the reader of a worker's stream, and which stream of each worker is the newest.
//!
//! Invariant: a worker has one stream. When it opens another one, the older one no longer holds answers or a message,
//! and its reader gets the reason. Otherwise a worker that opens many streams and reads none could fill the memory of
//! the leader: each stream may hold a full queue and a message that waits for room.
//! Absent: the room for exchanges, which may outlive their stream (`exchange_room`).

use super::exchange_room::Worker;
use futures::Stream;
use parking_lot::Mutex;
use rollout_proto::{ErrorCode, RpcError, v1};
use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll, Waker};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tonic::Status;

type Answer = Result<v1::LeaderMessage, RpcError>;

/// The newest stream of each worker.
#[derive(Clone, Default)]
pub(super) struct NewestStreams(Arc<Registry>);

#[derive(Default)]
struct Registry {
    /// Streams that were opened so far.
    opened: AtomicU64,
    newest: Mutex<HashMap<Worker, (u64, Weak<AnswerQueue>)>>,
}

impl NewestStreams {
    /// Takes the answers of a stream that a worker has opened, and returns what the worker reads. Call it in the order
    /// in which streams are opened.
    pub(super) fn open(&self, answers: mpsc::Receiver<Answer>) -> (Arc<AnswerQueue>, Answers) {
        let queue = Arc::new(AnswerQueue {
            number: self.0.opened.fetch_add(1, Ordering::Relaxed),
            registry: self.0.clone(),
            worker: OnceLock::new(),
            queue: Mutex::new(Queue { answers: Some(answers), reason: None, reader: None }),
            superseded: CancellationToken::new(),
        });
        (queue.clone(), Answers(queue))
    }

    /// Makes the stream the only one of the worker that has named itself on it. Ends the older one. `enter` makes the
    /// stream known to others. It runs before a newer stream can follow: if it ran later, it could replace the newer
    /// stream, which nobody would find then.
    ///
    /// # Errors
    /// The worker has a newer stream. Then `enter` does not run.
    pub(super) fn supersede(
        &self,
        worker: &Worker,
        stream: &Arc<AnswerQueue>,
        enter: impl FnOnce(),
    ) -> Result<(), RpcError> {
        let older = {
            let mut newest = self.0.newest.lock();
            let other = newest.get(worker);
            // The first message of this one was read late, and its worker no longer listens.
            if other.is_some_and(|other| other.0 > stream.number && other.1.strong_count() > 0) {
                return Err(superseded(worker));
            }
            // A stream names its worker once.
            let _ = stream.worker.set(worker.clone());
            enter();
            newest.insert(worker.clone(), (stream.number, Arc::downgrade(stream)))
        };
        // Without the lock, which the end of a queue takes.
        if let Some(older) = older.and_then(|(_, older)| older.upgrade()) {
            older.end(superseded(worker));
        }
        Ok(())
    }
}

fn superseded((namespace, name): &Worker) -> RpcError {
    let text = format!(
        "worker {namespace}/{name} has opened another stream, and a worker may have 1: this older one is closed"
    );
    // Streams are numbered when their handlers begin, which may not be the order in which the worker opened them. So it
    // may listen on this one and have given up the other. With this code it connects again at once; with one that it
    // takes for a refusal it would wait.
    RpcError::new(ErrorCode::ConnectFailed, text)
}

/// The answers that wait for the reader of one stream.
pub(super) struct AnswerQueue {
    /// A newer stream has a higher number.
    number: u64,
    registry: Arc<Registry>,
    /// Once the worker has named itself.
    worker: OnceLock<Worker>,
    queue: Mutex<Queue>,
    /// Cancelled when the worker has opened another stream: read no more messages of this one.
    pub(super) superseded: CancellationToken,
}

struct Queue {
    /// `None` once the worker has opened another stream, or reads no longer.
    answers: Option<mpsc::Receiver<Answer>>,
    /// Why there are no more answers, until the reader has it.
    reason: Option<RpcError>,
    /// The reader that waits for an answer.
    reader: Option<Waker>,
}

impl AnswerQueue {
    /// Drops the answers that wait, and gives the reader the reason.
    fn end(&self, reason: RpcError) {
        let (answers, reader) = {
            let mut queue = self.queue.lock();
            queue.reason = Some(reason);
            (queue.answers.take(), queue.reader.take())
        };
        self.superseded.cancel();
        drop(answers);
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    fn poll_answer(&self, cx: &mut Context<'_>) -> Poll<Option<Answer>> {
        let mut guard = self.queue.lock();
        let queue = &mut *guard;
        let polled = match &mut queue.answers {
            Some(answers) => answers.poll_recv(cx),
            None => Poll::Ready(queue.reason.take().map(Err)),
        };
        if polled.is_pending() {
            queue.reader = Some(cx.waker().clone());
        }
        polled
    }
}

impl Drop for AnswerQueue {
    fn drop(&mut self) {
        let Some(worker) = self.worker.get() else { return };
        let mut newest = self.registry.newest.lock();
        if newest.get(worker).is_some_and(|(number, _)| *number == self.number) {
            newest.remove(worker);
        }
    }
}

/// The messages to a worker, as its stream carries them.
pub(crate) struct Answers(Arc<AnswerQueue>);

impl Drop for Answers {
    /// The connection has ended. The stream's task may go on for a while, and must not wait for room.
    fn drop(&mut self) {
        let answers = self.0.queue.lock().answers.take();
        drop(answers);
    }
}

impl Stream for Answers {
    type Item = Result<v1::LeaderMessage, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_answer(cx).map(|next| next.map(|answer| answer.map_err(Status::from)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::StreamExt;
    use std::time::Duration;

    fn worker(name: &str) -> Worker {
        ("default".to_owned(), name.to_owned())
    }

    /// A stream, as its task and its worker have it.
    struct Opened {
        out: mpsc::Sender<Answer>,
        queue: Arc<AnswerQueue>,
        read: Answers,
    }

    impl Opened {
        fn new(newest: &NewestStreams) -> Self {
            let (out, answers) = mpsc::channel(4);
            let (queue, read) = newest.open(answers);
            Self { out, queue, read }
        }

        fn send(&self) {
            self.out.try_send(Ok(v1::LeaderMessage::default())).expect("room");
        }

        async fn is_served(&mut self) -> bool {
            self.send();
            let answered = matches!(self.read.next().await, Some(Ok(_)));
            answered && !self.queue.superseded.is_cancelled()
        }
    }

    /// Reads the reason, and the end behind it.
    async fn end(mut read: Answers) -> ErrorCode {
        let next = tokio::time::timeout(Duration::from_secs(10), read.next()).await;
        let reason = next.expect("in time").expect("a reason").expect_err("it is closed");
        assert!(read.next().await.is_none());
        RpcError::from_status(&reason).code
    }

    #[tokio::test]
    async fn a_worker_that_opens_another_stream_ends_its_older_one_and_frees_what_it_held() {
        let newest = NewestStreams::default();
        let (mut older, mut other) = (Opened::new(&newest), Opened::new(&newest));
        newest.supersede(&worker("w"), &older.queue, || ()).expect("it is the only one");
        newest.supersede(&worker("other"), &other.queue, || ()).expect("it is the only one");
        let mut newer = Opened::new(&newest);
        assert!(older.is_served().await, "the worker of the newer one is not known yet");
        // The worker never reads this one.
        older.send();
        newest.supersede(&worker("w"), &newer.queue, || ()).expect("it is newer");
        assert!(older.queue.superseded.is_cancelled());
        assert!(older.out.is_closed() && older.queue.queue.lock().answers.is_none());
        assert_eq!(end(older.read).await, ErrorCode::ConnectFailed);
        assert!(newer.is_served().await && other.is_served().await);
    }

    #[tokio::test]
    async fn a_reader_that_waits_for_an_answer_gets_the_reason() {
        let newest = NewestStreams::default();
        let (older, newer) = (Opened::new(&newest), Opened::new(&newest));
        newest.supersede(&worker("w"), &older.queue, || ()).expect("it is the only one");
        let waits = tokio::spawn(end(older.read));
        while older.queue.queue.lock().reader.is_none() {
            tokio::task::yield_now().await;
        }
        newest.supersede(&worker("w"), &newer.queue, || ()).expect("it is newer");
        let reason = waits.await.expect("it ends");
        assert_eq!(reason, ErrorCode::ConnectFailed);
        assert!(reason.retryable(), "the worker may listen on this one");
    }

    #[tokio::test]
    async fn a_stream_whose_messages_have_ended_frees_its_answers_too() {
        let newest = NewestStreams::default();
        let older = Opened::new(&newest);
        newest.supersede(&worker("w"), &older.queue, || ()).expect("it is the only one");
        older.send();
        let Opened { out, queue, read } = older;
        drop((out, queue));
        let newer = Opened::new(&newest);
        newest.supersede(&worker("w"), &newer.queue, || ()).expect("it is newer");
        assert_eq!(end(read).await, ErrorCode::ConnectFailed);
    }

    #[test]
    fn a_stream_without_a_reader_takes_no_answers() {
        let Opened { out, queue, read } = Opened::new(&NewestStreams::default());
        assert!(!out.is_closed());
        drop(read);
        assert!(out.is_closed(), "its task does not wait for room");
        drop(queue);
    }

    #[test]
    fn a_stream_that_speaks_after_a_newer_one_does_not_end_it() {
        let newest = NewestStreams::default();
        let (late, stream) = (Opened::new(&newest), Opened::new(&newest));
        newest.supersede(&worker("w"), &stream.queue, || ()).expect("it is the only one");
        let refused =
            newest.supersede(&worker("w"), &late.queue, || ()).map_err(|error| error.code);
        assert_eq!(refused, Err(ErrorCode::ConnectFailed));
        assert!(!stream.queue.superseded.is_cancelled());
        drop(stream);
        assert_eq!(
            newest.supersede(&worker("w"), &late.queue, || ()),
            Ok(()),
            "there is no newer one"
        );
        drop(late);
        assert!(newest.0.newest.lock().is_empty(), "nothing is left of a worker without streams");
    }

    #[test]
    fn a_newer_stream_enters_after_the_older_one_that_it_ends() {
        let newest = NewestStreams::default();
        let (older, newer) = (Opened::new(&newest), Opened::new(&newest));
        let (entered, (begun, begins)) = (Mutex::new(Vec::new()), std::sync::mpsc::channel());
        std::thread::scope(|threads| {
            let (newest, entered, newer) = (&newest, &entered, &newer.queue);
            threads.spawn(move || {
                begins.recv().expect("the older one is entering");
                let enter = || entered.lock().push("newer");
                newest.supersede(&worker("w"), newer, enter).expect("it is newer");
            });
            let enter = || {
                begun.send(()).expect("the newer one waits");
                // Without order, the newer one would enter in this time.
                std::thread::sleep(Duration::from_millis(100));
                entered.lock().push("older");
            };
            newest.supersede(&worker("w"), &older.queue, enter).expect("it is the only one");
        });
        assert_eq!(*entered.lock(), ["older", "newer"]);
        assert!(older.queue.superseded.is_cancelled() && !newer.queue.superseded.is_cancelled());
        let refused = newest.supersede(&worker("w"), &older.queue, || panic!("it enters late"));
        assert!(refused.is_err());
    }
}
