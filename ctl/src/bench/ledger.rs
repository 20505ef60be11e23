//! `rolloutctl bench ledger`: how many items per second the ledger grants and completes.
//!
//! Invariant: an item counts when its completion was acknowledged, which means fsynced on a quorum; a claim that was
//! fsynced as well preceded every completion. The first seconds are not measured. Absent: a verdict; the
//! docs say what to expect.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rollout_proto::v1;
use serde::Serialize;

use super::disk::{self, DiskRate};
use super::driver::{Driver, LoadArgs};
use super::final_check::{self, Settled};
use super::measurements::{self, CallTimes, MemberFigures, tenth};
use super::target::{Target, TargetArgs};
use crate::connect::parse_duration;
use crate::output::{self, Report, count, u64_string};
use crate::rolloutctl::verb::{Globals, Kind, Verb};
use crate::stdio::{print_note, to_stderr};

const DISK_TIME: Duration = Duration::from_secs(2);
const TALK_EVERY: Duration = Duration::from_secs(5);

/// How to measure.
#[derive(Debug, clap::Args)]
pub(crate) struct LedgerArgs {
    #[command(flatten)]
    load: LoadArgs,
    /// Rows that a slot asks for at a time
    #[arg(long, value_name = "B", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=4096))]
    batch: u32,
    /// How long to measure
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    seconds: Duration,
    /// Warm-up time before the measurement
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_duration)]
    warmup: Duration,
    #[command(flatten)]
    target: TargetArgs,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct LedgerFigures {
    #[serde(serialize_with = "u64_string")]
    items_per_run: u64,
    workers: u32,
    slots: u32,
    batch: u32,
    with_blobs: bool,
    measured_seconds: f64,
    #[serde(serialize_with = "u64_string")]
    items: u64,
    items_per_second: f64,
    exchange: CallTimes,
    register: CallTimes,
    create_run: CallTimes,
    add_segments: CallTimes,
    close_input: CallTimes,
    members_cpu_us_per_item: f64,
    generator_cpu_us_per_item: f64,
    log_bytes_per_item: f64,
    members: Vec<MemberFigures>,
    disk_fsyncs_per_second: f64,
    disk_fsync_p50_us: u64,
    disk_fsync_p99_us: u64,
    settled: Settled,
}

impl Report for LedgerFigures {
    const KIND: &'static str = "BenchLedger";

    fn table(&self) -> String {
        format!("{} items/s\n", count(self.items_per_second as u64))
    }
}

/// A reading of everything that is reported as a difference over the window.
struct Reading {
    at: Instant,
    done: u64,
    own_cpu_us: u64,
    counters: BTreeMap<String, v1::CountersResponse>,
}

impl Reading {
    async fn take(target: &Target, driver: &Driver) -> Self {
        let counters = measurements::counters(target.admin()).await;
        let done = driver.load().with(|record| record.done_rows);
        Self { at: Instant::now(), done, own_cpu_us: measurements::own_cpu_us(), counters }
    }
}

impl Verb for LedgerArgs {
    const KIND: Kind<Self> = Kind::Once;

    /// Measures and prints one JSON line.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let mut target = Target::open(&globals.connect, &self.target).await?;
        let disk = yardstick(&target)?;
        let mut driver = Driver::warmed_up(&target, &self.load, self.batch, self.warmup).await?;
        target.check_alive()?;
        driver.load().with(|record| record.exchange.clear());
        let before = Reading::take(&target, &driver).await;
        let end = before.at + self.seconds;
        while Instant::now() < end {
            let (start, done) = (Instant::now(), driver.load().with(|record| record.done_rows));
            driver.go_on_for(TALK_EVERY.min(end.saturating_duration_since(start))).await?;
            let done = driver.load().with(|record| record.done_rows) - done;
            let rate = done as f64 / start.elapsed().as_secs_f64().max(1e-3);
            print_note(format_args!("{} items/s", count(rate as u64)));
        }
        let after = Reading::take(&target, &driver).await;
        let exchange = driver.load().with(|record| record.exchange.summary());
        target.check_alive()?;
        driver.stop().await?;
        print_note(format_args!("checking conservation and digests"));
        let settled = final_check::check(target.admin(), driver.load()).await?;
        anyhow::ensure!(
            settled.granted_twice == 0,
            "{} rows were granted while held",
            settled.granted_twice
        );
        anyhow::ensure!(settled.refused == 0, "{} rows were refused", settled.refused);
        output::emit_next(
            globals.format,
            &figures(&self, &driver, &before, &after, exchange, disk, settled),
        )?;
        final_check::cancel_runs(driver.feed().session(), driver.load()).await?;
        target.close().await
    }
}

