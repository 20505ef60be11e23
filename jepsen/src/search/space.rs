//! States and operations of a search as small numbers, and the steps between them, each computed once.

use super::visited::FastHash;
use crate::models::Model;
use std::collections::HashMap;
use std::mem::size_of;

pub(super) type StateId = u32;
/// Operations that are equal, answers included, are of one class.
pub(super) type ClassId = u32;

/// A step that the model does not allow.
const IMPOSSIBLE: StateId = StateId::MAX;

pub(super) struct Space<'a, M: Model> {
    model: &'a M,
    states: Vec<M::State>,
    state_ids: HashMap<M::State, StateId>,
    ops: Vec<M::Op>,
    op_ids: HashMap<M::Op, ClassId>,
    steps: HashMap<(StateId, ClassId), StateId, FastHash>,
    heap_bytes: usize,
}

impl<'a, M: Model> Space<'a, M> {
    pub(super) fn new(model: &'a M) -> Self {
        let mut space = Self {
            model,
            states: Vec::new(),
            state_ids: HashMap::new(),
            ops: Vec::new(),
            op_ids: HashMap::new(),
            steps: HashMap::default(),
            heap_bytes: 0,
        };
        space.intern(model.initial());
        space
    }

    pub(super) fn model(&self) -> &'a M {
        self.model
    }

    pub(super) fn initial(&self) -> StateId {
        0
    }

    pub(super) fn state(&self, id: StateId) -> &M::State {
        &self.states[id as usize]
    }

    pub(super) fn intern(&mut self, state: M::State) -> StateId {
        if let Some(&id) = self.state_ids.get(&state) {
            return id;
        }
        let id = self.states.len() as StateId;
        self.heap_bytes += self.model.state_bytes(&state);
        self.states.push(state.clone());
        self.state_ids.insert(state, id);
        id
    }

    pub(super) fn class(&mut self, op: &M::Op) -> ClassId {
        if let Some(&id) = self.op_ids.get(op) {
            return id;
        }
        let id = self.ops.len() as ClassId;
        self.ops.push(op.clone());
        self.op_ids.insert(op.clone(), id);
        id
    }

    pub(super) fn op(&self, class: ClassId) -> &M::Op {
        &self.ops[class as usize]
    }

    pub(super) fn classes(&self) -> usize {
        self.ops.len()
    }

    /// The state after an operation, if it is possible in this one.
    pub(super) fn step(&mut self, from: StateId, class: ClassId) -> Option<StateId> {
        let to = match self.steps.get(&(from, class)) {
            Some(&to) => to,
            None => {
                let to = self.model.step(&self.states[from as usize], &self.ops[class as usize]);
                let to = to.map_or(IMPOSSIBLE, |to| self.intern(to));
                self.steps.insert((from, class), to);
                to
            }
        };
        (to != IMPOSSIBLE).then_some(to)
    }

    /// About how many bytes it holds.
    pub(super) fn bytes(&self) -> usize {
        let state = 2 * size_of::<M::State>() + size_of::<StateId>();
        self.heap_bytes + self.states.len() * state + self.steps.capacity() * 16
    }
}
