//! Fuzzes sequences of requests of clients and workers, as commands that a ledger applies. A request is a byte that
//! selects its type, and a message preceded by a two-byte length. A dry run is only decoded, with the request in it.

mod stories;

use std::sync::LazyLock;

use rollout_coordinator::fuzzing::{KINDS, dry_run, operations};
use rollout_ledger::id::{CoordEpoch, LedgerMs};
use rollout_ledger::{Body, Command, EntryId, Ledger, Op, Reply, SUPPORTED_VERSIONS};

pub(crate) use self::stories::seeds;
use super::take_sized;

/// The kind of message that advances time: its first two bytes are the number of seconds.
const TICK: u8 = KINDS;
/// The kind of message that is a dry run. It has a byte of its own, so that kept inputs keep their meaning.
const DRY_RUN: u8 = 255;
/// The most requests in one input.
const REQUESTS_MAX: usize = 64;
const EPOCH: u64 = 1;

/// A ledger with an open epoch.
static OPEN: LazyLock<Ledger> = LazyLock::new(|| {
    let mut member = Member { ledger: Ledger::new([9; 16]) };
    member.apply(0, Body::OpenEpoch);
    member.apply(0, Body::SetVersion(SUPPORTED_VERSIONS.1));
    member.ledger
});

/// A member's ledger, and the leader's proposals.
struct Member {
    ledger: Ledger,
}

impl Member {
    fn open() -> Self {
        Self { ledger: OPEN.clone() }
    }

    fn apply(&mut self, after_ms: u64, body: Body) -> Vec<Reply> {
        let at = LedgerMs(self.ledger.clock().0 + after_ms);
        let command = Command { epoch: CoordEpoch(EPOCH), at, wall_ms: 1, body }.encode();
        let entry = EntryId { index: self.ledger.applied().index + 1, term: EPOCH };
        let replies = self.ledger.apply(entry, &command);
        self.ledger.take_events();
        replies.expect("a command that was written is read")
    }

    /// Handles a request as a leader does. `None`: it is refused, or requests nothing.
    fn take(&mut self, kind: u8, message: &[u8]) -> Option<Vec<Reply>> {
        if kind % (KINDS + 1) == TICK {
            let seconds = message.first_chunk::<2>().map_or(1, |two| u16::from_le_bytes(*two));
            return Some(self.apply(u64::from(seconds.min(60)) * 1000, Body::Tick));
        }
        let ops: Vec<Op> = operations(&self.ledger, kind % (KINDS + 1), message).ok()?;
        (!ops.is_empty()).then(|| self.apply(1, Body::Ops(ops)))
    }
}

/// Whatever the requests, the ledger keeps its invariants, and its image loads as an equal ledger.
pub(crate) fn run(mut bytes: &[u8]) {
    let mut member = Member::open();
    for _ in 0..REQUESTS_MAX {
        let Some((kind, rest)) = bytes.split_first() else { break };
        bytes = rest;
        let Some(message) = take_sized(&mut bytes) else { break };
        match *kind {
            DRY_RUN => drop(dry_run(message)),
            kind => drop(member.take(kind, message)),
        }
    }
    let ledger = member.ledger;
    ledger.check_invariants().expect("the ledger keeps its promises");
    let mut image = Vec::new();
    ledger.for_each_record(|key, value| image.push((key.to_vec(), value.to_vec())));
    let loaded = Ledger::load(image.clone()).expect("an image that was written loads");
    let mut again = Vec::new();
    loaded.for_each_record(|key, value| again.push((key.to_vec(), value.to_vec())));
    assert_eq!(image, again, "the image of a loaded ledger differs");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dry_runs_of_the_seeds_are_decoded() {
        let seed = seeds().pop().expect("the last seed has the dry runs");
        let mut bytes = &seed[..];
        let mut lengths = Vec::new();
        while let Some((kind, rest)) = bytes.split_first() {
            assert_eq!(*kind, DRY_RUN);
            bytes = rest;
            lengths.push(dry_run(take_sized(&mut bytes).expect("a message")));
        }
        assert_eq!(lengths.len(), 5);
        assert!(lengths.iter().all(|length| length.as_ref().is_ok_and(|length| *length > 0)));
    }
}
