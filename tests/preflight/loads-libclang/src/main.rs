//! Loads libclang as bindgen does, and parses the given C file: fails if a library or a header is missing.
use clang_sys::{
    clang_createIndex, clang_disposeIndex, clang_disposeTranslationUnit, clang_getNumDiagnostics,
    clang_parseTranslationUnit,
};
use std::ffi::CString;
use std::ptr::{null, null_mut};

fn main() {
    let file = std::env::args().nth(1).expect("usage: loads-libclang FILE");
    let file = CString::new(file).expect("a path without NUL");
    clang_sys::load().expect("libclang is found and loads");
    // SAFETY: the library is loaded; the path outlives the calls; what they return is checked and released once.
    let diagnostics = unsafe {
        let index = clang_createIndex(0, 1);
        let unit = clang_parseTranslationUnit(index, file.as_ptr(), null(), 0, null_mut(), 0, 0);
        assert!(!unit.is_null(), "libclang does not parse {file:?}");
        let count = clang_getNumDiagnostics(unit);
        clang_disposeTranslationUnit(unit);
        clang_disposeIndex(index);
        count
    };
    assert_eq!(diagnostics, 0, "libclang complains about {file:?}");
    let library = clang_sys::get_library().expect("it is loaded");
    println!("libclang loaded: {}", library.path().display());
}
