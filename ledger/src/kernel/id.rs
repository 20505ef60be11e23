//! The numbers by which the ledger identifies things.
//!
//! *Invariant:* an id is never random, only derived from the log: a session and an attempt from the position of the
//! operation that created it, a run from a counter that only `apply` advances. So every member gives the same thing
//! the same number, and no number is ever given twice.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number!(
    /// The fencing number: the Raft term of a leader that has opened dispatch. Compared only
    /// within one cluster id.
    CoordEpoch(u64)
);
number!(
    /// Ledger time in milliseconds: counted by leaders on their monotonic clocks, and carried from one to the next by
    /// the log. It is not wall time and starts at zero.
    LedgerMs(u64)
);

impl LedgerMs {
    /// How much later than `earlier` it is; zero if it is not later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

number!(
    /// A run. Counts from 1 in the order of creation and is never used again.
    RunNo(u32)
);
number!(
    /// A segment of a run's input, from 0 without gaps.
    SegmentNo(u32)
);
number!(
    /// A part of a run's results, in the order in which they were accepted, from 0.
    PartNo(u32)
);
number!(
    /// A shared store. Counts from 1 in the order of first use and is never used again.
    StoreNo(u32)
);
number!(
    /// A training job. Counts from 1 in the order of first use and is never used again.
    JobNo(u32)
);
number!(
    /// A dataset. Counts from 1 in the order of creation and is never used again.
    DatasetNo(u32)
);
number!(
    /// A training: the number of its job. Below cluster version 4 its own, which counts from 1 in the order of first use
    /// and is never used again.
    TrainingNo(u32)
);
number!(
    /// A slot of a worker, from 0.
    SlotNo(u16)
);

/// How many positions one log entry may use: bounded so that a position and an index fit one word.
pub const POSITIONS_PER_ENTRY: u64 = 1 << 13;

macro_rules! stamp {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl $name {
            /// The thing made at `position` of the entry at `index`.
            pub fn at(index: u64, position: u32) -> Self {
                debug_assert!(u64::from(position) < POSITIONS_PER_ENTRY);
                Self(index * POSITIONS_PER_ENTRY + u64::from(position))
            }

            /// The log index of the entry that made it.
            pub fn index(self) -> u64 {
                self.0 / POSITIONS_PER_ENTRY
            }

            /// Its position within that entry.
            pub fn position(self) -> u64 {
                self.0 % POSITIONS_PER_ENTRY
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}.{}", self.index(), self.position())
            }
        }
    };
}

stamp!(
    /// The fencing number of a lease: log index and position of the grant. A later grant of the
    /// same row always has a greater one.
    Attempt
);
stamp!(
    /// A registration of a worker, a client's session, or an incarnation of a job's participant or trainer.
    SessionId
);

stamp!(
    /// A batch of OpenAI's API: a later one has a greater number.
    BatchNo
);
stamp!(
    /// The fencing number of a batch's work: a later assignment of the same batch has a greater one.
    BatchFence
);

/// One slot of one registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SlotRef {
    /// The registration.
    pub session: SessionId,
    /// The slot.
    pub slot: SlotNo,
}
