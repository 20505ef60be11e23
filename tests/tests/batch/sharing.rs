//! Two models and two priorities share the workers.

use anyhow::{Result, ensure};
use rollout_tests::{Batch, Fleet, FleetOptions, WorkerOptions};

fn worker(models: &str) -> WorkerOptions {
    let engine = format!(
        "kind = \"mock\"\nslots = 1\nconcurrency = 16\nmodels = [{models}]\n\
         latency_ms_min = 10\nlatency_ms_max = 20\n"
    );
    WorkerOptions { engine, head: String::new() }
}

#[test]
fn a_higher_priority_goes_first_and_no_slot_gets_a_model_that_it_does_not_offer() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let low = "[model]\nuri = \"m/small\"\n[run]\npriority = 1\n";
    let high = "[model]\nuri = \"m/small\"\n[run]\npriority = 8\n";
    let other = "[model]\nuri = \"m/large\"\n[run]\npriority = 9\n";
    let mut low = Batch::submit(&fleet, "low", 600, low)?;
    let mut high = Batch::submit(&fleet, "high", 600, high)?;
    let mut other = Batch::submit(&fleet, "other", 200, other)?;
    for batch in [&low, &high, &other] {
        batch.until(&fleet, "the input is there", |c| c.pending == batch.rows);
    }
    fleet.start_worker("small", &worker("\"m/small\""))?;
    // The highest priority waits, because no worker offers its model. The other two are served strictly in order:
    // when the low one gets its first row, the high one has none left.
    let seen = low.until(&fleet, "the low priority has its turn", |c| c.pending < c.rows);
    assert_eq!(high.counts(&fleet).map(|c| c.pending), Some(0), "{seen:?}");
    let waits = fleet.ctl_json(&["run", "describe", "other"])?;
    assert!(waits["run"]["blocked"].as_str().is_some_and(|b| b.contains("m/large")), "{waits}");
    assert_eq!(other.counts(&fleet).map(|c| c.pending), Some(200));
    fleet.start_worker("large", &worker("\"m/large\""))?;
    for batch in [&mut low, &mut high, &mut other] {
        batch.finish(&fleet)?;
    }
    let (small, large) = (fleet.rows_done_by("small"), fleet.rows_done_by("large"));
    assert_eq!((small, large), (Some(1200), Some(200)));
    fleet.passed()
}

#[test]
fn runs_of_one_priority_share_by_weight() -> Result<()> {
    shared_three_to_one("[run]\nweight = 3\n", |_| Ok(()))
}

#[test]
fn runs_share_by_the_weights_that_were_set_last() -> Result<()> {
    shared_three_to_one("", |fleet| {
        let set = |weight: &str| fleet.ctl(&["run", "set-weight", "heavy", "--weight", weight]);
        let refused = set("101")?;
        let stderr = String::from_utf8_lossy(&refused.stderr);
        let names_bounds = stderr.contains("weight is not 1 to 100");
        ensure!(!refused.status.success() && names_bounds, "{refused:?}");
        let granted = set("3")?;
        ensure!(granted.status.success(), "{granted:?}");
        let described = fleet.ctl_json(&["run", "describe", "heavy"])?;
        ensure!(described["spec"]["weight"] == 3, "{described}");
        Ok(())
    })
}

/// Two runs of which one has three times the weight of the other, by its batch file or by what happens to it before
/// there is a worker.
fn shared_three_to_one(lines: &str, before: impl Fn(&Fleet) -> Result<()>) -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let mut heavy = Batch::submit(&fleet, "heavy", 3000, lines)?;
    let mut light = Batch::submit(&fleet, "light", 3000, "[run]\nweight = 1\n")?;
    for batch in [&heavy, &light] {
        batch.until(&fleet, "the input is there", |c| c.pending == batch.rows);
    }
    before(&fleet)?;
    fleet.start_worker("w", &worker("\"*\""))?;
    let taken = |b: &Batch| b.counts(&fleet).map_or(0, |c| c.rows - c.pending);
    heavy.until(&fleet, "half of the heavy one is given", |c| c.rows - c.pending >= 1500);
    let (h, l) = (taken(&heavy), taken(&light));
    assert!((2 * l..=5 * l).contains(&h), "weights 3 and 1 gave {h} and {l} rows");
    heavy.finish(&fleet)?;
    light.finish(&fleet)?;
    fleet.passed()
}
