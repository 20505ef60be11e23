//! The tables of runs and of workers, in the chosen order.
//!
//! Invariant: an order is total: equal items are ordered by name, so they keep their place between refreshes.
//! Absent: the terminal.

use std::cmp::{Ordering, Reverse};
use std::collections::BTreeMap;

use rollout_proto::v1;

use crate::output::{Align, Table, count, duration};
use crate::rolloutctl::run_summary::Run;

/// Rates by run: rows with an outcome per second.
pub(super) type Speeds = BTreeMap<String, f64>;

/// Orders of runs, in the order in which a key cycles through them.
pub(super) const RUN_ORDERS: [&str; 6] =
    ["going on, newest", "name", "decided", "running", "failed", "rows/s"];
pub(super) const WORKER_ORDERS: [&str; 5] = ["held", "name", "done", "silence", "state"];

/// The runs in order number `order`. In the first order, active runs come before ended ones, the newest first in each.
pub(super) fn runs(runs: &[Run], speeds: &Speeds, order: usize, reversed: bool) -> Table {
    let mut table = Table::new(&[
        "RUN", "STATE", "DECIDED", "DONE", "ROWS", "RUNNING", "FAILED", "ROWS/S", "ETA", "WHY",
    ]);
    for column in 2..8 {
        table = table.align(column, Align::Right);
    }
    let speed = |run: &Run| speeds.get(&run.name).copied().unwrap_or_default();
    let by = |a: &&Run, b: &&Run| match RUN_ORDERS[order % RUN_ORDERS.len()] {
        "name" => Ordering::Equal,
        "decided" => b.counts.percent().cmp(&a.counts.percent()),
        "running" => b.counts.running.cmp(&a.counts.running),
        "failed" => b.counts.failed.cmp(&a.counts.failed),
        "rows/s" => speed(b).total_cmp(&speed(a)),
        _ => (a.ended(), Reverse(a.created_wall_ms)).cmp(&(b.ended(), Reverse(b.created_wall_ms))),
    };
    for run in sorted(runs, |a, b| by(a, b).then_with(|| a.name.cmp(&b.name)), reversed) {
        let counts = &run.counts;
        let rate = speeds.get(&run.name).copied().filter(|rate| *rate > 0.0 && !run.ended());
        let left = counts.rows.saturating_sub(counts.decided()) as f64;
        table.row([
            run.name.clone(),
            run.state.to_owned(),
            format!("{}%", counts.percent()),
            count(counts.done),
            count(counts.rows),
            count(counts.running),
            count(counts.failed),
            rate.map_or("-".into(), |rate| count(rate as u64)),
            rate.map_or("-".into(), |rate| duration(left / rate)),
            run.why(),
        ]);
    }
    table
}

/// The workers in order number `order`. In the first order, the busiest come first.
pub(super) fn workers(workers: &[v1::WorkerInfo], order: usize, reversed: bool) -> Table {
    let mut table =
        Table::new(&["WORKER", "STATE", "SLOTS", "HELD", "DONE", "LAST HEARTBEAT", "PROBLEM"]);
    for column in 2..5 {
        table = table.align(column, Align::Right);
    }
    let held = |worker: &v1::WorkerInfo| -> u64 {
        worker.slots.iter().map(|slot| u64::from(slot.rows_held)).sum()
    };
    let done =
        |worker: &v1::WorkerInfo| -> u64 { worker.slots.iter().map(|slot| slot.rows_done).sum() };
    let by = |a: &&v1::WorkerInfo, b: &&v1::WorkerInfo| match WORKER_ORDERS
        [order % WORKER_ORDERS.len()]
    {
        "name" => Ordering::Equal,
        "done" => done(b).cmp(&done(a)),
        "silence" => b.silent_ms.cmp(&a.silent_ms),
        "state" => a.state.cmp(&b.state),
        _ => held(b).cmp(&held(a)),
    };
    for worker in sorted(workers, |a, b| by(a, b).then_with(|| a.name.cmp(&b.name)), reversed) {
        let problem =
            worker.slots.iter().find_map(|slot| match (slot.ineligible.as_str(), slot.cordoned) {
                ("", false) => None,
                ("", true) => Some(format!("slot {} cordoned: {}", slot.slot, slot.cordon_reason)),
                (why, _) => Some(why.to_owned()),
            });
        table.row([
            worker.name.clone(),
            worker.state.clone(),
            worker.slots.len().to_string(),
            count(held(worker)),
            count(done(worker)),
            format!("{} ago", duration(worker.silent_ms as f64 / 1000.0)),
            problem.unwrap_or_default(),
        ]);
    }
    table
}

fn sorted<T>(things: &[T], by: impl Fn(&&T, &&T) -> Ordering, reversed: bool) -> Vec<&T> {
    let mut sorted: Vec<&T> = things.iter().collect();
    sorted.sort_by(|a, b| if reversed { by(b, a) } else { by(a, b) });
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rolloutctl::run_summary::sample;

    fn names(table: &Table) -> Vec<String> {
        let text = table.to_string();
        let first = |line: &str| line.split_whitespace().next().map(str::to_owned);
        text.lines().skip(1).filter_map(first).collect()
    }

    #[test]
    fn runs_and_workers_are_in_the_order_that_is_chosen() {
        let run = |name: &str, running, failed| {
            let mut run = Run { name: name.into(), ..sample() };
            (run.counts.running, run.counts.failed) = (running, failed);
            run
        };
        let all = [run("b", 5, 1), run("a", 7, 0), run("c", 6, 9)];
        let speeds = Speeds::from([("c".to_owned(), 10.0), ("b".to_owned(), 20.0)]);
        let at = |what: &str| RUN_ORDERS.iter().position(|order| *order == what).unwrap();
        let by = |what: &str, reversed| names(&runs(&all, &speeds, at(what), reversed));
        assert_eq!(by("name", false), ["a", "b", "c"]);
        assert_eq!(by("name", true), ["c", "b", "a"]);
        assert_eq!(by("running", false), ["a", "c", "b"]);
        assert_eq!(by("failed", false), ["c", "b", "a"]);
        assert_eq!(by("rows/s", false), ["b", "c", "a"]);

        let worker = |name: &str, rows_held, silent_ms| v1::WorkerInfo {
            name: name.into(),
            silent_ms,
            slots: vec![v1::WorkerSlot { rows_held, ..v1::WorkerSlot::default() }],
            ..v1::WorkerInfo::default()
        };
        let all = [worker("w1", 1, 90), worker("w2", 8, 10)];
        assert_eq!(names(&workers(&all, 0, false)), ["w2", "w1"]);
        assert_eq!(names(&workers(&all, 3, false)), ["w1", "w2"]);
    }
}
