//! Columns of text, as wide as their widest cell.
//!
//! Invariant: two spaces between columns, nothing after the last cell of a line. Absent: borders,
//! wrapping and truncation, which make a table hard to cut and grep.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

/// Set before anything is printed, by the command line alone.
static WITHOUT_TITLES: AtomicBool = AtomicBool::new(false);

/// From now on tables are printed without their titles.
pub fn leave_out_titles() {
    WITHOUT_TITLES.store(true, Ordering::Relaxed);
}

/// The alignment of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Text.
    Left,
    /// Numbers.
    Right,
}

/// A table under construction. Its `Display` is the text, one line feed after each line.
#[derive(Debug)]
pub struct Table {
    rows: Vec<Vec<String>>,
    aligns: Vec<Align>,
}

impl Table {
    /// A table with these column titles, all aligned to the left.
    pub fn new(titles: &[&str]) -> Self {
        let aligns = vec![Align::Left; titles.len()];
        Self { rows: vec![titles.iter().map(ToString::to_string).collect()], aligns }
    }

    /// Aligns one column, counted from 0. A column that does not exist is ignored.
    #[must_use]
    pub fn align(mut self, column: usize, align: Align) -> Self {
        if let Some(slot) = self.aligns.get_mut(column) {
            *slot = align;
        }
        self
    }

    /// Appends columns, all aligned to the left. Call it before the first line.
    #[must_use]
    pub fn and(mut self, titles: &[&str]) -> Self {
        self.rows[0].extend(titles.iter().map(ToString::to_string));
        self.aligns.resize(self.rows[0].len(), Align::Left);
        self
    }

    /// Adds one line. Missing cells are empty, cells beyond the last column are dropped.
    pub fn row<I: IntoIterator<Item = String>>(&mut self, cells: I) {
        let mut row: Vec<String> = cells.into_iter().map(single_line).collect();
        row.resize(self.aligns.len(), String::new());
        self.rows.push(row);
    }

    /// The number of lines below its titles.
    pub fn len(&self) -> usize {
        self.rows.len() - 1
    }

    /// Whether it has no line below its titles.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn widths(&self) -> Vec<usize> {
        (0..self.aligns.len())
            .map(|column| {
                self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)
            })
            .collect()
    }
}

/// A foreign name or message must not break the lines or control the terminal.
fn single_line(cell: String) -> String {
    if cell.chars().any(char::is_control) {
        cell.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
    } else {
        cell
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths = self.widths();
        let mut line = String::new();
        let skipped = usize::from(WITHOUT_TITLES.load(Ordering::Relaxed));
        for row in self.rows.iter().skip(skipped) {
            line.clear();
            for (column, cell) in row.iter().enumerate() {
                if column > 0 {
                    line.push_str("  ");
                }
                let padding = " ".repeat(widths[column] - cell.chars().count());
                match self.aligns[column] {
                    Align::Left => line.extend([cell.as_str(), &padding]),
                    Align::Right => line.extend([padding.as_str(), cell]),
                }
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(&["NAME", "ROWS"]).align(1, Align::Right);
        table.row(["w1".into(), "7".into()]);
        table.row(["worker-12".into(), "1,024".into()]);
        assert_eq!(table.to_string(), "NAME        ROWS\nw1             7\nworker-12  1,024\n");
    }

    #[test]
    fn a_cell_from_elsewhere_cannot_break_the_line() {
        let mut table = Table::new(&["REASON", "X"]);
        table.row(["two\nlines\u{1b}[31m".into()]);
        assert_eq!(table.to_string().lines().count(), 2);
        assert!(!table.to_string().contains('\u{1b}'));
    }
}
