//! A small run of every `rolloutctl bench` except `fleet`, which `fleets.rs` runs. Each starts its own cluster.
//! docs/figures.md says what they measure.

use anyhow::{Result, ensure};
use rollout_tests::bench::{kinds, measured, measured_alone, positive};

#[test]
fn commands_are_measured_by_the_size_of_the_ledger() -> Result<()> {
    let few = ["--claims", "200", "--runs", "1,3", "--slots", "10", "--rows", "10000"];
    let lines = measured_alone(&[&["apply"], &few[..]].concat())?;
    let twice = ["runs", "runs-of-own-models", "runs-of-any-slots"];
    let sizes = twice.iter().flat_map(|size| [*size; 2]).chain(["slots", "rows"]);
    let (claims, models): (Vec<_>, Vec<_>) =
        lines.iter().partition(|(kind, _)| kind == "BenchApply");
    ensure!(
        claims.iter().map(|line| line.1["grows"].as_str().unwrap_or_default()).eq(sizes),
        "{lines:?}"
    );
    for (_, data) in claims {
        positive(data, "p99Us")?;
    }
    // One model that half of the slots offer, and one that all offer.
    ensure!(models.len() == 2, "{models:?}");
    for (kind, data) in models {
        ensure!(kind == "BenchApplyNewModel", "{kind}");
        positive(&data["create"], "maxMs")?;
        positive(&data["end"], "maxMs")?;
    }
    let lines = measured_alone(&["apply", "--lose", "48", "--claims", "50"])?;
    ensure!(kinds(&lines) == ["BenchApplyLoss"] && lines[0].1["slotsLost"] == 16, "{lines:?}");
    positive(&lines[0].1["suspect"], "maxMs")?;
    // A cost that is not proportional to the changes would be ten times as high.
    let bytes = |slots: &str| -> Result<f64> {
        let lines = measured_alone(&["apply", "--image", slots])?;
        let leases = |tag| lines[0].1["bytesByTag"][tag].as_f64().unwrap_or_default();
        Ok(leases("F") + leases("O"))
    };
    let (few, many) = (bytes("120")?, bytes("1200")?);
    ensure!(0.0 < few && many < few * 1.5, "{few} bytes beside few slots, {many} beside many");
    Ok(())
}

#[test]
fn each_operation_of_the_shared_store_is_measured_with_each_number_of_clients() -> Result<()> {
    let lines = measured(&["store", "--clients", "1,4", "--seconds", "1"])?;
    ensure!(lines.iter().all(|(kind, _)| kind == "BenchStore"), "{lines:?}");
    let measured: Vec<_> = lines
        .iter()
        .filter_map(|(_, data)| Some((data["operation"].as_str()?, data["clients"].as_u64()?)))
        .collect();
    let operations = ["get", "wait-get", "add", "sets"];
    let all: Vec<_> = operations.iter().flat_map(|of| [(*of, 1), (*of, 4)]).collect();
    ensure!(measured == all, "{lines:?}");
    lines.iter().try_for_each(|(_, data)| positive(data, "perSecond"))
}

const LOAD: [&str; 6] = ["--workers", "2", "--items", "20000", "--warmup", "500ms"];

#[test]
fn the_ledgers_bench_counts_what_was_acknowledged_and_proves_that_nothing_was_lost() -> Result<()> {
    let lines = measured(&[&["ledger", "--batch", "64", "--seconds", "1s"], &LOAD[..]].concat())?;
    ensure!(kinds(&lines) == ["BenchLedger"], "{lines:?}");
    let data = &lines[0].1;
    positive(data, "itemsPerSecond")?;
    ensure!(data["settled"]["digestsEqual"] == true, "{data}");
    Ok(())
}

#[test]
fn a_leaders_death_and_both_ways_to_hand_over_are_measured_in_epochs_that_follow_one_another()
-> Result<()> {
    let lines = measured(&[&["failover", "--times", "1"], &LOAD[..]].concat())?;
    ensure!(kinds(&lines) == ["BenchFailover", "BenchFailoverSummary"], "{lines:?}");
    positive(&lines[0].1, "seconds")?;
    for by in ["sigterm", "transfer"] {
        let lines = measured(&[&["handover", "--times", "1", "--by", by], &LOAD[..]].concat())?;
        ensure!(kinds(&lines) == ["BenchHandover", "BenchHandoverSummary"], "{lines:?}");
        let (one, all) = (&lines[0].1, &lines[1].1);
        let epoch = |key: &str| one[key].as_str().and_then(|n| n.parse::<u64>().ok());
        ensure!(epoch("epochAfter") > epoch("epochBefore"), "{one}");
        ensure!(one["by"] == by && all["settled"]["digestsEqual"] == true, "{one}\n{all}");
        positive(all, "worstSeconds")?;
        ensure!(all["memberFsyncP99Us"].as_u64().is_some_and(|us| us > 0), "{all}");
    }
    Ok(())
}

#[test]
fn rows_are_submitted_nodes_rendezvous_and_a_disk_is_measured() -> Result<()> {
    let lines = measured(&["submit", "--rows", "20000", "--row-bytes", "100"])?;
    ensure!(kinds(&lines) == ["BenchSubmit"], "{lines:?}");
    ensure!(lines[0].1["rows"] == "20000" && lines[0].1["digestsEqual"] == true, "{lines:?}");
    positive(&lines[0].1, "rowsPerSecond")?;
    let lines = measured(&["rendezvous", "--nodes", "2,5", "--rounds", "2"])?;
    ensure!(kinds(&lines) == ["BenchRendezvous", "BenchRendezvous"], "{lines:?}");
    let nodes: Vec<_> = lines.iter().filter_map(|(_, data)| data["nodes"].as_u64()).collect();
    ensure!(nodes == [2, 5], "{lines:?}");
    positive(&lines[1].1, "medianSeconds")?;
    let size = ["--nodes", "8", "--ranks", "2", "--keys", "2", "--rounds", "1"];
    let lines = measured(&[&["rendezvous"], &size[..]].concat())?;
    ensure!(kinds(&lines) == ["BenchRendezvousRanks"], "{lines:?}");
    ensure!(lines[0].1["nodes"] == 8 && lines[0].1["ranks"] == 2, "{lines:?}");
    positive(&lines[0].1, "meetMedianSeconds")?;
    positive(&lines[0].1, "exchangeMedianSeconds")?;
    let lines = measured(&["fsync", "--seconds", "100ms"])?;
    ensure!(kinds(&lines) == ["BenchFsync"], "{lines:?}");
    positive(&lines[0].1, "fsyncsPerSecond")
}
