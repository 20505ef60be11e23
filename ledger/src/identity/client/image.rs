//! Image records of client sessions.
//!
//! *Invariant:* as in [`crate::machine::image`]. Keys: `C` a session; [`HOLDERS_KEY`] the first session whose holder is
//! named as cluster version 3 names it.

use super::{Client, Clients};
use crate::kernel::codec;
use crate::kernel::id::SessionId;
use crate::machine::image::{ImageDelta, session_key};
use crate::machine::image_load::{LoadError, number, read};
use crate::machine::seeded::{Bug, seeded};
use std::collections::{BTreeMap, BTreeSet};

/// Below the tag of the meta record, which is that letter alone: no letter is left.
pub(crate) const HOLDERS_KEY: &[u8] = b"Mh";

/// The records of client sessions that differ from the image on disk.
#[derive(Clone, Debug, Default)]
pub(super) struct DirtyClients {
    pub(super) clients: BTreeSet<SessionId>,
    pub(super) holders_from: bool,
}

fn client_record(client: &Client) -> Vec<u8> {
    if seeded(Bug::RepliesNotInSnapshot) {
        return codec::encode(&Client { replies: BTreeMap::new(), ..client.clone() });
    }
    codec::encode(client)
}

impl Clients {
    /// Takes the record of the first session of version 3, if it changed since the last call.
    pub(crate) fn drain_holders_from(&mut self, delta: &mut ImageDelta) {
        if std::mem::take(&mut self.dirty.holders_from) {
            delta.set(HOLDERS_KEY.to_vec(), self.holders_record());
        }
    }

    /// Takes the sessions that changed since the last call.
    pub(crate) fn drain(&mut self, delta: &mut ImageDelta) {
        for id in std::mem::take(&mut self.dirty.clients) {
            delta.set(session_key(b'C', id), self.by_id.get(&id).map(client_record));
        }
    }

    /// `None` if no session was opened below cluster version 3: members with an earlier build have no such record.
    pub(crate) fn holders_record(&self) -> Option<Vec<u8>> {
        (self.holders_from != SessionId::default()).then(|| codec::encode(&self.holders_from))
    }

    pub(crate) fn each_client(&self, each: &mut impl FnMut(&[u8], &[u8])) {
        for (id, client) in &self.by_id {
            each(&session_key(b'C', *id), &client_record(client));
        }
    }

    /// Reads a session, or which is the first one of version 3.
    pub(crate) fn load(&mut self, key: &[u8], value: &[u8]) -> Result<(), LoadError> {
        if key == HOLDERS_KEY {
            self.holders_from = read(key, value)?;
            return Ok(());
        }
        self.by_id.insert(SessionId(u64::from_be_bytes(number(key, 1)?)), read(key, value)?);
        Ok(())
    }
}
