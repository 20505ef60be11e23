//! The breadth-first search, for histories in which the depth-first search keeps hitting the same dead ends.
//!
//! Configurations are expanded by *level*, the earliest answer that they still have to explain, and within a level by
//! the number of crashed operations, fewest first. No step leads back in this order, so a configuration is never
//! expanded before one that makes it superfluous, and the memory of a level can be dropped with it.
//!
//! *Invariant:* the search stands at the last node of the path. Walking a path always makes the same moves; once the
//! deadline has passed, no path is walked any more.

use super::{Search, Stop};
use crate::models::Model;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::mem::size_of;

type NodeId = u32;

/// One step of a path from the start.
struct Node {
    parent: NodeId,
    operation: u32,
    /// How many steps from the start, and the length of the trail before the last of them.
    depth: u32,
    trail: u32,
}

/// Level, crashed operations used, and the node's number, which is its age.
type Entry = Reverse<(u64, u32, NodeId)>;

#[derive(Default)]
pub(super) struct Levels {
    nodes: Vec<Node>,
    waiting: BinaryHeap<Entry>,
    path: Vec<NodeId>,
    level: u64,
}

impl Levels {
    pub(super) fn bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<Node>() + self.waiting.capacity() * size_of::<Entry>()
    }
}

impl<M: Model> Search<'_, M> {
    /// Forgets the search in depth and starts at the beginning.
    pub(super) fn start_levels(&mut self) {
        self.undo(0);
        self.frames.clear();
        self.choices.clear();
        self.seen.clear();
        let mut levels = Levels::default();
        let (horizon, _) = self.settle();
        levels.nodes.push(Node { parent: 0, operation: 0, depth: 0, trail: 0 });
        levels.path.push(0);
        if self.left == 0 || !self.pruner.dead_end(&self.space, self.state) {
            levels.waiting.push(Reverse((horizon, 0, 0)));
        }
        self.levels = Some(levels);
    }

    /// Expands the next configuration; `None` if there may be more.
    pub(super) fn expand_next(&mut self) -> Option<Stop> {
        let levels = self.levels.as_mut()?;
        let Some(Reverse((level, crashed, node))) = levels.waiting.pop() else {
            return Some(Stop::Exhausted);
        };
        if level != levels.level {
            levels.level = level;
            self.seen.clear();
        }
        self.walk_to(node);
        if self.watch.late() {
            return Some(Stop::OutOfTime); // Perhaps on the way, and not there.
        }
        let (horizon, end) = self.scan();
        if self.left == 0 {
            return Some(Stop::Found);
        }
        if !self.admit(end) {
            return None;
        }
        self.configurations += 1;
        self.choices.clear();
        self.choose(horizon);
        let choices = std::mem::take(&mut self.choices);
        let mut stop = None;
        for &operation in &choices {
            if self.look(node, operation, crashed) {
                stop = Some(Stop::Found);
                break;
            }
            if self.watch.late() {
                stop = Some(Stop::OutOfTime);
                break;
            }
        }
        self.choices = choices;
        stop
    }

    /// Takes one step from a node and examines the result. True if it explains everything; the search then stays
    /// there.
    fn look(&mut self, parent: NodeId, operation: u32, crashed: u32) -> bool {
        let trail = self.trail.len();
        self.take(operation);
        let (horizon, _) = self.settle();
        if self.left == 0 {
            return true;
        }
        self.watch.spend(self.pruner.targets());
        if !self.pruner.dead_end(&self.space, self.state)
            && let Some(levels) = &mut self.levels
        {
            let node = levels.nodes.len() as NodeId;
            let depth = levels.path.len() as u32;
            levels.nodes.push(Node { parent, operation, depth, trail: trail as u32 });
            let crashed = crashed + u32::from(operation & super::CRASHED != 0);
            levels.waiting.push(Reverse((horizon, crashed, node)));
        }
        self.undo(trail);
        false
    }

    /// Goes back to where the paths part, and forth to `node`.
    fn walk_to(&mut self, node: NodeId) {
        let Some(mut levels) = self.levels.take() else { return };
        let mut forth = Vec::new();
        let mut at = node;
        loop {
            let depth = levels.nodes[at as usize].depth as usize;
            if levels.path.get(depth) == Some(&at) {
                if let Some(&leave) = levels.path.get(depth + 1) {
                    self.undo(levels.nodes[leave as usize].trail as usize);
                    levels.path.truncate(depth + 1);
                }
                break;
            }
            forth.push(at);
            at = levels.nodes[at as usize].parent;
        }
        for &step in forth.iter().rev() {
            self.take(levels.nodes[step as usize].operation);
            self.settle();
            levels.path.push(step);
        }
        self.levels = Some(levels);
    }
}
