//! A library for `LD_PRELOAD` that watches what a process makes durable.
//!
//! Where the environment names a journal (see `rollout_powerloss`), calls that write, create, rename, remove and
//! sync below the journal's root are recorded there; the journal outlives SIGKILL. Without one, or in a second
//! process that inherits the variable, every call goes straight through.
//!
//! Invariant: the process behaves as without the library, apart from time. A journal entry precedes the call that
//! takes something away and follows the call that makes something durable.
//! Absent: faults. They belong between a hook and the real call; each hook is one function for that.

mod files;
mod names;
mod real;
mod track;

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

/// Runs when the library is loaded, before `main`.
extern "C" fn start() {
    track::start();
}
