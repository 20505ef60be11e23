//! `rolloutctl bench apply`: the cost of one command in the state machine, by the size of the state.
//!
//! Invariant: one process, no cluster, no network and no disk: the figures are those of [`Ledger::apply`] alone, as
//! each member pays them for every command. A claim takes unclaimed rows; the slot that makes it first completes what
//! it held before, which is not measured.
//!
//! [`Ledger::apply`]: rollout_ledger::Ledger::apply

mod image;
mod ledger_fixture;
mod loss;
mod new_model;

use std::time::Duration;

use ledger_fixture::{LedgerFixture, Models, Size};
use serde::Serialize;

use crate::output::{self, Report, count, u64_string};
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Rows of a claim.
const CLAIM_ROWS: u32 = 8;
/// The fixed sizes while another size grows.
const USUAL: (u32, u32, u64) = (100, 1000, 10_000_000);

/// What to measure.
#[derive(Debug, clap::Args)]
pub(crate) struct ApplyArgs {
    /// Claims to measure at each size
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    claims: u32,
    /// Numbers of open runs
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,10,100,1000", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    runs: Vec<u32>,
    /// Numbers of slots
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "100,1000,10000,64000", value_parser = clap::value_parser!(u32).range(1..=64_000))]
    slots: Vec<u32>,
    /// Numbers of declared rows
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "10000,1000000,100000000", value_parser = clap::value_parser!(u64).range(1_000..=1_000_000_000))]
    rows: Vec<u64>,
    /// Instead of claims, measure the loss of a third of this many slots at once; each slot holds
    /// rows of 20 runs
    #[arg(long, value_name = "SLOTS", conflicts_with = "image", value_parser = clap::value_parser!(u32).range(24..=64_000))]
    lose: Option<u32>,
    /// Instead of claims, measure the bytes of an image after few of this many slots have changed;
    /// each slot holds rows of 20 runs
    #[arg(long, value_name = "SLOTS", value_parser = clap::value_parser!(u32).range(24..=64_000))]
    image: Option<u32>,
    /// Cluster version whose rules the commands follow
    #[arg(long, value_name = "N", default_value_t = rollout_ledger::SCHEDULING_VERSION)]
    cluster_version: u32,
}

/// The spread of a command's time.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct Spread {
    p50_us: f64,
    p99_us: f64,
    max_us: f64,
}

/// The spread of at least one time.
fn spread(mut times: Vec<Duration>) -> Spread {
    times.sort_unstable();
    let us = |at: usize| times.get(at).map_or(0.0, |time| time.as_nanos() as f64 / 1e3);
    let of = |share: f64| us(((times.len() as f64 * share).ceil() as usize).max(1) - 1);
    Spread { p50_us: of(0.5), p99_us: of(0.99), max_us: us(times.len().max(1) - 1) }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ApplyFigures {
    /// What grows: `runs`, `runs-of-own-models`, `runs-of-any-slots`, `slots` or `rows`.
    grows: &'static str,
    runs: u32,
    slots: u32,
    #[serde(serialize_with = "u64_string")]
    rows: u64,
    cluster_version: u32,
    claims: u32,
    #[serde(flatten)]
    claim: Spread,
    /// Claims of slots whose model no run uses, if there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    empty: Option<Spread>,
}

impl Report for ApplyFigures {
    const KIND: &'static str = "BenchApply";

    fn table(&self) -> String {
        let times = |s: &Spread| {
            format!("p50 {:.1} us, p99 {:.1} us, max {:.1} us", s.p50_us, s.p99_us, s.max_us)
        };
        let empty = self.empty.as_ref().map(|s| format!("; finds none: {}", times(s)));
        format!(
            "{:<19} {:>6} runs {:>7} slots {:>12} rows: {}{}\n",
            self.grows,
            count(self.runs.into()),
            count(self.slots.into()),
            count(self.rows),
            times(&self.claim),
            empty.unwrap_or_default()
        )
    }
}

/// Rows of each run that each slot holds when it is lost.
const HELD_ROWS: u32 = 100;
const HELD_RUNS: u32 = 20;
/// Changes between two images.
const CHANGES: u32 = 100;

impl Verb for ApplyArgs {
    const KIND: Kind<Self> = Kind::Once;

    /// Measures, and prints each size as soon as its figures are known.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let cluster_version = self.cluster_version;
        if let Some(slots) = self.lose.or(self.image) {
            // Enough for the first grants and for later claims.
            let rows = u64::from(slots) * u64::from(HELD_ROWS * HELD_RUNS) * 2;
            let size = Size { runs: HELD_RUNS, slots, rows, models: Models::One, cluster_version };
            return match self.lose {
                Some(_) => output::emit_next(
                    globals.format,
                    &loss::measure(size, HELD_ROWS, self.claims as usize)?,
                ),
                None => {
                    output::emit_next(globals.format, &image::measure(size, HELD_ROWS, CHANGES)?)
                }
            };
        }
        let (runs, slots, rows) = USUAL;
        let usual = Size { runs, slots, rows, models: Models::One, cluster_version };
        let of_runs = |grows, models| {
            self.runs.iter().map(move |&runs| (grows, Size { runs, models, ..usual }))
        };
        let same = of_runs("runs", Models::One);
        let own = of_runs("runs-of-own-models", Models::Own);
        let any = of_runs("runs-of-any-slots", Models::Any);
        let slots = self.slots.iter().map(|&slots| ("slots", Size { slots, ..usual }));
        let few = Size { runs: 1, slots: 100, ..usual };
        let rows = self.rows.iter().map(|&rows| ("rows", Size { rows, ..few }));
        for (grows, size) in same.chain(own).chain(any).chain(slots).chain(rows) {
            output::emit_next(globals.format, &measure(grows, size, self.claims)?)?;
        }
        for &slots in &self.slots {
            for models in [Models::Own, Models::Any] {
                let figures = new_model::measure(Size { slots, models, ..usual })?;
                output::emit_next(globals.format, &figures)?;
            }
        }
        Ok(())
    }
}

