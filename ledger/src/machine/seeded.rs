//! Seeded bugs, one at a time, to measure what the fault tests find.
//!
//! *Invariant:* without the feature `seeded-bugs`, [`seeded`] is the constant `false` and the code is what it would
//! be without this module. With the feature, nothing builds without debug assertions, so that no release has it. The
//! bug is chosen once, before anything is applied, and is the same at every member.
//!
//! A bug that leaves out a check leaves out every layer of it. The calls of [`seeded`] show what each bug does.

#[cfg(all(feature = "seeded-bugs", not(debug_assertions)))]
compile_error!("seeded-bugs is for tests of the tests: a release must not have it");

/// A bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A deposed leader answers reads from its applied state.
    StaleRead,
    /// Entries are acknowledged before their fsync.
    AckBeforeFsync,
    /// A vote is kept only in memory.
    VoteNotPersisted,
    /// Nothing compares epochs: not the gate, not the stream, not the proposal, not the ledger.
    EpochUnchecked,
    /// A returned row is granted and stays pending.
    ClaimUnchecked,
    /// A second result for a decided row replaces the first.
    CompletionOverwrites,
    /// Answers to requests are in no image and no snapshot.
    RepliesNotInSnapshot,
    /// Which returned rows are granted depends on the order of a hash set.
    ApplyInHashOrder,
    /// A retry's time is taken from each member's own clock.
    WallClockInApply,
    /// A worker that was silent for a tenth of its time has lost its rows.
    LeaseLapsesEarly,
    /// A result is accepted from a superseded attempt.
    OvertakenAttemptAccepted,
    /// The leader moves rows without asking their holder.
    StealUnasked,
    /// The rows of a session that ends never become pending again.
    RowsLostWithSession,
    /// How often a row failed is in no image and no snapshot.
    StrikesNotInSnapshot,
    /// An image lacks the entry that it says it ends with.
    ImageMissesLastEntry,
    /// A follower keeps its own entries where the leader's conflict with them.
    LogConflictKept,
    /// A repeated request is executed again.
    RequestIdUnchecked,
    /// A part's result is recorded for the next row of the part.
    ResultOfAnotherRow,
    /// The epoch of answers is the term that the metrics show.
    EpochFromMetrics,
    /// When it starts, a member drops the entries that it did not know to be committed.
    TailDroppedOnStart,
    /// Results are taken as accepted when the proposal's outcome is unknown.
    SuccessWithoutQuorum,
    /// A row that failed for good is tried again.
    FailedRowRetried,
    /// A run ends when all rows so far have ended, whether its input is closed or not.
    InputClosedEarly,
    /// A row may be given back under an attempt that does not hold it.
    NackOfAnyone,
    /// Done rows become pending with the other rows of a session that ends.
    DoneRowReturned,
    /// A barrier opens when all but one have arrived.
    BarrierOpensEarly,
    /// The last two members of a round get the same rank.
    DuplicateRanks,
    /// A compare-and-set sets whatever it finds.
    CompareSetUnchecked,
    /// A wait for a store's keys is answered at once.
    WaitWakesEarly,
    /// If no shard of an epoch is free, a shard that another trainer has is given out again.
    ShardGivenTwice,
    /// A restarted member votes at once, although it has promised a leader not to.
    LeaseForgottenOnRestart,
}

#[cfg(not(feature = "seeded-bugs"))]
/// Whether this build has this bug: it has none.
#[inline(always)]
pub const fn seeded(_bug: Bug) -> bool {
    false
}

#[cfg(feature = "seeded-bugs")]
mod bugs;
#[cfg(feature = "seeded-bugs")]
pub(crate) use bugs::{imaged_failure_record, own_ms};

#[cfg(feature = "seeded-bugs")]
pub use chosen::{choose, names, seeded};

#[cfg(feature = "seeded-bugs")]
mod chosen {
    use super::Bug;
    use std::sync::OnceLock;

    static CHOSEN: OnceLock<Bug> = OnceLock::new();

    const NAMES: &[(&str, Bug)] = &[
        ("stale-read", Bug::StaleRead),
        ("ack-before-fsync", Bug::AckBeforeFsync),
        ("vote-not-persisted", Bug::VoteNotPersisted),
        ("epoch-unchecked", Bug::EpochUnchecked),
        ("claim-unchecked", Bug::ClaimUnchecked),
        ("completion-overwrites", Bug::CompletionOverwrites),
        ("replies-not-in-snapshot", Bug::RepliesNotInSnapshot),
        ("apply-in-hash-order", Bug::ApplyInHashOrder),
        ("wall-clock-in-apply", Bug::WallClockInApply),
        ("lease-lapses-early", Bug::LeaseLapsesEarly),
        ("overtaken-attempt-accepted", Bug::OvertakenAttemptAccepted),
        ("steal-unasked", Bug::StealUnasked),
        ("rows-lost-with-session", Bug::RowsLostWithSession),
        ("strikes-not-in-snapshot", Bug::StrikesNotInSnapshot),
        ("image-misses-last-entry", Bug::ImageMissesLastEntry),
        ("log-conflict-kept", Bug::LogConflictKept),
        ("request-id-unchecked", Bug::RequestIdUnchecked),
        ("result-of-another-row", Bug::ResultOfAnotherRow),
        ("epoch-from-metrics", Bug::EpochFromMetrics),
        ("tail-dropped-on-start", Bug::TailDroppedOnStart),
        ("success-without-quorum", Bug::SuccessWithoutQuorum),
        ("failed-row-retried", Bug::FailedRowRetried),
        ("input-closed-early", Bug::InputClosedEarly),
        ("nack-of-anyone", Bug::NackOfAnyone),
        ("done-row-returned", Bug::DoneRowReturned),
        ("barrier-opens-early", Bug::BarrierOpensEarly),
        ("duplicate-ranks", Bug::DuplicateRanks),
        ("compare-set-unchecked", Bug::CompareSetUnchecked),
        ("wait-wakes-early", Bug::WaitWakesEarly),
        ("shard-given-twice", Bug::ShardGivenTwice),
        ("lease-forgotten-on-restart", Bug::LeaseForgottenOnRestart),
    ];

    /// Whether this is the bug that was chosen.
    pub fn seeded(bug: Bug) -> bool {
        CHOSEN.get() == Some(&bug)
    }

    /// The names of all.
    pub fn names() -> impl Iterator<Item = &'static str> {
        NAMES.iter().map(|named| named.0)
    }

    /// Selects a bug for the life of the process; false if no bug has that name, or another one was selected.
    pub fn choose(name: &str) -> bool {
        let found = NAMES.iter().find(|named| named.0 == name);
        found.is_some_and(|named| *CHOSEN.get_or_init(|| named.1) == named.1)
    }
}
