//! A terminal with a program in it, for what is shown on nothing else.

use crate::process::Process;
use anyhow::{Result, ensure};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::Path;
use std::process::Command;

/// Rows and columns: more than a small fleet fills.
const SIZE: (u16, u16) = (60, 200);

/// A program, and all that it has shown so far, which is in a log too.
pub struct Terminal {
    /// The program.
    pub process: Process,
    /// What it reads as keys.
    keys: File,
}

impl Terminal {
    /// Starts a program in a terminal of its own.
    ///
    /// # Errors
    /// When there is no terminal to be had, or the program cannot be started.
    pub fn start(command: Command, log: &Path) -> Result<Self> {
        let (mut ours, theirs) = open()?;
        let (mut out, keys) = (File::create(log)?, ours.try_clone()?);
        let process = Process::start_in(command, theirs, log)?;
        // Until the program has closed its side, which is an error of the system's.
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

    /// All that was shown, with what moves the cursor.
    pub fn shown(&self) -> String {
        let bytes = std::fs::read(&self.process.log).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// What is on the screen.
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
    // SAFETY: what is pointed to outlives the call; a name and modes are not asked for.
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
    // SAFETY: both were opened just now, and nobody else has them.
    let pair = unsafe { (File::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs)) };
    // SAFETY: fcntl reads no memory; no program that is started later is to hold our side.
    let kept = unsafe { libc::fcntl(ours, libc::F_SETFD, libc::FD_CLOEXEC) };
    ensure!(kept == 0, "a terminal: {}", std::io::Error::last_os_error());
    Ok(pair)
}
