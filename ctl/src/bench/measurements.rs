//! Figures: call times, processor time, and the members' counters.
//!
//! Invariant: a figure is a difference over the measured window and includes nothing before or after it.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use rollout_proto::{Client, services, v1};
use serde::Serialize;

use crate::output::u64_string;

/// The spread of a call's time.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::bench) struct CallTimes {
    pub(in crate::bench) calls: u64,
    pub(in crate::bench) p50_us: u64,
    pub(in crate::bench) p99_us: u64,
    pub(in crate::bench) max_us: u64,
}

/// Times of one kind of call.
#[derive(Debug, Clone)]
pub(in crate::bench) struct Times(Histogram<u64>);

impl Times {
    pub(in crate::bench) fn new() -> Self {
        // invariant: the library accepts three digits from 1 us to a minute.
        Self(Histogram::new_with_bounds(1, 60_000_000, 3).expect("valid bounds"))
    }

    pub(in crate::bench) fn record_us(&mut self, time_us: u64) {
        self.0.saturating_record(time_us.max(1));
    }

    pub(in crate::bench) fn clear(&mut self) {
        self.0.reset();
    }

    /// Every recorded time with how often it was recorded, for another process.
    pub(in crate::bench) fn counts(&self) -> Vec<(u64, u64)> {
        self.0
            .iter_recorded()
            .map(|each| (each.value_iterated_to(), each.count_at_value()))
            .collect()
    }

    /// Adds what [`Times::counts`] gave in another process.
    pub(in crate::bench) fn add(&mut self, counts: &[(u64, u64)]) {
        for &(time_us, count) in counts {
            self.0.saturating_record_n(time_us.max(1), count);
        }
    }

    /// The time within which that share of the calls ended.
    pub(in crate::bench) fn quantile_us(&self, share: f64) -> u64 {
        self.0.value_at_quantile(share)
    }

    pub(in crate::bench) fn summary(&self) -> CallTimes {
        CallTimes {
            calls: self.0.len(),
            p50_us: self.0.value_at_quantile(0.5),
            p99_us: self.0.value_at_quantile(0.99),
            max_us: self.0.max(),
        }
    }
}

/// Processor time of this process so far, user and system.
pub(in crate::bench) fn own_cpu_us() -> u64 {
    // SAFETY: rusage is plain data for which zeroes are a valid value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` outlives the call. It fails only for an unknown `who`.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    let us = |time: libc::timeval| time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64;
    us(usage.ru_utime) + us(usage.ru_stime)
}

/// Resident memory of this process in bytes, 0 if the system does not report it.
pub(in crate::bench) fn own_resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0) * 4096
}

/// Every member's counters since its start, by name.
pub(in crate::bench) async fn counters(client: &Client) -> BTreeMap<String, v1::CountersResponse> {
    let answers = client
        .each_member(|_, channel| async move {
            services::cluster(channel).counters(v1::CountersRequest {}).await
        })
        .await;
    answers
        .into_iter()
        .filter_map(|(_, answer)| answer.ok())
        .map(|answer| (answer.member.clone(), answer))
        .collect()
}

/// What one member did in the window.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::bench) struct MemberFigures {
    pub(in crate::bench) member: String,
    pub(in crate::bench) cpu_us_per_item: f64,
    pub(in crate::bench) fsyncs_per_second: f64,
    pub(in crate::bench) fsync_p50_us: u64,
    pub(in crate::bench) fsync_p99_us: u64,
    pub(in crate::bench) log_entries_per_second: f64,
    #[serde(serialize_with = "u64_string")]
    pub(in crate::bench) log_bytes: u64,
    #[serde(serialize_with = "u64_string")]
    pub(in crate::bench) image_bytes_written: u64,
    #[serde(serialize_with = "u64_string")]
    pub(in crate::bench) resident_bytes: u64,
}

/// The differences between two readings, for the members that are in both.
pub(in crate::bench) fn differences(
    before: &BTreeMap<String, v1::CountersResponse>,
    after: &BTreeMap<String, v1::CountersResponse>,
    items: u64,
    seconds: f64,
) -> Vec<MemberFigures> {
    let member = |(name, new): (&String, &v1::CountersResponse)| {
        let old = before.get(name)?;
        let per_second = |new: u64, old: u64| new.saturating_sub(old) as f64 / seconds;
        Some(MemberFigures {
            member: name.clone(),
            cpu_us_per_item: new.cpu_us.saturating_sub(old.cpu_us) as f64 / items.max(1) as f64,
            fsyncs_per_second: per_second(new.fsyncs, old.fsyncs),
            fsync_p50_us: new.fsync_us_p50,
            fsync_p99_us: new.fsync_us_p99,
            log_entries_per_second: per_second(new.log_entries, old.log_entries),
            log_bytes: new.log_bytes.saturating_sub(old.log_bytes),
            image_bytes_written: new.image_bytes_written.saturating_sub(old.image_bytes_written),
            resident_bytes: new.resident_bytes,
        })
    };
    after.iter().filter_map(member).collect()
}

/// Rounds to one decimal, the precision of a figure.
pub(in crate::bench) fn tenth(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

#[cfg(test)]
pub(in crate::bench) fn sample() -> MemberFigures {
    MemberFigures {
        member: "c1".into(),
        cpu_us_per_item: 1.5,
        fsyncs_per_second: 900.0,
        fsync_p50_us: 900,
        fsync_p99_us: 1_800,
        log_entries_per_second: 1_200.0,
        log_bytes: 5 << 20,
        image_bytes_written: 1 << 20,
        resident_bytes: 300 << 20,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_differences_over_the_window() {
        let reading = |cpu_us, fsyncs| {
            let counters = v1::CountersResponse {
                member: "c1".into(),
                cpu_us,
                fsyncs,
                ..v1::CountersResponse::default()
            };
            BTreeMap::from([("c1".to_owned(), counters)])
        };
        let figures = differences(&reading(1_000, 50), &reading(5_000, 150), 400, 10.0);
        assert_eq!(figures.len(), 1);
        assert!((figures[0].cpu_us_per_item - 10.0).abs() < 1e-9);
        assert!((figures[0].fsyncs_per_second - 10.0).abs() < 1e-9);
    }
}
