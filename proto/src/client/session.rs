//! A client's session: the numbers that make a repeated request harmless.
//!
//! *Invariant:* a number is given to one request only. `ack_upto` never covers a request whose answer is still awaited,
//! because the cluster forgets answers up to it.
//!
//! Absent: workers' sessions; their exchanges carry numbers of their own.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;

use super::Client;
use crate::v1;

/// An open session. Clones share it.
#[derive(Clone)]
pub struct Session {
    client: Client,
    id: u64,
    store_url: String,
    numbers: Arc<Mutex<Numbers>>,
}

#[derive(Default)]
struct Numbers {
    last: u64,
    awaited: BTreeSet<u64>,
}

impl Session {
    pub(super) fn new(client: Client, id: u64, store_url: String) -> Self {
        Session { client, id, store_url, numbers: Arc::default() }
    }

    /// The client that opened it.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The session's number.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The URL of the cluster's object store.
    pub fn store_url(&self) -> &str {
        &self.store_url
    }

    /// A new number for one request. Send the same number with every repeat.
    pub fn request(&self) -> PendingRequest {
        let mut numbers = self.numbers.lock();
        numbers.last += 1;
        let seq = numbers.last;
        numbers.awaited.insert(seq);
        let ack_upto = numbers.awaited.first().map_or(seq, |first| *first) - 1;
        let id = v1::RequestId { session: self.id, seq, ack_upto };
        PendingRequest { id, numbers: self.numbers.clone() }
    }
}

/// A request whose answer is awaited. Dropping it says that the answer has arrived, or that the caller will not repeat
/// the request.
pub struct PendingRequest {
    id: v1::RequestId,
    numbers: Arc<Mutex<Numbers>>,
}

impl PendingRequest {
    /// The id to put into the request.
    pub fn id(&self) -> v1::RequestId {
        self.id
    }

    /// Records that the answer has arrived, like dropping it.
    pub fn ack(self) {}
}

impl Drop for PendingRequest {
    fn drop(&mut self) {
        self.numbers.lock().awaited.remove(&self.id.seq);
    }
}