fn measure(grows: &'static str, size: Size, claims: u32) -> anyhow::Result<ApplyFigures> {
    let (mut times, mut empty) = (Vec::new(), Vec::new());
    // If few rows are declared, they last for some claims only: then continue in a new ledger of that size.
    while times.len() < claims as usize {
        let before = times.len();
        let mut fixture = LedgerFixture::of(size)?;
        for at in 0..fixture.pullers.len() {
            fixture.claim(at, CLAIM_ROWS)?;
        }
        for at in (0..fixture.pullers.len()).cycle() {
            if times.len() == claims as usize {
                break;
            }
            fixture.complete(at, rollout_ledger::HeldRows::clone)?;
            let (got, taken) = fixture.claim(at, CLAIM_ROWS)?;
            match fixture.pullers[at].wanted {
                true if got => times.push(taken),
                true => break,
                false => empty.push(taken),
            }
        }
        anyhow::ensure!(times.len() > before, "too few rows are declared for {} slots", size.slots);
    }
    let Size { runs, slots, rows, cluster_version, .. } = size;
    let empty = (!empty.is_empty()).then(|| spread(empty));
    let claim = spread(times);
    Ok(ApplyFigures { grows, runs, slots, rows, cluster_version, claims, claim, empty })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: Size =
        Size { runs: 3, slots: 24, rows: 30_000, models: Models::Own, cluster_version: 3 };

    #[test]
    fn each_size_is_measured_and_slots_of_other_models_get_nothing() {
        let figures = measure("runs", SIZE, 50).unwrap();
        assert!(figures.claim.p50_us > 0.0 && figures.claim.p50_us <= figures.claim.max_us);
        assert!(figures.empty.is_some(), "half of the slots");
        let figures = measure("runs", Size { models: Models::Any, ..SIZE }, 50).unwrap();
        assert!(figures.empty.is_none(), "each slot has any model");
    }

    #[test]
    fn a_new_model_is_one_of_half_or_of_all_of_the_slots() {
        for (models, slots_with_it) in [(Models::Own, 12), (Models::Any, 24)] {
            let figures = new_model::measure(Size { models, ..SIZE }).unwrap();
            assert_eq!((figures.slots, figures.slots_with_it), (24, slots_with_it));
            assert!(figures.create.max_ms > 0.0 && figures.end.max_ms > 0.0);
        }
    }

    #[test]
    fn a_third_of_the_slots_is_lost_and_the_others_take_their_rows() {
        for cluster_version in [2, 3] {
            let size = Size { models: Models::One, cluster_version, ..SIZE };
            let figures = loss::measure(size, 20, 30).unwrap();
            assert_eq!((figures.slots, figures.slots_lost), (24, 8));
            // The order of claims decides how many runs share a slot's rows: at least two.
            assert!((16..=24).contains(&figures.attempts_lost), "{}", figures.attempts_lost);
            assert!(figures.tick.commands > 0 && figures.unsuspect.commands > 0);
        }
    }

    #[test]
    fn output_matches_the_golden_file() {
        let claim = Spread { p50_us: 1.5, p99_us: 3.0, max_us: 20.5 };
        let (runs, slots, rows) = USUAL;
        let report = ApplyFigures {
            grows: "runs",
            runs,
            slots,
            rows,
            cluster_version: 3,
            claims: 10_000,
            empty: Some(claim.clone()),
            claim,
        };
        crate::golden::report("bench-apply.txt", &report);
    }
}
