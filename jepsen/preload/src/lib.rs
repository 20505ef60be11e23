//! A library for `LD_PRELOAD` that watches what a process makes durable, and sets its wall clock.
//!
//! Where the environment names a journal (see `rollout_powerloss`), calls that write, create, rename, remove and
//! sync below the journal's root are recorded there; the journal outlives SIGKILL. Without one, or in a second
//! process that inherits the variable, every call goes straight through. Clocks and disks
//! in trouble are matters of their own: see `clock` and `disk`.
//!
//! Invariant: the process behaves as without the library, apart from how long it takes, and from the wall clock
//! and the disk where a test sets them. A journal entry precedes the call that takes something away and follows the call that
//! makes something durable.
//! Absent: other faults. They belong between a hook and the real call; each hook is one function for that.

mod clock;
mod disk;
mod files;
mod names;
mod real;
mod track;

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

/// Runs when the library is loaded, before `main`.
extern "C" fn start() {
    clock::start();
    disk::start();
    track::start();
}
