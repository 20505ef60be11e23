//! Owns: whether a client session may be opened while the ledger holds as many as it can.
//!
//! Invariant: a new session never evicts one of the same holder that is in use. Otherwise that session's user could not
//! find out the outcome of its requests.
//! Absent: which session is evicted; the ledger decides that (`Ledger::makes_room_of`).

use rollout_ledger::Ledger;
use rollout_proto::{ErrorCode, Outcome, RpcError};

/// A session that was used within this time, in ledger time, is not evicted for another one of the same holder,
/// because a request may take that long. If the time were longer, the processes of a large job could not restart soon
/// after they were killed.
const IN_USE_MS: u64 = 30 * 1000;

/// Refuses a new session that would evict one of the same holder that is in use.
pub(super) fn check(ledger: &Ledger, holder: &str) -> Result<(), RpcError> {
    let ended = ledger.makes_room_of();
    match ended.is_some_and(|ended| ended.holder == holder && ended.unused_ms < IN_USE_MS) {
        true => {
            let text = "all sessions of the cluster are in use, most of them by this identity: use one session for \
                        several requests, or try again in half a minute";
            Err(RpcError::new(ErrorCode::Overloaded, text).with_outcome(Outcome::NotApplied))
        }
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rollout_ledger::id::{CoordEpoch, LedgerMs};
    use rollout_ledger::{
        Body, Command, EntryId, Op, OpKind, Reply, SCHEDULING_VERSION, limits, op,
    };

    /// A ledger and its present time.
    struct Full {
        ledger: Ledger,
        index: u64,
        at: u64,
    }

    impl Full {
        fn command(&mut self, body: Body) -> Vec<Reply> {
            self.index += 1;
            let (epoch, at) = (CoordEpoch(1), LedgerMs(self.at));
            let command = Command { epoch, at, wall_ms: self.at, body };
            let entry = EntryId { index: self.index, term: 1 };
            self.ledger.apply(entry, &command.encode()).expect("it is known")
        }

        fn open(&mut self, holder: &str, sessions: usize) {
            let (name, holder) = ("c".to_owned(), holder.to_owned());
            let one = Op::from(OpKind::OpenClient(op::OpenClient { name, holder }));
            let mut left = sessions;
            while left > 0 {
                let now = left.min(1000);
                let replies = self.command(Body::Ops(vec![one.clone(); now]));
                let is_opened = |reply: &Reply| matches!(reply, Reply::ClientOpened { .. });
                assert!(replies.len() == now && replies.iter().all(is_opened), "{replies:?}");
                left -= now;
            }
        }

        fn is_refused(&self, holder: &str) -> bool {
            match check(&self.ledger, holder) {
                Ok(()) => false,
                Err(error) => {
                    assert_eq!(error.code, ErrorCode::Overloaded, "{error:?}");
                    assert_eq!(error.outcome, Outcome::NotApplied, "{error:?}");
                    true
                }
            }
        }
    }

    #[test]
    fn a_session_is_refused_while_all_places_are_taken_and_its_holders_own_is_in_use() {
        let mut full = Full { ledger: Ledger::new([7; 16]), index: 0, at: 0 };
        full.command(Body::OpenEpoch);
        full.command(Body::SetVersion(SCHEDULING_VERSION));
        full.open("client/quiet", 1);
        full.open("client/greedy", limits::CLIENTS_MAX - 2);
        assert!(!full.is_refused("client/greedy"), "there is a place");
        full.open("client/greedy", 1);
        assert!(full.is_refused("client/greedy"), "it would end its own");
        for other in ["client/quiet", "client/new"] {
            assert!(!full.is_refused(other), "{other}: one of those with the most makes room");
        }
        full.at = IN_USE_MS - 1;
        full.command(Body::Tick);
        assert!(full.is_refused("client/greedy"), "its oldest was used a moment ago");
        full.at = IN_USE_MS;
        full.command(Body::Tick);
        assert!(!full.is_refused("client/greedy"), "its oldest session is long unused");
    }
}
