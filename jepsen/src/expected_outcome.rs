//! The outcome that each row of a batch must have, which its prompt asks the mock engine for.
//!
//! *Invariant:* a row's expected outcome depends only on its batch number and its own number, so any reader of a
//! result can check it.

/// How a row must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ExpectedOutcome {
    Done,
    /// Done, after one transient failure.
    DoneAfterOne,
    /// Failed: no engine can run it.
    Invalid,
    /// Failed: it kills every engine that runs it.
    Poison,
}

impl ExpectedOutcome {
    /// Chooses the outcome without a pattern: some batches get several of a kind, others none.
    pub fn of(batch: u64, row: u64) -> Self {
        let mixed = (batch * 1_000_003 + row + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        match (mixed >> 33) % 100 {
            0 => Self::Poison,
            1 => Self::Invalid,
            2..=6 => Self::DoneAfterOne,
            _ => Self::Done,
        }
    }

    pub fn prompt(self, batch: u64, row: u64) -> String {
        let asks = match self {
            Self::Done => "",
            Self::DoneAfterOne => " MOCK_FAIL_TRANSIENT_ONCE",
            Self::Invalid => " MOCK_FAIL_INVALID",
            Self::Poison => match row % 3 {
                0 => " MOCK_CRASH",
                1 => " MOCK_KILL",
                _ => " MOCK_EXIT_3",
            },
        };
        format!("say {row} of {batch}{asks}")
    }

    /// The class of its failure; `None`: the row is done.
    pub fn class(self) -> Option<&'static str> {
        match self {
            Self::Done | Self::DoneAfterOne => None,
            Self::Invalid => Some("invalid_row"),
            Self::Poison => Some("engine_died"),
        }
    }
}
