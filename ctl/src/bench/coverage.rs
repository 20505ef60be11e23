//! Which rows of a run were granted and which are done: two bits a row, set by ranges.
//!
//! Invariant: the sets reflect the answers alone, so a row that was granted or done twice shows.
//! Absent: which slot holds a row.

/// A set of row numbers of one run.
#[derive(Debug, Clone)]
pub struct Bits {
    words: Vec<u64>,
}

impl Bits {
    /// An empty set for this many rows.
    pub fn new(rows: u64) -> Self {
        Self { words: vec![0; rows.div_ceil(64) as usize] }
    }

    /// A set as [`Bits::words`] gives it.
    pub fn from_words(words: Vec<u64>) -> Self {
        Self { words }
    }

    /// The set, 64 rows a word.
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// Whether a row is in it.
    pub fn has(&self, row: u64) -> bool {
        self.words.get((row / 64) as usize).is_some_and(|word| word >> (row % 64) & 1 == 1)
    }

    /// How many rows are in it.
    pub fn len(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// Whether no row is in it.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// Adds another set of the same run; returns how many of its rows were already in this one.
    pub fn unite(&mut self, other: &Self) -> u64 {
        let mut before = 0;
        for (own, other) in self.words.iter_mut().zip(&other.words) {
            before += u64::from((*own & other).count_ones());
            *own |= other;
        }
        before
    }

    /// Calls `f` with each word of the range and the mask of the range's bits in it.
    fn each(&mut self, start: u64, len: u32, mut f: impl FnMut(&mut u64, u64)) {
        let end = start + u64::from(len);
        let mut at = start;
        while at < end {
            let bit = at % 64;
            let count = (64 - bit).min(end - at);
            let mask = (u64::MAX >> (64 - count)) << bit;
            // The caller reports a row beyond the run; it must not panic here.
            if let Some(word) = self.words.get_mut((at / 64) as usize) {
                f(word, mask);
            }
            at += count;
        }
    }

    /// Sets a range; returns how many of its rows were already set.
    pub fn set(&mut self, start: u64, len: u32) -> u32 {
        let mut before = 0;
        self.each(start, len, |word, mask| {
            before += (*word & mask).count_ones();
            *word |= mask;
        });
        before
    }

    fn clear(&mut self, start: u64, len: u32) {
        self.each(start, len, |word, mask| *word &= !mask);
    }
}

/// The rows of one run.
#[derive(Debug)]
pub struct Coverage {
    rows: u64,
    held: Bits,
    done: Bits,
    /// Rows done, each counted once.
    pub done_rows: u64,
    /// Rows granted while another slot held them.
    pub granted_twice: u64,
    /// Rows granted or completed that were already done.
    pub done_twice: u64,
    /// Named rows that the run does not have.
    pub beyond: u64,
}

impl Coverage {
    /// A run with this many rows, none granted.
    pub fn new(rows: u64) -> Self {
        Self {
            rows,
            held: Bits::new(rows),
            done: Bits::new(rows),
            done_rows: 0,
            granted_twice: 0,
            done_twice: 0,
            beyond: 0,
        }
    }

    /// A range was granted.
    pub fn grant(&mut self, start: u64, len: u32) {
        let len = self.within(start, len);
        self.granted_twice += u64::from(self.held.set(start, len));
    }

    /// The completion of a range was accepted.
    pub fn complete(&mut self, start: u64, len: u32) {
        let len = self.within(start, len);
        let again = u64::from(self.done.set(start, len));
        self.done_twice += again;
        self.done_rows += u64::from(len) - again;
        self.held.clear(start, len);
    }

    /// A range is free again.
    pub fn release(&mut self, start: u64, len: u32) {
        let len = self.within(start, len);
        self.held.clear(start, len);
    }

    fn within(&mut self, start: u64, len: u32) -> u32 {
        let room = self.rows.saturating_sub(start).min(u64::from(len)) as u32;
        self.beyond += u64::from(len - room);
        room
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_granted_twice_or_done_twice_is_noticed() {
        let mut coverage = Coverage::new(1_000);
        coverage.grant(10, 300);
        coverage.complete(10, 300);
        assert_eq!((coverage.done_rows, coverage.granted_twice, coverage.done_twice), (300, 0, 0));
        coverage.grant(310, 10);
        coverage.grant(319, 2);
        assert_eq!(coverage.granted_twice, 1);
        coverage.complete(309, 2);
        assert_eq!((coverage.done_rows, coverage.done_twice), (301, 1));
        coverage.release(311, 9);
        coverage.grant(311, 9);
        assert_eq!(coverage.granted_twice, 1);
    }

    #[test]
    fn ranges_meet_word_borders_exactly() {
        let mut coverage = Coverage::new(256);
        for start in [0, 64, 128, 192] {
            coverage.complete(start, 64);
        }
        assert_eq!((coverage.done_rows, coverage.done_twice, coverage.beyond), (256, 0, 0));
        coverage.complete(255, 3);
        assert_eq!((coverage.done_rows, coverage.done_twice, coverage.beyond), (256, 1, 2));
    }
}
