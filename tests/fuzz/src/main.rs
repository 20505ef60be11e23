//! `rollout-fuzz`: libFuzzer with one target: `ROLLOUT_FUZZ_TARGET=NAME rollout-fuzz CORPUS [libFuzzer's options]`.
//! It first writes the target's seeds and kept inputs into CORPUS. `make fuzz` calls it.

#![no_main]

use std::path::Path;
use std::sync::LazyLock;

use rollout_fuzz::{TARGETS, Target};

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let name = std::env::var("ROLLOUT_FUZZ_TARGET").unwrap_or_default();
    Target::by_name(&name).unwrap_or_else(|| {
        let names: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
        eprintln!("set ROLLOUT_FUZZ_TARGET to one of {}", names.join(", "));
        std::process::exit(2);
    })
});

/// Writes the known inputs into the corpus, and lets panics unwind, because some decoders catch those of a library
/// that they use. A panic that reaches libFuzzer aborts the process.
fn begin() {
    std::panic::set_hook(Box::new(|info| {
        let within = info.location().map_or("", |place| place.file());
        if !within.contains("/parquet-") {
            eprintln!("{info}");
        }
    }));
    let Some(corpus) = std::env::args().nth(1) else { return };
    // The next argument is not a directory if libFuzzer runs a single input, and an empty directory if it merges
    // inputs.
    let selects = std::env::args().any(|argument| argument.contains("merge="));
    if selects || !Path::new(&corpus).is_dir() {
        return;
    }
    for (number, input) in TARGET.seeds().iter().chain(&TARGET.kept()).enumerate() {
        let file = Path::new(&corpus).join(format!("known-{number}"));
        if let Err(error) = std::fs::write(&file, input) {
            eprintln!("cannot write {}: {error}", file.display());
            std::process::exit(2);
        }
    }
}

libfuzzer_sys::fuzz_target!(init: begin(), |bytes: &[u8]| TARGET.run(bytes));
