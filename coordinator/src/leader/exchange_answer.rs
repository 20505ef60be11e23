//! The answer to a worker's exchange, from the ledger's replies.
//!
//! *Invariant:* a row that the ledger refused is listed as refused, with the reason. If a reply rejects the whole
//! command, there is no answer but an error.
//! Absent: when an answer may be sent (`dispatch`).

use crate::leader::convert::{self, Checked};
use crate::leader::proposer::LogPosition;
use crate::leader::reject;
use crate::leader::state::LeaderState;
use rollout_ledger::id::{SessionId, SlotRef};
use rollout_ledger::{GrantedRows, HeldRows, RefusedRows, Rejection, Reply, Rows};
use rollout_proto::v1;

/// The ledger's reply to an exchange.
pub(super) struct Done {
    pub(super) grants: Vec<GrantedRows>,
    pub(super) refused: Vec<RefusedRows>,
    pub(super) at: Option<LogPosition>,
    /// The pull was parked before.
    pub(super) waited: bool,
    /// Runs of its parts that have no more rows for any slot.
    pub(super) nothing_more: Vec<u32>,
}

/// What the replies to an exchange say of other slots.
#[derive(Default)]
pub(super) struct OtherSlots {
    /// The rows that the slot yielded, as an idle slot has them now.
    pub(super) stolen: Vec<GrantedRows>,
    /// Rows that the slot finished first, and the sessions that still run them.
    pub(super) superseded: Vec<(SessionId, HeldRows)>,
}

impl Done {
    pub(super) fn empty() -> Self {
        let (grants, refused, nothing_more) = (Vec::new(), Vec::new(), Vec::new());
        Self { grants, refused, at: None, waited: false, nothing_more }
    }

    pub(super) fn refused(refused: Vec<RefusedRows>) -> Self {
        Self { refused, ..Self::empty() }
    }

    pub(super) fn granted(at: LogPosition, grants: Vec<GrantedRows>) -> Self {
        Self { grants, at: Some(at), waited: true, ..Self::empty() }
    }

    /// Adds the replies to an exchange's results, and to its pull if it has one. Returns what they say of other slots, and
    /// the first error.
    pub(super) fn add_all(
        &mut self,
        replies: Vec<Reply>,
        sets: Vec<Vec<HeldRows>>,
    ) -> (OtherSlots, Checked<()>) {
        let (mut others, mut result) = (OtherSlots::default(), Ok(()));
        let sets = sets.into_iter().map(Some).chain([None]);
        for (reply, sent_sets) in replies.into_iter().zip(sets) {
            let reply = match reply {
                Reply::Stolen { granted, refused } => {
                    others.stolen = granted;
                    Reply::Taken { refused }
                }
                Reply::Won { refused, superseded } => {
                    let losers = superseded.into_iter();
                    others.superseded.extend(losers.map(|loser| (loser.slot.session, loser.held)));
                    Reply::Taken { refused }
                }
                reply => reply,
            };
            result = result.and(self.add(reply, sent_sets));
        }
        (others, result)
    }

    /// Adds one reply. `sent_sets` has the rows that its operation named, if it reported results.
    fn add(&mut self, reply: Reply, sent_sets: Option<Vec<HeldRows>>) -> Checked<()> {
        match (reply, sent_sets) {
            (Reply::Granted(grants), _) => self.grants = grants,
            (Reply::Taken { refused }, _) => self.refused.extend(refused),
            // These reject the whole command, not the rows. End the stream, so that the worker repeats the message; it
            // would forget rows that an answer lists as refused.
            (
                Reply::Rejected(
                    why @ (Rejection::ClockStep { .. }
                    | Rejection::EpochStale { .. }
                    | Rejection::VersionLow { .. }
                    | Rejection::Limit { .. }),
                ),
                _,
            ) => return Err(reject::rejected(&why)),
            (Reply::Rejected(why), Some(sets)) => {
                // A worker does not learn that a run of another namespace exists.
                let why = match why {
                    Rejection::NamespaceDenied(_) => Rejection::AttemptStale,
                    why => why,
                };
                self.refused.extend(sets.into_iter().map(|s| RefusedRows {
                    run: s.run,
                    attempt: s.attempt,
                    rows: s.rows,
                    why: why.clone(),
                }));
            }
            // The worker accepts no work now. Its pull waits until it does.
            (Reply::Rejected(Rejection::WorkerNotReady), None) => {}
            (Reply::Rejected(why), None) => return Err(reject::rejected(&why)),
            (other, _) => {
                tracing::error!(?other, "an exchange got a reply of another operation");
            }
        }
        Ok(())
    }
}

pub(super) fn answer(
    leader: &LeaderState,
    slot: SlotRef,
    seq: u64,
    done: Done,
) -> v1::LeaderMessage {
    let grants = done
        .grants
        .iter()
        .map(|g| convert::grant_out(g, leader.run_folder(g.held.run).as_deref()))
        .collect();
    let refused = done.refused.iter().map(|r| refused_out(r, &r.rows)).collect();
    let at = done.at.map(|at| v1::LogPosition { index: at.index, position: at.position });
    let Done { waited, nothing_more, .. } = done;
    let slot = slot.slot.0.into();
    let exchange = v1::ExchangeAnswer { slot, seq, grants, refused, at, waited, nothing_more };
    v1::LeaderMessage {
        header: Some(leader.header()),
        kind: Some(v1::leader_message::Kind::Exchange(exchange)),
    }
}

fn refused_out(refused: &RefusedRows, rows: &Rows) -> v1::Refused {
    v1::Refused {
        run: refused.run.0,
        attempt: refused.attempt.0,
        rows: Some(convert::rows_out(rows)),
        code: reject::code_of(&refused.why).code().to_owned(),
    }
}
