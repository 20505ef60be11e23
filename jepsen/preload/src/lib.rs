//! A library for `LD_PRELOAD` that tracks what a process makes durable, and controls its wall clock and disk.
//!
//! If the environment names a journal (see `rollout_powerloss`), calls that write, create, rename, remove and sync
//! below the journal's root are recorded there; the journal outlives SIGKILL. Without a journal, or in a second
//! process that inherits the variable, every call passes straight through. The modules `clock` and `disk` handle
//! clocks and disk faults.
//!
//! Invariant: the process behaves as without the library, apart from timing, and apart from the wall clock and disk
//! faults that a test sets. A journal entry precedes the call that takes something away, and follows the call that
//! makes something durable.
//! Absent: other faults. Add them between a hook and the real call; each hook is one function.

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