/// The disk's own speed on the file system of the members.
pub(super) fn yardstick(target: &Target) -> anyhow::Result<DiskRate> {
    let dir = target.layout().root();
    if disk::is_memory(dir) {
        let dir = dir.display();
        to_stderr(&format!("{dir} is in memory, where an fsync costs nothing: use --work-dir\n"));
    }
    let rate = disk::measure(dir, DISK_TIME)?;
    print_note(format_args!(
        "the disk alone: {} fsyncs/s, p50 {} us",
        rate.fsyncs_per_second as u64, rate.p50_us
    ));
    Ok(rate)
}

fn figures(
    args: &LedgerArgs,
    driver: &Driver,
    before: &Reading,
    after: &Reading,
    exchange: CallTimes,
    disk: DiskRate,
    settled: Settled,
) -> LedgerFigures {
    let seconds = after.at.duration_since(before.at).as_secs_f64();
    let items = after.done - before.done;
    let members = measurements::differences(&before.counters, &after.counters, items, seconds);
    let own_cpu_us = (after.own_cpu_us - before.own_cpu_us) as f64;
    let log_bytes: u64 = members.iter().map(|member| member.log_bytes).sum();
    driver.load().with(|record| LedgerFigures {
        items_per_run: args.load.items,
        workers: args.load.workers,
        slots: args.load.slots,
        batch: args.batch,
        with_blobs: args.load.with_blobs,
        measured_seconds: seconds,
        items,
        items_per_second: (items as f64 / seconds).round(),
        exchange,
        register: record.register.summary(),
        create_run: record.create_run.summary(),
        add_segments: record.add_segments.summary(),
        close_input: record.close_input.summary(),
        members_cpu_us_per_item: members.iter().map(|member| member.cpu_us_per_item).sum(),
        generator_cpu_us_per_item: own_cpu_us / items.max(1) as f64,
        log_bytes_per_item: tenth(log_bytes as f64 / items.max(1) as f64),
        members,
        disk_fsyncs_per_second: disk.fsyncs_per_second.round(),
        disk_fsync_p50_us: disk.p50_us,
        disk_fsync_p99_us: disk.p99_us,
        settled,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_matches_the_golden_file() {
        let times = CallTimes { calls: 100, p50_us: 900, p99_us: 1_800, max_us: 2_500 };
        let report = LedgerFigures {
            items_per_run: 20_000,
            workers: 2,
            slots: 1,
            batch: 64,
            with_blobs: false,
            measured_seconds: 1.0,
            items: 20_000,
            items_per_second: 20_000.0,
            exchange: times.clone(),
            register: times.clone(),
            create_run: times.clone(),
            add_segments: times.clone(),
            close_input: times,
            members_cpu_us_per_item: 4.5,
            generator_cpu_us_per_item: 2.5,
            log_bytes_per_item: 12.5,
            members: vec![measurements::sample()],
            disk_fsyncs_per_second: 1_000.0,
            disk_fsync_p50_us: 900,
            disk_fsync_p99_us: 1_500,
            settled: final_check::sample(),
        };
        crate::golden::report("bench-ledger.txt", &report);
    }
}
