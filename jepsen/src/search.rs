//! Searches for an order of operations that explains every answer: is a history linearizable?
//!
//! This is Wing and Gong's search with the memory that Lowe added. It runs depth first on a stack of its own, which
//! is quick if there is an order; after a while it runs breadth first, which is quicker if there is none. A
//! *configuration* is the set of operations put in order so far and the state that they lead to. Operations without
//! an answer (*crashed*) may be put anywhere after their call, or nowhere.
//!
//! The optimizations never change the verdict, because each of them keeps at least one order if there is any:
//! - an operation that changes nothing is put in order as soon as it fits;
//! - of equal operations in flight, the one that is answered first goes first;
//! - a configuration is abandoned if one was seen with the same answered operations, an equivalent state and a subset
//!   of its crashed operations;
//! - and if the model describes the shape of its operations, see [`pruning`].
//!
//! *Invariant:* the search returns [`Stop::Exhausted`] only if every configuration was excluded, and [`Stop::Found`]
//! only with an order in hand. Any other result is no verdict.

mod bits;
mod levels;
mod moves;
mod pruning;
mod space;
mod visited;
mod watch;

use crate::models::Model;
use levels::Levels;
use pruning::Pruner;
use space::{ClassId, Space, StateId};
use std::mem::size_of;
use std::time::Instant;
use visited::Visited;
use watch::Watch;

/// About how many bytes one search may hold.
const MAX_BYTES: usize = 1 << 30;
/// The number of configurations visited depth first: a constant, plus a number for each operation.
const DEPTH_FIRST: u64 = 100_000;
const DEPTH_FIRST_EACH: u64 = 10;
/// Marks a crashed operation in [`Search::choices`] and [`Search::trail`].
const CRASHED: u32 = 1 << 31;

/// An operation in time. One precedes another if its answer is earlier than the other's call.
#[derive(Clone, Debug)]
pub struct Interval<O> {
    /// The operation with its answer, or as it would be if it took effect.
    pub op: O,
    /// When it was called.
    pub call: u64,
    /// When it was answered; `None` if it never was.
    pub ret: Option<u64>,
}

/// Why a search has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// An order was found; see [`Search::order`].
    Found,
    /// No order exists.
    Exhausted,
    /// The allowed configurations are used up; the search can continue.
    Paused,
    /// The deadline has passed, perhaps in the middle of a step: the search cannot continue.
    OutOfTime,
    /// The search would use too much memory.
    OutOfMemory,
}

struct Required {
    call: u64,
    ret: u64,
    class: ClassId,
    interval: u32,
}

struct Crashed {
    call: u64,
    class: ClassId,
    interval: u32,
    /// An equal one, called earlier, that must be used first.
    earlier: Option<u32>,
}

struct TakenStep {
    operation: u32,
    before: StateId,
}

struct Frame {
    /// The length of the trail before the step that led here.
    trail: usize,
    /// Where its choices start in the stack of choices, and which is next.
    choices: usize,
    next: usize,
}

/// A search over the operations of one object.
pub struct Search<'a, M: Model> {
    space: Space<'a, M>,
    pruner: Pruner,
    seen: Visited,
    required: Vec<Required>,
    crashed: Vec<Crashed>,
    /// Which required operations are in order, and which crashed ones.
    done: Vec<u64>,
    used: Vec<u64>,
    /// The first word of `done` that is not full.
    low: usize,
    left: usize,
    state: StateId,
    trail: Vec<TakenStep>,
    frames: Vec<Frame>,
    choices: Vec<u32>,
    /// Required operations that may be next, as found by the last scan.
    available: Vec<u32>,
    /// For each class of operations, the configuration in which it was last considered.
    looked: Vec<u64>,
    key: Vec<u64>,
    watch: Watch,
    configurations: u64,
    started: bool,
    /// How many configurations are visited depth first before the search switches to breadth first.
    depth_first: u64,
    levels: Option<Levels>,
}

impl<'a, M: Model> Search<'a, M> {
    /// Prepares a search over at most 2^31 intervals.
    pub fn new(model: &'a M, intervals: &[Interval<M::Op>]) -> Self {
        Self::until(model, intervals, None)
    }

