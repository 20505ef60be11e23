//! Owns: the benchmarks of `docs/figures.md`.
//!
//! Invariant: stdout has the JSON lines of the benchmarks and nothing else. Programs are those of a release.
//! Absent: comparing figures.

use crate::release;
use crate::run::plain;
use crate::workspace::Workspace;
use anyhow::Result;

/// The arguments of `rolloutctl -o jsonl bench`.
const BENCHMARKS: &[&str] = &[
    "apply",
    "apply --lose 10000",
    "apply --image 2000",
    "ledger --workers 8 --batch 256",
    "ledger --workers 8 --batch 32",
    "ledger --workers 64 --batch 1",
    "ledger --workers 8 --batch 256 --items 10000000",
    "submit --rows 4000000 --row-bytes 200",
    "failover --times 20 --batch 32",
    "handover --times 20 --batch 32",
    "handover --by transfer --times 20 --batch 32",
    "rendezvous --nodes 8,64,256",
    "rendezvous --nodes 1250 --ranks 8",
    "store",
];

/// Runs all benchmarks; returns whether all succeeded.
///
/// # Errors
/// When the programs cannot be built or started.
pub(crate) fn run(workspace: &Workspace) -> Result<bool> {
    let rolloutctl = release::build(workspace)?.join("rolloutctl");
    let mut failed = Vec::new();
    for arguments in BENCHMARKS {
        eprintln!("-- rolloutctl -o jsonl bench {arguments}");
        let mut command = workspace.command(&rolloutctl, &["-o", "jsonl", "bench"]);
        command.args(arguments.split(' '));
        let status = plain(command)?;
        if !status.success() {
            failed.push(format!("{arguments}: {status}"));
        }
    }
    for failure in &failed {
        eprintln!("FAILED: rolloutctl bench {failure}");
    }
    Ok(failed.is_empty())
}
