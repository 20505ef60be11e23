//! Owns: the size of the log in bytes, and which index lies how many bytes before the end.
//!
//! Invariant: marks ascend in index and in bytes; the answer is off by one mark's spacing at most.
//! Absent: exactness. The answer decides when to take a snapshot and what to purge, never what is safe to purge.

use std::collections::VecDeque;

/// The most bytes between two marks, if few marks reach back far enough.
const SPACING_MAX_BYTES: u64 = 1 << 20;

/// The most parts into which the kept size is divided: a quarter of the marks, so that the marks reach back four
/// times as far.
const PARTS_MAX: u64 = MARKS_MAX as u64 / 4;

/// The first number of an encoded meter.
const MAGIC: u64 = u64::from_le_bytes(*b"logmeter");

/// No log has so many bytes in its life: a larger total is damaged, and counting on from it could overflow.
const TOTAL_MAX: u64 = u64::MAX / 2;

/// The number of marks; the oldest are dropped when a log grows beyond all of them.
const MARKS_MAX: usize = 4096;

/// The bytes of a log by index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogMeter {
    spacing: u64,
    /// An index and the bytes appended up to and including it, since the log began.
    marks: VecDeque<(u64, u64)>,
    total: u64,
    purged: u64,
}

impl LogMeter {
    /// The meter of an empty log that keeps `keep` bytes.
    pub(crate) fn new(keep: u64) -> Self {
        let spacing = (keep / 64).clamp(1, SPACING_MAX_BYTES.max(keep / PARTS_MAX));
        Self { spacing, marks: VecDeque::new(), total: 0, purged: 0 }
    }

    /// Counts an entry; true if a mark was set.
    pub(crate) fn appended(&mut self, index: u64, bytes: u64) -> bool {
        self.total += bytes;
        let since = self.marks.back().map_or(self.purged, |(_, at)| *at);
        let due = self.total - since >= self.spacing;
        if due {
            self.marks.push_back((index, self.total));
            if self.marks.len() > MARKS_MAX {
                self.marks.pop_front();
            }
        }
        due
    }

    /// Everything from `end` on is gone.
    pub(crate) fn truncated(&mut self, end: u64) {
        while self.marks.back().is_some_and(|(index, _)| *index >= end) {
            self.marks.pop_back();
            self.total = self.marks.back().map_or(self.purged, |(_, at)| *at);
        }
    }

    /// Everything up to and including `up_to` is gone.
    pub(crate) fn purged(&mut self, up_to: u64) {
        while let Some((index, at)) = self.marks.front().copied()
            && index <= up_to
        {
            self.purged = at;
            self.marks.pop_front();
        }
    }

    /// Bytes in the log.
    pub(crate) fn bytes(&self) -> u64 {
        self.total - self.purged
    }

    pub(crate) fn bytes_after(&self, index: u64) -> u64 {
        let before = self.marks.iter().rev().find(|(at, _)| *at <= index);
        self.total - before.map_or(self.purged, |(_, bytes)| *bytes)
    }

    /// The last index with at least `keep` bytes after it; `None` if there is none.
    pub(crate) fn index_before(&self, keep: u64) -> Option<u64> {
        let found = self.marks.iter().rev().find(|(_, bytes)| self.total - bytes >= keep);
        found.map(|(index, _)| *index)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let pairs = self.marks.iter().flat_map(|(index, bytes)| [*index, *bytes]);
        [MAGIC, self.total, self.purged]
            .into_iter()
            .chain(pairs)
            .flat_map(u64::to_le_bytes)
            .collect()
    }

    /// Decodes the output of [`encode`](Self::encode). Anything else counts as an empty log: the numbers are
    /// advisory.
    pub(crate) fn decode(keep: u64, bytes: &[u8]) -> Self {
        let empty = Self::new(keep);
        let mut numbers = bytes.chunks_exact(8).map(|chunk| {
            let mut number = [0; 8];
            number.copy_from_slice(chunk);
            u64::from_le_bytes(number)
        });
        let (Some(MAGIC), Some(total), Some(purged)) =
            (numbers.next(), numbers.next(), numbers.next())
        else {
            return empty;
        };
        let mut marks = VecDeque::new();
        while let (Some(index), Some(at)) = (numbers.next(), numbers.next()) {
            marks.push_back((index, at));
        }
        let ascending = marks.iter().zip(marks.iter().skip(1)).all(|(a, b)| a < b && a.1 <= b.1);
        let within = marks.back().is_none_or(|(_, at)| *at <= total)
            && marks.front().is_none_or(|(_, at)| purged <= *at);
        if ascending && within && purged <= total && total <= TOTAL_MAX {
            Self { marks, total, purged, ..empty }
        } else {
            empty
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_finds_the_index_that_leaves_enough_bytes_behind_it() {
        let mut meter = LogMeter::new(640);
        (1..=100).for_each(|index| assert!(meter.appended(index, 10)));
        assert_eq!(meter.bytes(), 100 * 10);
        assert_eq!(meter.index_before(10 * 10), Some(90));
        assert_eq!(meter.bytes_after(90), 10 * 10);
        meter.purged(90);
        assert_eq!(meter.bytes(), 10 * 10);
        assert_eq!(meter.index_before(10 * 10), None);
        meter.truncated(96);
        assert_eq!(meter.bytes(), 5 * 10);
        assert_eq!(LogMeter::decode(640, &meter.encode()), meter);
        assert_eq!(LogMeter::decode(640, b"no meter, but long enough to be"), LogMeter::new(640));
    }

    #[test]
    fn a_total_from_which_counting_on_would_overflow_counts_as_an_empty_log() {
        let encoded = |total: u64| -> Vec<u8> {
            [MAGIC, total, 0].into_iter().flat_map(u64::to_le_bytes).collect()
        };
        let mut meter = LogMeter::decode(640, &encoded(u64::MAX));
        assert_eq!(meter, LogMeter::new(640));
        meter.appended(1, 10);
        assert_eq!(meter.bytes(), 10);
        assert_eq!(LogMeter::decode(640, &encoded(TOTAL_MAX)).bytes(), TOTAL_MAX);
    }

    #[test]
    fn a_mark_precedes_the_kept_bytes_whatever_their_number() {
        const MIB: u64 = 1 << 20;
        for keep_mib in [1, 64, 1 << 10, 4 << 10, 8 << 10, 1 << 20] {
            let keep = keep_mib * MIB;
            let mut meter = LogMeter::new(keep);
            // Half as much again as is kept: a snapshot is taken by then, and the log purged.
            let entries = keep_mib * 3 / 2 + 1;
            for index in 1..=entries {
                meter.appended(index, MIB);
            }
            let before = meter.index_before(keep).expect("a mark");
            assert!(before <= entries - keep_mib, "{keep_mib} MiB: {before} of {entries}");
            // The error is the spacing of marks: at most this share of the kept size, plus an entry.
            let most = entries - keep_mib - keep_mib / 64 - 1;
            assert!(before >= most, "{keep_mib} MiB: {before} of {entries}");
        }
    }
}
