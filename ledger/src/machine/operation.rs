//! What the ledger knows of each kind of operation.
//!
//! *Invariant:* one type per kind of operation, in the folder of its domain, and one implementation of [`Operation`]
//! beside it. [`OpKind`](crate::OpKind) calls the type's implementation. No other code has a list of all kinds, and a
//! kind without an answer does not compile. Calls are static, and nothing is decoded twice.
//! Absent: which roles may request an operation. Methods decide that, by the options in their .proto files.

use crate::kernel::reply::{Rejection, Reply};
use crate::machine::apply::Context;
use crate::machine::command::HeldRows;
use crate::machine::ledger::Ledger;

/// How long `apply` may take for an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cost {
    /// At most in proportion to the bytes of the command.
    Bounded,
    /// Longer the larger the state is, however few bytes the command has.
    GrowsWithState,
}

/// What an operation is about, for the namespace rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject<'a> {
    /// Objects of this namespace, or the namespace itself.
    Namespace(&'a str),
    /// What belongs to no namespace, or objects of several.
    Cluster,
    /// Nothing that belongs to others: it makes something for its caller, or its object does not exist.
    Nothing,
}

/// A kind of operation, or a group of kinds that share a record.
pub(crate) trait Operation {
    /// The cluster version that introduced it; of a group, that of its first kind.
    const SINCE: u32;
    /// Whether a worker's exchange carries it, and the worker's stream waits for its reply.
    const IN_EXCHANGE: bool;
    /// Whether a quota may refuse it. The totals of what namespaces use are refreshed before it is applied.
    const IS_BOUNDED: bool;

    /// The cluster version that this value requires. An operation that contains an enum overrides this, because each
    /// variant of the enum has a version too.
    fn since(&self) -> u32 {
        Self::SINCE
    }

    /// How long `apply` may take.
    fn cost(&self) -> Cost;

    /// Whether it makes the ledger larger for longer than the request takes. A leader with a full disk refuses those.
    fn grows(&self) -> bool;

    /// How many rows count toward the limit of rows in a command: those that it may grant, decide or return.
    fn rows(&self) -> u64;

    /// What it is about. The ledger refuses it if its caller may not act there.
    fn subject<'a>(&'a self, ledger: &'a Ledger) -> Subject<'a>;

    /// Whether the ledger would accept it now, or the rejection. `None`: it has no dry run. Operations that an
    /// administrator's command causes have one.
    ///
    /// The ledger is borrowed immutably, so a dry run changes nothing. `apply` makes the same check before its first
    /// change, so the two refuse the same; `tests/model` compares them.
    fn dry_run(&self, _ledger: &Ledger) -> Option<Result<(), Rejection>> {
        None
    }

    /// Changes the state, and returns the reply.
    ///
    /// # Errors
    /// A rejection. Then nothing has changed.
    fn apply(self, ledger: &mut Ledger, ctx: &mut Context) -> Result<Reply, Rejection>;
}

impl<T: Operation> Operation for Box<T> {
    const SINCE: u32 = T::SINCE;
    const IN_EXCHANGE: bool = T::IN_EXCHANGE;
    const IS_BOUNDED: bool = T::IS_BOUNDED;

    fn since(&self) -> u32 {
        T::since(self)
    }

    fn cost(&self) -> Cost {
        T::cost(self)
    }

    fn grows(&self) -> bool {
        T::grows(self)
    }

    fn rows(&self) -> u64 {
        T::rows(self)
    }

    fn subject<'a>(&'a self, ledger: &'a Ledger) -> Subject<'a> {
        T::subject(self, ledger)
    }

    fn dry_run(&self, ledger: &Ledger) -> Option<Result<(), Rejection>> {
        T::dry_run(self, ledger)
    }

    fn apply(self, ledger: &mut Ledger, ctx: &mut Context) -> Result<Reply, Rejection> {
        T::apply(*self, ledger, ctx)
    }
}

/// How many rows the sets have.
pub(crate) fn rows_of(sets: &[HeldRows]) -> u64 {
    sets.iter().map(|set| set.rows.len()).sum()
}
