//! Prints what a million rows and an idle cluster cost, and how long each failure interrupts the work, with three
//! members and real workers on this machine.
//!
//! `make bench-costs` runs this in a release build. Arguments: `rows`, `idle`, `recovery`; all of them by default.
//! Environment: `ROWS` and `ROW_MS`; `WORKERS` and `SECONDS`; `TIMES` and `WORKER_TIMES`. Figures are JSON lines.
//! docs/figures/costs.md describes them.

mod idle;
mod recovery;
mod rows;
mod starts;
mod worker_death;

use anyhow::{Context, Result, bail};

const PARTS: [&str; 3] = ["rows", "idle", "recovery"];

fn main() -> Result<()> {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let parts = match given.is_empty() {
        true => PARTS.map(String::from).to_vec(),
        false => given,
    };
    for part in parts {
        match part.as_str() {
            "rows" => rows::measure()?,
            "idle" => idle::measure()?,
            "recovery" => {
                recovery::measure()?;
                worker_death::measure()?;
            }
            _ => bail!("{part} is none of {PARTS:?}"),
        }
    }
    Ok(())
}

/// A number of the environment.
fn number(name: &str, default: u64) -> Result<u64> {
    match std::env::var(name) {
        Ok(text) => text.parse().with_context(|| format!("{name} is {text:?}")),
        Err(_) => Ok(default),
    }
}

/// Rounds to three decimals, the precision of a figure.
fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}
