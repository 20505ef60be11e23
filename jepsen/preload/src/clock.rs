//! Owns: the hooks on wall clocks, so that a test can set one process's clock.
//!
//! If the environment names a clock file (see `rollout_powerloss::Clock`), its offset is added to the wall clock from
//! the moment it is set; the offset may change at any time. Child processes inherit both. Monotonic clocks, and
//! timestamps that the kernel writes itself, stay as they are.
//!
//! Invariant: without the variable nothing changes; with it, an unusable file aborts the process, because a test
//! whose clock never moves proves nothing.
//! Absent: a wait with an absolute wall-clock deadline that began before a jump ends when it would have ended without
//! the jump.

use std::ffi::{CStr, CString, c_int, c_long};
use std::sync::OnceLock;

use libc::{clockid_t, pthread_cond_t, pthread_mutex_t, time_t, timespec, timeval};
use rollout_powerloss::{CLOCK_ENV, Clock};

use crate::real::real;

const NANOS: i64 = 1_000_000_000;
/// Absolute times above this, in seconds, are of the wall clock: no host is up for thirty years.
const MONOTONIC_S_MAX: time_t = 1_000_000_000;

static CLOCK: OnceLock<&'static Clock> = OnceLock::new();

/// Maps the file that the environment names.
pub(crate) fn start() {
    let Ok(name) = CString::new(CLOCK_ENV) else { return };
    // SAFETY: valid C strings; no other thread runs yet that could change the environment.
    let path = unsafe {
        let value = libc::getenv(name.as_ptr());
        if value.is_null() {
            return;
        }
        CStr::from_ptr(value)
    };
    match Clock::map(path) {
        Ok(clock) => drop(CLOCK.set(clock)),
        // SAFETY: it has no preconditions.
        Err(_) => unsafe { libc::abort() },
    }
}

fn offset() -> i64 {
    CLOCK.get().map_or(0, |clock| clock.ahead_ns())
}

/// The time that the process reads instead of the kernel's.
fn process_time(at: timespec) -> timespec {
    let Some(clock) = CLOCK.get() else { return at };
    let at = shifted(at, clock.ahead_ns());
    clock.record_read(at.tv_sec * NANOS + at.tv_nsec);
    at
}

fn shifted(at: timespec, nanos: i64) -> timespec {
    let sum =
        i128::from(at.tv_sec) * i128::from(NANOS) + i128::from(at.tv_nsec) + i128::from(nanos);
    let (tv_sec, tv_nsec) = (sum.div_euclid(i128::from(NANOS)), sum.rem_euclid(i128::from(NANOS)));
    timespec { tv_sec: tv_sec as time_t, tv_nsec: tv_nsec as c_long }
}

/// Uses the system call: memory allocators read the time before a function can be looked up.
fn clock(id: clockid_t, at: *mut timespec) -> c_int {
    // SAFETY: the arguments are those of the hook's caller.
    unsafe { libc::syscall(libc::SYS_clock_gettime, id, at) as c_int }
}

fn wall() -> timespec {
    let mut at = timespec { tv_sec: 0, tv_nsec: 0 };
    clock(libc::CLOCK_REALTIME, &raw mut at);
    process_time(at)
}

#[unsafe(no_mangle)]
extern "C" fn clock_gettime(id: clockid_t, at: *mut timespec) -> c_int {
    let result = clock(id, at);
    let of_wall = matches!(id, libc::CLOCK_REALTIME | libc::CLOCK_REALTIME_COARSE);
    if result == 0 && of_wall {
        // SAFETY: the call has just written to it.
        unsafe { *at = process_time(*at) };
    }
    result
}

#[unsafe(no_mangle)]
extern "C" fn gettimeofday(at: *mut timeval, _zone: *mut libc::c_void) -> c_int {
    let now = wall();
    if !at.is_null() {
        // SAFETY: a pointer that is not null is the caller's own place for the answer.
        unsafe { *at = timeval { tv_sec: now.tv_sec, tv_usec: now.tv_nsec / 1000 } };
    }
    0
}

#[unsafe(no_mangle)]
extern "C" fn time(at: *mut time_t) -> time_t {
    let now = wall().tv_sec;
    if !at.is_null() {
        // SAFETY: a pointer that is not null is the caller's own place for the answer.
        unsafe { *at = now };
    }
    now
}

/// Converts a deadline of the shifted clock to the kernel's clock.
#[unsafe(no_mangle)]
extern "C" fn pthread_cond_timedwait(
    condition: *mut pthread_cond_t,
    mutex: *mut pthread_mutex_t,
    until: *const timespec,
) -> c_int {
    // SAFETY: the caller's own deadline.
    let mut until = unsafe { *until };
    if until.tv_sec > MONOTONIC_S_MAX {
        until = shifted(until, -offset());
    }
    real!(
        "pthread_cond_timedwait",
        fn(*mut pthread_cond_t, *mut pthread_mutex_t, *const timespec) -> c_int,
        condition,
        mutex,
        &raw const until
    )
}
