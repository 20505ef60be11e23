//! Work and capacity by model, as lines of the metrics page.
//!
//! *Invariant:* a page lists only the models that exist when it is made, at most [`POOLS_MAX`]: those with the most
//! rows, and the rest as one sum. It has no line for any other model. A zero for a model that is part of the sum would
//! make an autoscaler remove slots whose rows wait or run.
//! Absent: the metrics recorder, which never forgets a series.

use rollout_ledger::view::Pool;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Models with lines of their own, counting the line for the rest as one.
pub(super) const POOLS_MAX: usize = 64;
/// The label of the other models.
const OTHER: &str = "other";

/// Adds the pools to a page.
pub(super) fn write(page: &mut String, pools: BTreeMap<String, Pool>, rows_per_slot: u64) {
    let pools = fold(pools);
    if pools.is_empty() {
        return;
    }
    let mut write_gauge = |name: &str, value: &dyn Fn(&Pool) -> u64| {
        // Writing to a string cannot fail.
        let _ = writeln!(page, "# TYPE {name} gauge");
        for (model, pool) in &pools {
            let _ = writeln!(page, "{name}{{model=\"{}\"}} {}", escaped(model), value(pool));
        }
        page.push('\n');
    };
    write_gauge("rollout_pool_rows_pending", &|pool| pool.pending);
    write_gauge("rollout_pool_rows_running", &|pool| pool.running);
    write_gauge("rollout_pool_slots", &|pool| pool.slots);
    write_gauge("rollout_pool_slots_idle", &|pool| pool.idle);
    write_gauge("rollout_pool_desired_slots", &|pool| desired_slots(pool, rows_per_slot));
}

/// A label's value in Prometheus's text format.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// One slot for this many rows that are pending or running. Running rows count, so that their slots are not removed.
fn desired_slots(pool: &Pool, rows_per_slot: u64) -> u64 {
    (pool.pending + pool.running).div_ceil(rows_per_slot.max(1))
}

/// The pools with the most rows, and the sum of all others.
fn fold(pools: BTreeMap<String, Pool>) -> BTreeMap<String, Pool> {
    if pools.len() <= POOLS_MAX {
        return pools;
    }
    let mut all: Vec<(String, Pool)> = pools.into_iter().collect();
    all.sort_by_key(|(_, pool)| std::cmp::Reverse(pool.pending + pool.running));
    let rest = all.split_off(POOLS_MAX - 1);
    let mut kept: BTreeMap<String, Pool> = all.into_iter().collect();
    let other = kept.entry(OTHER.to_owned()).or_default();
    for (_, pool) in rest {
        other.pending += pool.pending;
        other.running += pool.running;
        other.slots += pool.slots;
        other.idle += pool.idle;
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_wants_one_slot_per_full_or_partial_group_of_rows() {
        let pool = |pending, running| Pool { pending, running, ..Pool::default() };
        assert_eq!(desired_slots(&pool(0, 0), 100), 0);
        assert_eq!(desired_slots(&pool(0, 1), 100), 1);
        assert_eq!(desired_slots(&pool(150, 50), 100), 2);
        assert_eq!(desired_slots(&pool(151, 50), 100), 3);
    }

    #[test]
    fn models_beyond_the_bound_are_summed_and_no_row_is_omitted() {
        let pool = |n: u64| Pool { pending: n, running: 1, slots: 2, idle: 1 };
        let many: BTreeMap<String, Pool> =
            (0..100).map(|n| (format!("m{n:03}"), pool(n))).collect();
        let folded = fold(many);
        assert_eq!(folded.len(), POOLS_MAX);
        assert_eq!(folded.values().map(|p| p.pending).sum::<u64>(), (0..100).sum::<u64>());
        assert_eq!(folded["m099"], pool(99));
        assert_eq!(folded[OTHER].pending, (0..37).sum::<u64>());
        assert_eq!(fold(BTreeMap::from([("m".into(), pool(1))])).len(), 1);
    }

    #[test]
    fn a_pool_has_a_line_for_each_of_its_numbers() {
        let mut page = String::new();
        write(&mut page, BTreeMap::new(), 100);
        assert_eq!(page, "");
        let pool = Pool { pending: 250, running: 8, slots: 2, idle: 1 };
        write(&mut page, BTreeMap::from([("a \"b\"\\\n".to_owned(), pool)]), 100);
        let gauges = [
            ("rows_pending", 250),
            ("rows_running", 8),
            ("slots", 2),
            ("slots_idle", 1),
            ("desired_slots", 3),
        ];
        let lines = gauges.map(|(of, value)| {
            let name = format!("rollout_pool_{of}");
            format!("# TYPE {name} gauge\n{name}{{model=\"a \\\"b\\\"\\\\\\n\"}} {value}\n\n")
        });
        assert_eq!(page, lines.concat());
    }
}
