//! The terminal in full-screen mode: alternate screen, raw keys, no cursor.
//!
//! Invariant: however the program ends, be it normally, by an error, a panic or a handled signal, the terminal is
//! restored. Absent: what is drawn.

use std::io::{Stdout, stdout};
use std::sync::Once;

use ratatui::Frame;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::event::{self, Event, KeyEvent, KeyEventKind};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use tokio::sync::mpsc;

/// Keys that wait to be read. If a user holds a key down, further keys are dropped.
const KEYS_MAX: usize = 64;

/// The terminal's alternate screen, until it is dropped.
pub(super) struct Screen {
    terminal: ratatui::Terminal<CrosstermBackend<Stdout>>,
}

impl Screen {
    /// Switches to it.
    ///
    /// # Errors
    /// The terminal cannot be written, or does not support raw mode.
    pub(super) fn open() -> std::io::Result<Self> {
        restore_at_panic();
        enable_raw_mode()?;
        let opened = execute!(stdout(), EnterAlternateScreen)
            .and_then(|()| ratatui::Terminal::new(CrosstermBackend::new(stdout())));
        match opened {
            Ok(terminal) => Ok(Self { terminal }),
            Err(error) => {
                restore();
                Err(error)
            }
        }
    }

    /// Shows a frame; unchanged cells are not written again.
    ///
    /// # Errors
    /// The terminal cannot be written.
    pub(super) fn draw(&mut self, frame: impl FnOnce(&mut Frame<'_>)) -> std::io::Result<()> {
        self.terminal.draw(frame).map(drop)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // If this fails, there is no terminal left to report to.
        let _ = self.terminal.show_cursor();
        restore();
    }
}

fn restore() {
    let _ = execute!(stdout(), LeaveAlternateScreen);
    let _ = disable_raw_mode();
}

/// Prints a panic's message on the screen that the user sees afterward.
fn restore_at_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let _ = execute!(stdout(), ratatui::crossterm::cursor::Show);
            restore();
            before(panic);
        }));
    });
}

/// An event of the terminal.
pub(super) enum TerminalEvent {
    /// A key was pressed.
    Key(KeyEvent),
    /// It has another size.
    Resized,
}

/// Keys from now on; none arrive once the terminal is gone.
///
/// # Errors
/// No thread can be started.
pub(super) fn keys() -> std::io::Result<mpsc::Receiver<TerminalEvent>> {
    let (to, from) = mpsc::channel(KEYS_MAX);
    // It blocks in a system call that nothing interrupts, and ends with the process.
    std::thread::Builder::new().name("keys".into()).spawn(move || {
        while let Ok(event) = event::read() {
            let message = match event {
                Event::Key(key) if key.kind != KeyEventKind::Release => TerminalEvent::Key(key),
                Event::Resize(..) => TerminalEvent::Resized,
                _ => continue,
            };
            match to.try_send(message) {
                Ok(()) | Err(mpsc::error::TrySendError::Full(_)) => {}
                Err(mpsc::error::TrySendError::Closed(_)) => return,
            }
        }
    })?;
    Ok(from)
}
