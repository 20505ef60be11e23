//! The leader's way to one worker: answers in order, and revocations, which are never lost for want of room.
//!
//! *Invariant:* a revoked row is named on the stream as soon as there is room for a message, or the stream ends, after
//! which its worker asks again which rows it still holds. Rows that wait for room are a set by attempt, so they take no
//! more memory than the worker's grants; beyond [`ATTEMPTS_MAX`] the stream is closed.
//!
//! *Bounds:* `OUTBOX` (256, in `grpc/work_stream.rs`) messages wait; `MESSAGE_BYTES_MAX` (16 MiB, in `rollout_proto`)
//! bounds each. The largest, a revocation of all rows of a worker, fits: `SLOTS_MAX` * `SLOT_ROWS_MAX` rows of at most
//! 6 bytes (6 MiB), and at most 40 bytes for each of [`ATTEMPTS_MAX`] attempts.
//!
//! Absent: other control messages. Each heartbeat repeats a drain, and if a question about stealing is lost,
//! another slot is asked.

use crate::leader::convert;
use crate::leader::state::Outbox;
use parking_lot::Mutex;
use rollout_ledger::id::{Attempt, RunNo};
use rollout_ledger::{HeldRows, Rows};
use rollout_proto::v1;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::mpsc::error::TrySendError;
use tokio_util::sync::CancellationToken;

/// Attempts whose revocation may wait for room.
const ATTEMPTS_MAX: usize = 16_384;

pub(crate) struct WorkerStream {
    pub(crate) out: Outbox,
    waiting: Mutex<Waiting>,
    /// Too many attempts wait: close the stream.
    pub(crate) overrun: CancellationToken,
}

/// Rows to be revoked when there is room.
#[derive(Default)]
struct Waiting {
    rows: BTreeMap<(RunNo, Attempt), Rows>,
    reason: String,
    /// A task waits for room.
    sending: bool,
}

impl WorkerStream {
    pub(crate) fn new(out: Outbox) -> Arc<Self> {
        Arc::new(Self { out, waiting: Mutex::default(), overrun: CancellationToken::new() })
    }

    /// Tells the worker which rows it has lost, now or when there is room, for as long as the epoch lasts.
    pub(crate) fn revoke(
        self: &Arc<Self>,
        header: v1::ClusterHeader,
        held: &[HeldRows],
        reason: &str,
        ended: &CancellationToken,
    ) {
        {
            let mut waiting = self.waiting.lock();
            for HeldRows { run, attempt, rows } in held {
                waiting.rows.entry((*run, *attempt)).or_default().unite(rows);
            }
            reason.clone_into(&mut waiting.reason);
            if waiting.rows.len() > ATTEMPTS_MAX {
                waiting.rows.clear();
                return self.overrun.cancel();
            }
            if waiting.sending {
                return;
            }
            match self.out.try_reserve() {
                Ok(permit) => return permit.send(Ok(waiting.take(header))),
                Err(TrySendError::Closed(())) => return waiting.rows.clear(),
                Err(TrySendError::Full(())) => waiting.sending = true,
            }
        }
        metrics::counter!("rollout_revocations_delayed_total").increment(1);
        let (stream, ended) = (self.clone(), ended.clone());
        tokio::spawn(async move {
            tokio::select! {
                biased;
                () = ended.cancelled() => {}
                // On an error the worker no longer listens.
                room = stream.out.reserve() => if let Ok(permit) = room {
                    let mut waiting = stream.waiting.lock();
                    waiting.sending = false;
                    permit.send(Ok(waiting.take(header)));
                },
            }
        });
    }
}

impl Waiting {
    fn take(&mut self, header: v1::ClusterHeader) -> v1::LeaderMessage {
        let rows = std::mem::take(&mut self.rows).into_iter();
        let rows =
            rows.map(|((run, attempt), rows)| convert::held_out(&HeldRows { run, attempt, rows }));
        let revoke = v1::Revoke { rows: rows.collect(), reason: std::mem::take(&mut self.reason) };
        let kind = Some(v1::leader_message::Kind::Revoke(revoke));
        v1::LeaderMessage { header: Some(header), kind }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::sync::mpsc;

    fn held(attempt: u64, first: u64, rows: u32) -> HeldRows {
        HeldRows { run: RunNo(1), attempt: Attempt(attempt), rows: Rows::range(first, rows) }
    }

    fn revoke(stream: &Arc<WorkerStream>, held: &[HeldRows], ended: &CancellationToken) {
        stream.revoke(v1::ClusterHeader::default(), held, "lost", ended);
    }

    #[tokio::test]
    async fn revocations_without_room_are_sent_in_one_message_once_there_is_room() {
        let (out, mut slow) = mpsc::channel(2);
        let stream = WorkerStream::new(out.clone());
        let ended = CancellationToken::new();
        for _ in 0..2 {
            out.try_send(Ok(v1::LeaderMessage::default())).expect("room");
        }
        revoke(&stream, &[held(7, 0, 4)], &ended);
        revoke(&stream, &[held(7, 4, 4), held(8, 20, 1)], &ended);
        revoke(&stream, &[held(7, 2, 3)], &ended);
        for _ in 0..2 {
            let answer = slow.recv().await.expect("open").expect("an answer");
            assert!(answer.kind.is_none(), "what was before comes before");
        }
        let told = tokio::time::timeout(Duration::from_secs(10), slow.recv()).await;
        let told = told.expect("told").expect("open").expect("a message");
        let Some(v1::leader_message::Kind::Revoke(revoked)) = told.kind else { panic!("{told:?}") };
        let rows: Vec<_> = revoked.rows.iter().map(convert::held_in).map(Result::unwrap).collect();
        assert_eq!(rows, [held(7, 0, 8), held(8, 20, 1)]);
        // The next one is sent at once again.
        revoke(&stream, &[held(9, 0, 1)], &ended);
        assert!(slow.try_recv().is_ok());
    }

    #[tokio::test]
    async fn a_stream_with_too_many_waiting_revocations_is_closed_and_a_closed_one_holds_none() {
        let (out, slow) = mpsc::channel(1);
        let stream = WorkerStream::new(out.clone());
        let ended = CancellationToken::new();
        out.try_send(Ok(v1::LeaderMessage::default())).expect("room");
        let many: Vec<_> = (0..=ATTEMPTS_MAX as u64).map(|attempt| held(attempt, 0, 1)).collect();
        revoke(&stream, &many[1..], &ended);
        assert!(!stream.overrun.is_cancelled());
        revoke(&stream, &many[..1], &ended);
        assert!(stream.overrun.is_cancelled());
        drop(slow);
        let stream = WorkerStream::new(out);
        revoke(&stream, &many[..1], &ended);
        assert!(stream.waiting.lock().rows.is_empty());
    }
}
