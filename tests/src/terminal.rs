//! Runs a program in a terminal, for output that only a terminal gets.

use crate::process::Process;
use anyhow::{Result, ensure};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::Path;
use std::process::Command;

/// Rows and columns: more than a small fleet fills.
const SIZE: (u16, u16) = (60, 200);

/// A program, and all of its output so far, which is in a log too.
pub struct Terminal {
    pub process: Process,
    /// The input side of the terminal.
    keys: File,
}

impl Terminal {
    /// Starts a program in a terminal of its own.
    ///
    /// # Errors
    /// When no terminal is available, or the program cannot be started.
    pub fn start(command: Command, log: &Path) -> Result<Self> {
        let (mut ours, theirs) = open()?;
        let (mut out, keys) = (File::create(log)?, ours.try_clone()?);
        let process = Process::start_in(command, theirs, log)?;
        // Reads until the program closes its side, which the system reports as an error.
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(read @ 1..) = ours.read(&mut bytes) {
                if out.write_all(&bytes[..read]).is_err() {
                    return;
                }
            }
        });
        Ok(Self { process, keys })
    }

    /// All output, including cursor movements.
    pub fn shown(&self) -> String {
        let bytes = std::fs::read(&self.process.log).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The current contents of the screen.
    pub fn screen(&self) -> String {
        let mut terminal = vt100::Parser::new(SIZE.0, SIZE.1, 0);
        terminal.process(&std::fs::read(&self.process.log).unwrap_or_default());
        terminal.screen().contents()
    }

    /// Presses keys.
    ///
    /// # Errors
    /// When the terminal is gone.
    pub fn press(&mut self, keys: &str) -> Result<()> {
        self.keys.write_all(keys.as_bytes())?;
        Ok(())
    }
}

/// Our side and the program's.
fn open() -> Result<(File, OwnedFd)> {
    let size = libc::winsize { ws_row: SIZE.0, ws_col: SIZE.1, ws_xpixel: 0, ws_ypixel: 0 };
    let (mut ours, mut theirs) = (-1, -1);
    // SAFETY: the pointers are valid for the call; no name and no modes are requested.
    let opened = unsafe {
        libc::openpty(
            &raw mut ours,
            &raw mut theirs,
            std::ptr::null_mut(),
            std::ptr::null(),
            &raw const size,
        )
    };
    ensure!(opened == 0, "no terminal: {}", std::io::Error::last_os_error());
    // SAFETY: both were just opened, and nothing else owns them.
    let pair = unsafe { (File::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs)) };
    // SAFETY: fcntl reads no memory. Programs started later must not inherit our side.
    let kept = unsafe { libc::fcntl(ours, libc::F_SETFD, libc::FD_CLOEXEC) };
    ensure!(kept == 0, "a terminal: {}", std::io::Error::last_os_error());
    Ok(pair)
}
