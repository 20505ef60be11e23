//! A terminal taken whole for a while.
//!
//! Invariant: whatever ends the program in order, the terminal is as it was. Deliberately absent: colours.

use crate::output::write_stdout;

/// Rows and columns where the terminal does not say.
const SIZE_USUAL: (usize, usize) = (40, 160);

/// The other screen of the terminal, until it is dropped.
pub(super) struct Screen(());

impl Screen {
    /// Switches to it.
    ///
    /// # Errors
    /// When the terminal cannot be written.
    pub(super) fn open() -> anyhow::Result<Self> {
        write_stdout("\x1b[?1049h\x1b[?25l")?;
        Ok(Self(()))
    }

    /// The bytes that show a text from the top, cut to the terminal's size: each line replaces what was there.
    pub(super) fn frame(&self, text: &str) -> String {
        fit(text, size())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Nobody is left to be told.
        let _ = write_stdout("\x1b[?25h\x1b[?1049l");
    }
}

fn fit(text: &str, (rows, columns): (usize, usize)) -> String {
    let mut frame = String::from("\x1b[H");
    for line in text.lines().take(rows.saturating_sub(1)) {
        frame.extend(line.chars().take(columns));
        frame.push_str("\x1b[K\r\n");
    }
    frame.push_str("\x1b[J");
    frame
}

fn size() -> (usize, usize) {
    // SAFETY: winsize is plain data for which zeroes are a valid value.
    let mut size: libc::winsize = unsafe { std::mem::zeroed() };
    // SAFETY: `size` outlives the call, which writes one winsize to it.
    let told = unsafe { libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &raw mut size) };
    match (told, size.ws_row, size.ws_col) {
        (0, rows, columns) if rows > 0 && columns > 0 => (rows.into(), columns.into()),
        _ => SIZE_USUAL,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_no_larger_than_the_terminal() {
        assert_eq!(fit("abcdef\nxy\nz\n", (3, 4)), "\x1b[Habcd\x1b[K\r\nxy\x1b[K\r\n\x1b[J");
    }
}