    /// The same for a search with a deadline: it skips preparations for speed that would take longer.
    pub fn until(model: &'a M, intervals: &[Interval<M::Op>], deadline: Option<Instant>) -> Self {
        let mut space = Space::new(model);
        let mut required = Vec::new();
        let mut crashed = Vec::new();
        for (interval, one) in (0_u32..).zip(intervals) {
            let (class, call) = (space.class(&one.op), one.call);
            match one.ret {
                Some(ret) => required.push(Required { call, ret, class, interval }),
                None => crashed.push(Crashed { call, class, interval, earlier: None }),
            }
        }
        required.sort_by_key(|r| (r.call, r.ret));
        crashed.sort_by_key(|c| c.call);
        link_equal(&mut crashed, space.classes());
        let mut pruner = Pruner::new(&mut space, deadline);
        required.iter().for_each(|r| pruner.add(r.class, true));
        crashed.iter().for_each(|c| pruner.add(c.class, false));
        Self {
            state: space.initial(),
            done: vec![0; required.len() / 64 + 1],
            used: vec![0; crashed.len() / 64 + 1],
            low: 0,
            left: required.len(),
            seen: Visited::default(),
            looked: vec![0; space.classes()],
            watch: Watch::default(),
            space,
            pruner,
            required,
            crashed,
            trail: Vec::new(),
            frames: Vec::new(),
            choices: Vec::new(),
            available: Vec::new(),
            key: Vec::new(),
            configurations: 0,
            started: false,
            depth_first: DEPTH_FIRST + DEPTH_FIRST_EACH * intervals.len() as u64,
            levels: None,
        }
    }

    /// Switches to breadth first after this many configurations. The verdict does not depend on it.
    pub fn depth_first(mut self, configurations: u64) -> Self {
        self.depth_first = configurations;
        self
    }

    /// How many configurations were visited so far.
    pub fn configurations(&self) -> u64 {
        self.configurations
    }

    /// The intervals put in order so far; complete once the search has said [`Stop::Found`].
    pub fn order(&self) -> impl Iterator<Item = usize> {
        self.trail.iter().map(|taken| match taken.operation & CRASHED {
            0 => self.required[taken.operation as usize].interval as usize,
            _ => self.crashed[(taken.operation & !CRASHED) as usize].interval as usize,
        })
    }

    /// The state after [`Self::order`].
    pub fn state(&self) -> &M::State {
        self.space.state(self.state)
    }

    /// Continues until a verdict, until `configurations` were visited in total, or until `deadline`.
    pub fn run(&mut self, configurations: u64, deadline: Option<Instant>) -> Stop {
        self.watch.start(deadline);
        loop {
            if self.started && self.left == 0 {
                return Stop::Found;
            }
            if self.configurations >= configurations && self.started {
                return Stop::Paused;
            }
            if self.watch.late() {
                return Stop::OutOfTime;
            }
            if self.bytes() > MAX_BYTES {
                return Stop::OutOfMemory;
            }
            if let Some(stop) = self.advance() {
                return stop;
            }
        }
    }

    /// Visits one more configuration, or goes back from one.
    fn advance(&mut self) -> Option<Stop> {
        if self.levels.is_some() {
            return self.expand_next();
        }
        if self.configurations >= self.depth_first {
            self.started = true;
            self.start_levels();
            return None;
        }
        if !self.started {
            self.started = true;
            return self.arrive(0).then_some(Stop::Found);
        }
        let Some(frame) = self.frames.last_mut() else { return Some(Stop::Exhausted) };
        let Some(&choice) = self.choices.get(frame.next) else {
            let (trail, choices) = (frame.trail, frame.choices);
            self.choices.truncate(choices);
            self.frames.pop();
            self.undo(trail);
            return None;
        };
        frame.next += 1;
        let trail = self.trail.len();
        self.take(choice);
        self.arrive(trail).then_some(Stop::Found)
    }

    fn bytes(&self) -> usize {
        let levels = self.levels.as_ref().map_or(0, Levels::bytes);
        let path = self.choices.capacity() * size_of::<u32>()
            + self.frames.capacity() * size_of::<Frame>()
            + self.trail.capacity() * size_of::<TakenStep>();
        self.seen.bytes() + self.space.bytes() + self.pruner.bytes() + levels + path
    }

    /// Decides whether a configuration just reached ends the search, is abandoned, or is explored from here. `trail`
    /// is the length of the trail before the step that led here.
    fn arrive(&mut self, trail: usize) -> bool {
        let (horizon, end) = self.settle();
        if self.left == 0 {
            return true;
        }
        self.watch.spend(self.pruner.targets());
        let dead_end = self.pruner.dead_end(&self.space, self.state) || !self.admit(end);
        if dead_end {
            self.undo(trail);
            return false;
        }
        self.configurations += 1;
        let choices = self.choices.len();
        self.choose(horizon);
        self.frames.push(Frame { trail, choices, next: choices });
        false
    }
}

/// Chains equal crashed operations in the order of their calls.
fn link_equal(crashed: &mut [Crashed], classes: usize) {
    let mut last: Vec<Option<u32>> = vec![None; classes];
    for (index, one) in (0_u32..).zip(crashed.iter_mut()) {
        one.earlier = last[one.class as usize].replace(index);
    }
}
