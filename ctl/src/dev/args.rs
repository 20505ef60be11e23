//! The flags of `rollout dev`.
//!
//! Invariant: what shapes the cluster (members, ports) is fixed by the first start in a directory;
//! what shapes the work (workers, slots, engine) may change at every start.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

/// A local cluster in one command: members, workers, a development CA, data that survives a restart.
#[derive(Args, Debug, Clone)]
#[command(args_conflicts_with_subcommands = false)]
pub struct DevArgs {
    /// Directory for data, certificates, logs and contexts
    #[arg(long, value_name = "DIR", default_value = "./.rollout/dev", global = true)]
    pub dir: PathBuf,
    /// Members of the cluster; fixed by the first start
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=9))]
    pub members: u16,
    /// Workers
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(0..=64))]
    pub workers: u16,
    /// Slots of each worker
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub slots: u16,
    /// Engine that runs the rows
    #[arg(long, value_enum, default_value_t = EngineKind::Mock)]
    pub engine: EngineKind,
    /// Base URL of the OpenAI-compatible server, for the engine `openai`
    #[arg(long, value_name = "URL", required_if_eq("engine", "openai"))]
    pub openai_url: Option<String>,
    /// Model that the engine serves; `*` takes rows of any model
    #[arg(long, value_name = "MODEL", default_value = "*")]
    pub model: String,
    /// Time that the mock engine takes for a row
    #[arg(long, value_name = "MIN:MAX", default_value = "5:50")]
    pub latency_ms: LatencyRange,
    /// Rows that run in one slot at a time
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub concurrency: u16,
    /// Distribution of the mock engine's latencies
    #[arg(long, value_name = "SHAPE", value_enum, default_value_t = MockTail::Uniform)]
    pub mock_tail: MockTail,
    /// Seed of the mock engine's latencies
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub mock_seed: u64,
    /// File to which the mock engines append a line when an execution starts and finishes
    #[arg(long, value_name = "FILE")]
    pub mock_side_file: Option<PathBuf>,
    /// First of the ports to use, four per member; 0 selects free ports
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    pub base_port: u16,
    /// Do not restart a member or worker that died
    #[arg(long)]
    pub no_restart: bool,
    /// Start in the background and return when the cluster is ready
    #[arg(long)]
    pub detach: bool,
    /// What to do instead of starting
    #[command(subcommand)]
    pub action: Option<DevAction>,
}

impl DevArgs {
    /// Only members, with defaults for everything else, as a benchmark or a test starts them.
    pub fn members_alone(dir: PathBuf, members: u16) -> Self {
        Self {
            dir,
            members,
            workers: 0,
            slots: 1,
            engine: EngineKind::Mock,
            openai_url: None,
            model: "*".into(),
            latency_ms: LatencyRange { min_ms: 0, max_ms: 0 },
            concurrency: 64,
            mock_tail: MockTail::Uniform,
            mock_seed: 0,
            mock_side_file: None,
            base_port: 0,
            no_restart: true,
            detach: false,
            action: None,
        }
    }
}

/// What can be done with a cluster that `rollout dev` runs in a directory.
#[derive(Subcommand, Debug, Clone, PartialEq, Eq)]
pub enum DevAction {
    /// Stop the local cluster
    Stop,
    /// Show the processes of the cluster in the directory
    Status,
    /// List the local clusters of this machine and whether they run
    List,
    /// Kill a process with SIGKILL; it starts again unless `rollout dev` was given --no-restart
    Kill(KillArgs),
    /// Print the end of the local cluster's logs
    Logs(LogsArgs),
}

/// Which process to kill.
#[derive(Args, Debug, Clone, PartialEq, Eq)]
pub struct KillArgs {
    /// A member, a worker, or `leader` for the member that leads
    #[arg(value_name = "PROCESS")]
    pub process: String,
}

/// Which logs, and how much of them.
#[derive(Args, Debug, Clone, PartialEq, Eq)]
pub struct LogsArgs {
    /// A member, a worker, or `dev` for the command that supervises them [default: all]
    #[arg(value_name = "PROCESS")]
    pub process: Option<String>,
    /// Print appended lines until Ctrl-C
    #[arg(short, long)]
    pub follow: bool,
    /// Number of lines of each log to print first
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub lines: usize,
}

/// The engines that a development worker can have.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineKind {
    /// Answers `MOCK:` and the prompt, after a seeded delay
    Mock,
    /// Any OpenAI-compatible HTTP server
    Openai,
}

/// How the mock engine's latencies are spread.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum MockTail {
    /// Uniform between the minimum and the maximum
    Uniform,
    /// Most near the minimum, a few near the maximum
    Pareto,
}

/// The shortest and the longest time of a row, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LatencyRange {
    /// The shortest.
    pub min_ms: u64,
    /// The longest, not below the shortest.
    pub max_ms: u64,
}

impl std::str::FromStr for LatencyRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = |part: &str| {
            part.trim()
                .parse::<u64>()
                .map_err(|_| format!("`{part}` is not a number of milliseconds"))
        };
        let (min_ms, max_ms) = match text.split_once(':') {
            Some((min, max)) => (number(min)?, number(max)?),
            None => (number(text)?, number(text)?),
        };
        if min_ms > max_ms {
            return Err(format!("the least, {min_ms}, is above the most, {max_ms}"));
        }
        Ok(Self { min_ms, max_ms })
    }
}

impl std::fmt::Display for LatencyRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.min_ms, self.max_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_range_is_two_ordered_numbers_or_one() {
        let range = |text: &str| text.parse::<LatencyRange>();
        assert_eq!(range("5:50"), Ok(LatencyRange { min_ms: 5, max_ms: 50 }));
        assert_eq!(range("7"), Ok(LatencyRange { min_ms: 7, max_ms: 7 }));
        assert!(range("50:5").is_err());
        assert!(range("a:5").is_err());
        assert!(range("").is_err());
    }
}
