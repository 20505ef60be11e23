//! Owns: looking up the libc functions that the hooks replace.
//!
//! Invariant: each function is looked up once. If libc lacks the function, the process aborts: going on would mean a
//! call that does nothing.
//! Absent: anything else.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function of libc, looked up at its first call.
pub(crate) struct Real {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Real {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self { name, found: AtomicPtr::new(std::ptr::null_mut()) }
    }

    pub(crate) fn address(&self) -> *mut c_void {
        let found = self.found.load(Ordering::Acquire);
        if !found.is_null() {
            return found;
        }
        // SAFETY: the name is a valid C string.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        if found.is_null() {
            // SAFETY: ends the process.
            unsafe { libc::abort() };
        }
        self.found.store(found, Ordering::Release);
        found
    }
}

/// Calls libc's own version of a function: `real!("fsync", fn(c_int) -> c_int, fd)`.
macro_rules! real {
    ($name:literal, fn($($kind:ty),*) -> $result:ty, $($argument:expr),*) => {{
        const NAME: &std::ffi::CStr =
            match std::ffi::CStr::from_bytes_with_nul(concat!($name, "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("a name contains a zero byte"),
            };
        static REAL: crate::real::Real = crate::real::Real::new(NAME);
        // SAFETY: the address is that of the function with this name in libc, which has this signature; the
        // arguments are those that the hook was given.
        unsafe {
            let function: unsafe extern "C" fn($($kind),*) -> $result =
                std::mem::transmute(REAL.address());
            function($($argument),*)
        }
    }};
}

pub(crate) use real;
