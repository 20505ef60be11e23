//! `rollout-fuzz TARGET SECONDS [NUMBER]`: mutates the seeds of one target, prints how many inputs it took, and keeps the input
//! that it failed with in `corpus/TARGET` of this crate, where `cargo test` replays it.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rollout_fuzz::TARGETS;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| args.get(at).and_then(|text| text.parse::<u64>().ok());
    let named = args.first().and_then(|name| TARGETS.iter().find(|target| target.name == name));
    let (Some(target), Some(seconds)) = (named, number(1)) else {
        let names: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
        eprintln!(
            "usage: rollout-fuzz TARGET SECONDS [NUMBER], where TARGET is one of {}",
            names.join(", ")
        );
        return ExitCode::from(2);
    };
    let begun = Instant::now();
    let within = Duration::from_secs(seconds);
    let found = target.mutate(number(2).unwrap_or(1), |_| begun.elapsed() < within);
    let name = target.name;
    println!("{name}: {} inputs in {} s", found.executions, begun.elapsed().as_secs());
    let Some(input) = found.failed else { return ExitCode::SUCCESS };
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
    let file = kept.join(format!("failed-{}", found.executions));
    match std::fs::create_dir_all(&kept).and_then(|()| std::fs::write(&file, input)) {
        Ok(()) => eprintln!("{name} failed with the input in {}", file.display()),
        Err(error) => eprintln!(
            "{name} failed with an input that cannot be written to {}: {error}",
            file.display()
        ),
    }
    ExitCode::FAILURE
}
