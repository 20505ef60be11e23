//! Owns: questions that many callers share: how far this member must read.
//!
//! Invariant: a caller gets the answer to a question that was sent after the caller came. At most one question is on
//! its way; callers that come meanwhile share the next one.
//! Absent: how the question reaches the leader (`forward`).

use rollout_proto::RpcError;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Mutex;

/// The question that was answered last.
#[derive(Clone, Copy, Default)]
struct Answered {
    number: u64,
    index: u64,
}

/// Questions are numbered from 1 in the order in which they are sent.
#[derive(Default)]
pub(super) struct SharedRead {
    sent: AtomicU64,
    answered: Mutex<Answered>,
}

impl SharedRead {
    /// The answer of `ask`, or of another caller's `ask` that began after this call.
    ///
    /// # Errors
    /// The error of `ask`.
    pub(super) async fn index(
        &self,
        ask: impl Future<Output = Result<u64, RpcError>>,
    ) -> Result<u64, RpcError> {
        let before = self.sent.load(Ordering::SeqCst);
        let mut answered = self.answered.lock().await;
        if answered.number > before {
            return Ok(answered.index);
        }
        // A question that fails, or whose caller goes away, is never answered: the next caller sends another.
        let number = self.sent.fetch_add(1, Ordering::SeqCst) + 1;
        let index = ask.await?;
        *answered = Answered { number, index };
        Ok(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use futures::future::join_all;
    use rollout_proto::ErrorCode;
    use std::sync::Arc;
    use tokio::sync::Notify;

    #[tokio::test]
    async fn callers_that_come_during_a_question_share_the_next_one() {
        let (reads, asked) = (Arc::new(SharedRead::default()), Arc::new(AtomicU64::new(0)));
        let (begun, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let first = tokio::spawn({
            let (reads, begun, go_on) = (reads.clone(), begun.clone(), go_on.clone());
            async move {
                let ask = async {
                    begun.notify_one();
                    go_on.notified().await;
                    Ok(7)
                };
                reads.index(ask).await
            }
        });
        begun.notified().await;
        let mut later: Vec<_> = (0..100)
            .map(|_| {
                let asked = asked.clone();
                let ask = async move { Ok(10 + asked.fetch_add(1, Ordering::SeqCst)) };
                Box::pin(reads.index(ask))
            })
            .collect();
        // All of them have come before the first question is answered.
        later.iter_mut().for_each(|caller| assert!(caller.as_mut().now_or_never().is_none()));
        go_on.notify_one();
        let later = join_all(later).await;
        assert_eq!(first.await.expect("no panic").expect("an answer"), 7);
        for answer in later {
            assert_eq!(answer.expect("an answer"), 10, "not the answer to the earlier question");
        }
        assert_eq!(asked.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn a_failed_question_answers_no_other_caller() {
        let reads = SharedRead::default();
        let failed = reads.index(async { Err(RpcError::new(ErrorCode::NoLeader, "none")) }).await;
        assert_eq!(failed.expect_err("an error").code, ErrorCode::NoLeader);
        assert_eq!(reads.index(async { Ok(3) }).await, Ok(3));
    }
}
