//! Owns: the hooks on wall clocks, so that a test can set one process's clock.
//!
//! Where the environment variable [`VARIABLE`] names a file, its first eight bytes are an offset in nanoseconds
//! (i64, little endian) that is added to the wall clock from the moment they are written; they may change at any
//! time. Child processes inherit both. Monotonic clocks, and whatever the kernel stamps by itself, stay as they are.
//!
//! Invariant: without the variable nothing changes; with it, a file that cannot be used ends the process, because
//! a test whose clock never moves proves nothing.
//! Absent: waits on a condition with an absolute wall time that began before a jump: they end when they would have.

use std::ffi::{CStr, c_int, c_long};
use std::sync::atomic::{AtomicI64, AtomicPtr, Ordering};

use libc::{clockid_t, pthread_cond_t, pthread_mutex_t, time_t, timespec, timeval};

use crate::real::real;

const VARIABLE: &CStr = c"ROLLOUT_PRELOAD_CLOCK";
const NANOS: i64 = 1_000_000_000;
/// Absolute times above this, in seconds, are of the wall clock: no host is up for thirty years.
const MONOTONIC_S_MAX: time_t = 1_000_000_000;

/// The mapped offset; null: none.
static OFFSET: AtomicPtr<AtomicI64> = AtomicPtr::new(std::ptr::null_mut());

/// Maps the file that the environment names.
pub(crate) fn start() {
    // SAFETY: the names are valid C strings, and nothing else runs yet that could change the environment. The
    // mapping is never removed, and the kernel keeps it readable while the file has its eight bytes.
    unsafe {
        let path = libc::getenv(VARIABLE.as_ptr());
        if path.is_null() {
            return;
        }
        let fd = libc::open(path, libc::O_RDONLY | libc::O_CLOEXEC);
        let mut found: libc::stat = std::mem::zeroed();
        if fd < 0 || libc::fstat(fd, &raw mut found) != 0 || found.st_size < 8 {
            libc::abort();
        }
        let null = std::ptr::null_mut();
        let mapped = libc::mmap(null, 8, libc::PROT_READ, libc::MAP_SHARED, fd, 0);
        if mapped == libc::MAP_FAILED {
            libc::abort();
        }
        libc::close(fd);
        OFFSET.store(mapped.cast(), Ordering::Release);
    }
}

fn offset() -> i64 {
    // SAFETY: where it is not null, it is a page of its own, mapped for the process's whole life.
    unsafe { OFFSET.load(Ordering::Acquire).as_ref() }
        .map_or(0, |offset| i64::from_le(offset.load(Ordering::Relaxed)))
}

fn shifted(at: timespec, nanos: i64) -> timespec {
    let sum =
        i128::from(at.tv_sec) * i128::from(NANOS) + i128::from(at.tv_nsec) + i128::from(nanos);
    let (tv_sec, tv_nsec) = (sum.div_euclid(i128::from(NANOS)), sum.rem_euclid(i128::from(NANOS)));
    timespec { tv_sec: tv_sec as time_t, tv_nsec: tv_nsec as c_long }
}

/// By the system call: memory allocators ask for the time before a function can be looked up.
fn clock(id: clockid_t, at: *mut timespec) -> c_int {
    // SAFETY: the arguments are those of the hook's caller.
    unsafe { libc::syscall(libc::SYS_clock_gettime, id, at) as c_int }
}

fn wall() -> timespec {
    let mut at = timespec { tv_sec: 0, tv_nsec: 0 };
    clock(libc::CLOCK_REALTIME, &raw mut at);
    shifted(at, offset())
}

#[unsafe(no_mangle)]
extern "C" fn clock_gettime(id: clockid_t, at: *mut timespec) -> c_int {
    let result = clock(id, at);
    let of_wall = matches!(id, libc::CLOCK_REALTIME | libc::CLOCK_REALTIME_COARSE);
    if result == 0 && of_wall {
        // SAFETY: the call has just written to it.
        unsafe { *at = shifted(*at, offset()) };
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

/// A deadline of the shifted clock, as the kernel's clock has it.
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
