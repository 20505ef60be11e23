//! Compares the cost of a set and a get of the shared store with TCPStore's, with three members on this machine.
//! `make bench-torch` runs this in a release build. `SECONDS` (5) is the duration of each measurement. Figures are
//! JSON lines.

use anyhow::Result;
use rollout_tests::torch::{Running, gateway};
use rollout_tests::{Fleet, FleetOptions};

fn main() -> Result<()> {
    let fleet = Fleet::start(FleetOptions::default())?;
    let (_gateway, addr) = gateway(&fleet, "gateway")?;
    let context = fleet.path("user.toml").display().to_string();
    let seconds = std::env::var("SECONDS").unwrap_or_else(|_| "5".to_owned());
    let mut bench =
        Running::script(&fleet, "bench", "bench_store.py", &[&context, &addr, &seconds])?;
    bench.finish()?;
    bench.lines("{").iter().for_each(|line| println!("{line}"));
    fleet.passed()
}
