//! Models that say what the answers of a history should have been: one small file per kind of object.
//!
//! *Invariant:* a model shares no code with the product. It knows one object and its initial state, and nothing of
//! clients, time or concurrency.

mod cas_register;
mod cell;
mod item;
mod kv;
mod kv_store;

pub use cas_register::{CasRegister, RegisterOp};
pub use cell::{Cell, CellOp};
pub use item::{Decided, Item, ItemOp, ItemState, STRIKES_MAX};
pub use kv::{Kv, KvOp, Text};
pub use kv_store::{Act, KvStore, KvStoreOp, KvStoreState};

use crate::value::Value;
use std::fmt::Debug;
use std::hash::Hash;

/// An object that applies one operation after another.
pub trait Model {
    /// The state of the object.
    type State: Clone + Eq + Hash + Debug;
    /// An operation with its answer, so that [`Self::step`] can tell whether the answer is right.
    type Op: Clone + Eq + Hash + Debug;

    /// Whether every operation must name its key.
    const KEYED: bool;

    fn initial(&self) -> Self::State;

    /// The state after `op`, or `None` if `op` cannot have given this answer in `state`.
    fn step(&self, state: &Self::State, op: &Self::Op) -> Option<Self::State>;

    /// Interprets an operation with `input` and `answer` (`None`: unknown; then the result is the operation as it
    /// would be if it took effect). `Ok(None)` if it neither changed nor revealed anything, like a read without an
    /// answer.
    ///
    /// # Errors
    /// A description of what cannot be interpreted.
    fn read(
        &self,
        f: &str,
        input: &Value,
        answer: Option<&Value>,
    ) -> Result<Option<Self::Op>, String>;

    /// What the search may know about `op` beyond [`Self::step`]. The default is nothing, which is always correct but
    /// makes the search slower.
    fn shape(&self, _op: &Self::Op) -> Option<Shape<Self::State>> {
        None
    }

    /// Whether operations that do not [`Shape::sets`] could lead from one state to the other. True
    /// whenever that is not certain, and for equal states.
    fn leads_to(&self, _from: &Self::State, _to: &Self::State) -> bool {
        true
    }

    /// About how many bytes a state holds on the heap.
    fn state_bytes(&self, _state: &Self::State) -> usize {
        0
    }

    /// Describes a state for a report.
    fn show(&self, state: &Self::State) -> String;
}

/// State-independent facts about an operation. `step` must agree with them in every state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape<S> {
    /// In which states it is possible, exactly.
    pub needs: Need<S>,
    /// Its effect on the state.
    pub effect: Effect<S>,
}

/// The states in which an operation is possible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Need<S> {
    /// Every state.
    Anything,
    /// This one.
    Exactly(S),
    /// Every other.
    AllBut(S),
}

/// What an operation does to the state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect<S> {
    /// Nothing, in any state in which it is possible.
    None,
    /// It sets this state, whatever the state was before.
    Sets(S),
    /// It changes the state as [`Model::leads_to`] allows.
    Changes,
}
