//! Evidence of a violation for a human reader: the first answer that no order explains, an order of all operations
//! answered before it, and the operations in flight.

use super::{Prefix, Understood, intervals};
use crate::models::Model;
use crate::operations::{Operation, Outcome};
use crate::search::{Search, Stop};
use crate::value::Value;
use serde::Serialize;
use std::fmt;
use std::time::Instant;

/// How many operations before the refused answer are shown.
const SHOWN: usize = 12;
/// How many characters of a value are shown.
const SHOWN_CHARS: usize = 160;

/// Why a key's answers cannot be explained.
#[derive(Clone, Debug, Serialize)]
pub struct Witness {
    /// How many answers the shortest prefix without an order has.
    pub answers: usize,
    /// How many answers the key has.
    pub of: usize,
    /// Whether a shorter prefix certainly has an order; otherwise a budget ended the search.
    pub shortest: bool,
    /// The answer that ends this prefix; no order explains it.
    pub refused: Step,
    /// An order of all answers before it: its last steps.
    pub before: Vec<Step>,
    /// How many steps precede those.
    pub omitted: usize,
    /// The state that this order leads to.
    pub state: Option<String>,
    /// Operations that were called and had no answer by then.
    pub in_flight: Vec<Step>,
}

/// One operation, described in words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Step {
    /// The line of the call.
    pub called: u64,
    /// The line of the answer, if it came in time.
    pub answered: Option<u64>,
    /// The client.
    pub process: i64,
    /// What it did and the answer.
    pub what: String,
}

/// Finds the shortest prefix of a key's history that no order explains.
pub(super) fn find<M: Model>(
    model: &M,
    understood: &[Understood<'_, M::Op>],
    configurations: u64,
    deadline: Option<Instant>,
) -> Witness {
    let mut answers: Vec<Prefix> = Vec::new();
    for (last, one) in understood.iter().enumerate() {
        if let (Some(at), Some(_)) = (one.operation.answered_at(), &one.answered) {
            answers.push(Prefix { at, last });
        }
    }
    answers.sort_unstable();
    let mut shortest = true;
    // invariant: all answers together have no order; the first `explained` have one.
    let (mut explained, mut refused) = (0, answers.len());
    while explained + 1 < refused {
        let middle = explained.midpoint(refused);
        let (intervals_until, _) = intervals(understood, answers[middle - 1]);
        match Search::until(model, &intervals_until, deadline).run(configurations, deadline) {
            Stop::Exhausted => refused = middle,
            Stop::Found => explained = middle,
            Stop::Paused | Stop::OutOfTime | Stop::OutOfMemory => {
                shortest = false;
                explained = middle;
            }
        }
    }
    let prefix = answers[refused - 1];
    let (before, omitted, state) = match explained.checked_sub(1) {
        Some(index) => order(model, understood, answers[index], configurations, deadline),
        None => (Vec::new(), 0, Some(model.show(&model.initial()))),
    };
    let in_flight = |(number, one): &(usize, &Understood<'_, M::Op>)| {
        let answered = prefix.answers(one.operation, *number);
        prefix.calls(one.operation) && !answered && one.unanswered.is_some()
    };
    let all = understood.iter().enumerate();
    let in_flight =
        all.filter(in_flight).map(|(number, _)| step(understood, number, prefix)).collect();
    Witness {
        answers: refused,
        of: answers.len(),
        shortest,
        refused: step(understood, prefix.last, prefix),
        before,
        omitted,
        state,
        in_flight,
    }
}

/// An order that explains a prefix: its last steps, how many precede them, the state.
fn order<M: Model>(
    model: &M,
    understood: &[Understood<'_, M::Op>],
    prefix: Prefix,
    configurations: u64,
    deadline: Option<Instant>,
) -> (Vec<Step>, usize, Option<String>) {
    let (intervals_until, which) = intervals(understood, prefix);
    let mut search = Search::until(model, &intervals_until, deadline);
    if search.run(configurations, deadline) != Stop::Found {
        return (Vec::new(), 0, None);
    }
    let order: Vec<usize> = search.order().map(|interval| which[interval]).collect();
    let omitted = order.len().saturating_sub(SHOWN);
    let steps = order[omitted..].iter().map(|&i| step(understood, i, prefix)).collect();
    (steps, omitted, Some(short(&model.show(search.state()))))
}

/// The operation with this number, as seen by a prefix.
fn step<O>(understood: &[Understood<'_, O>], number: usize, prefix: Prefix) -> Step {
    let operation: &Operation = understood[number].operation;
    let input = match &operation.input {
        Value::Nil => String::new(),
        input => format!(" {}", short(&input.to_string())),
    };
    let (answered, answer) = match &operation.outcome {
        Outcome::Answered { value, line, .. } if prefix.answers(operation, number) => {
            let same = *value == operation.input;
            (Some(*line), if same { String::new() } else { short(&value.to_string()) })
        }
        _ => (None, "?".to_owned()),
    };
    let arrow = if answer.is_empty() { "" } else { " -> " };
    let what = format!("{}{input}{arrow}{answer}", operation.f);
    Step { called: operation.line, answered, process: operation.process, what }
}

/// A text with its middle left out, if it is long.
fn short(text: &str) -> String {
    let count = text.chars().count();
    if count <= SHOWN_CHARS {
        return text.to_owned();
    }
    let head: String = text.chars().take(SHOWN_CHARS / 4).collect();
    let tail: String = text.chars().skip(count - SHOWN_CHARS / 2).collect();
    format!("{head} … {tail}")
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let answered = self.answered.map_or_else(|| "…".to_owned(), |line| line.to_string());
        write!(f, "line {}-{answered}: process {} {}", self.called, self.process, self.what)
    }
}

impl fmt::Display for Witness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { answers, of, .. } = self;
        let but = match self.shortest {
            true => "; without the last of them there is one",
            false => "; a shorter prefix may also fail; the search budget ran out",
        };
        writeln!(f, "no order explains the first {answers} of its {of} answers{but}")?;
        writeln!(f, "the answer that none explains:")?;
        writeln!(f, "  {}", self.refused)?;
        if let (Some(state), true) = (&self.state, self.before.is_empty()) {
            writeln!(f, "nothing was answered before: the state is {state}")?;
        } else if let Some(state) = &self.state {
            writeln!(f, "an order of what was answered before:")?;
            if self.omitted > 0 {
                writeln!(f, "  … {} before these", self.omitted)?;
            }
            self.before.iter().try_for_each(|step| writeln!(f, "  {step}"))?;
            writeln!(f, "  which leaves {state}")?;
        }
        if !self.in_flight.is_empty() {
            writeln!(f, "in flight or never answered at that time:")?;
            self.in_flight.iter().try_for_each(|step| writeln!(f, "  {step}"))?;
        }
        Ok(())
    }
}
