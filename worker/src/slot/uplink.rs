//! Owns: a slot's way to the present leader.
//!
//! Invariant: it never waits. The slot keeps a message that does not fit and sends it again.
//! Absent: answers, which come as commands.

use rollout_proto::Client;
use rollout_proto::v1;
use tokio::sync::mpsc;

/// Sends messages of one session over one stream.
#[derive(Clone)]
pub(crate) struct Uplink {
    pub(crate) messages: mpsc::Sender<v1::WorkerMessage>,
    pub(crate) session: u64,
    /// The number of this process.
    pub(crate) instance: u64,
    pub(crate) client: Client,
    /// Whether the slot was registered as able to take work.
    pub(crate) eligible: bool,
}

impl std::fmt::Debug for Uplink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Uplink").field("session", &self.session).finish_non_exhaustive()
    }
}

impl Uplink {
    /// False if the stream accepts nothing now.
    pub(super) fn send(&self, exchange: v1::Exchange) -> bool {
        self.post(v1::worker_message::Kind::Exchange(exchange))
    }

    pub(crate) fn post(&self, kind: v1::worker_message::Kind) -> bool {
        let coord_epoch = self.client.coord_epoch();
        let (session, instance) = (self.session, self.instance);
        let message = v1::WorkerMessage { session, coord_epoch, kind: Some(kind), instance };
        self.messages.try_send(message).is_ok()
    }
}
