//! Commands on the directory of a stopped member: `rollout-coordinator snapshot restore|salvage`.
//!
//! *Invariant:* a refused command has changed nothing, reports the reason with an error code, and ends with that code's
//! exit status. A command that may lose acknowledged work runs only if the operator names the member.
//!
//! Absent: the network. Operators use `rolloutctl snapshot`, which runs this program, because only this
//! program contains the ledger and its stores.

use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use rollout_ledger::SUPPORTED_VERSIONS;
use rollout_proto::{ErrorCode, MEMBER_ADDRESS_SHAPE, MemberAddress, RpcError};
use rollout_raft::{
    MemberRecord, OpenError, RestoreError, RestorePlan, SalvageError, owner, restore, salvage,
};
use rollout_storage::{SnapshotFileReader, SnapshotHeader};
use serde::Serialize;
use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Bytes between two checks of the clock for a progress line.
const TELL_BYTES: u64 = 16 << 20;
/// Time between two progress lines.
const TELL_EVERY: Duration = Duration::from_secs(2);

/// `rollout-coordinator snapshot`.
#[derive(Debug, Parser)]
#[command(
    name = "rollout-coordinator snapshot",
    bin_name = "rollout-coordinator snapshot",
    version,
    about = "Create a member's data directory from a snapshot, or a snapshot from it"
)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Create the data directory of a member of a new cluster
    Restore(RestoreArgs),
    /// Write what one member has to a snapshot file, when the majority is permanently lost
    Salvage(SalvageArgs),
}

#[derive(Debug, Args)]
struct RestoreArgs {
    /// The snapshot file
    file: PathBuf,
    /// The new member's data directory: missing, or empty
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
    /// The new member's name
    #[arg(long, value_name = "NAME")]
    member: String,
    /// A member of the new cluster; name all of them [default: the members of the snapshot]
    #[arg(long = "cluster-member", value_name = MEMBER_ADDRESS_SHAPE)]
    members: Vec<MemberAddress>,
    /// Any text: the same for all members of the new cluster, and a new one for each restore
    #[arg(long, value_name = "TEXT")]
    token: String,
    /// Print the outcome as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct SalvageArgs {
    /// The file to write; it must not exist
    file: PathBuf,
    /// The data directory of a stopped member
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
    /// The name of that member: acknowledged work may be missing in the file
    #[arg(long, value_name = "NAME")]
    confirm: Option<String>,
    /// Print the outcome as JSON
    #[arg(long)]
    json: bool,
}

fn record(name: &str, peer_addr: &str, client_addr: &str, zone: &str) -> MemberRecord {
    MemberRecord {
        name: name.into(),
        peer_addr: peer_addr.into(),
        client_addr: client_addr.into(),
        zone: zone.into(),
        version_min: SUPPORTED_VERSIONS.0,
        version_max: SUPPORTED_VERSIONS.1,
        ..MemberRecord::default()
    }
}

/// The outcome. Numbers beyond 32 bits are strings.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Done {
    /// The new cluster; of a salvaged snapshot, the old one.
    cluster_id: String,
    member: String,
    /// The cluster that the snapshot is of.
    from_cluster: String,
    index: String,
    term: String,
    taken_unix_ms: String,
    salvaged: bool,
    members: Vec<String>,
    digest: String,
    /// For a salvaged snapshot: the last index that the member knew to be acknowledged.
    committed: Option<String>,
}

impl Done {
    fn new(header: &SnapshotHeader, digest: &[u8; 32]) -> Self {
        Self {
            cluster_id: header.cluster_id.clone(),
            member: header.member.clone(),
            from_cluster: header.cluster_id.clone(),
            index: header.index.to_string(),
            term: header.term.to_string(),
            taken_unix_ms: header.taken_unix_ms.to_string(),
            salvaged: header.salvaged,
            members: header.members.iter().map(|member| member.name.clone()).collect(),
            digest: digest.iter().map(|byte| format!("{byte:02x}")).collect(),
            committed: None,
        }
    }

    fn print(&self, json: bool, text: &str) {
        match serde_json::to_string(self) {
            Ok(done) if json => println!("{done}"),
            _ => println!("{text}"),
        }
    }
}

/// Runs the command in the process's arguments, the first of which is `snapshot`. `version` is what `--version` prints.
pub(crate) fn snapshot(version: &'static str) -> ExitCode {
    let matches = Cli::command().version(version).get_matches_from(std::env::args_os().skip(1));
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let done = match cli.verb {
        Verb::Restore(args) => run_restore(&args),
        Verb::Salvage(args) => run_salvage(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(OfflineRefusal { code, message }) => match code {
            Some(code) => {
                let error = RpcError::new(code, message);
                eprintln!("error: {error}\n  explain: rolloutctl errors explain {code}");
                ExitCode::from(code.exit_code())
            }
            None => {
                eprintln!("error: {message}");
                ExitCode::FAILURE
            }
        },
    }
}

struct OfflineRefusal {
    code: Option<ErrorCode>,
    message: String,
}

impl OfflineRefusal {
    fn new(code: ErrorCode, error: impl std::fmt::Display) -> Self {
        Self { code: Some(code), message: error.to_string() }
    }

    fn bare(error: impl std::fmt::Display) -> Self {
        Self { code: None, message: error.to_string() }
    }
}

impl From<RestoreError> for OfflineRefusal {
    fn from(error: RestoreError) -> Self {
        match &error {
            RestoreError::File(_) | RestoreError::Content { .. } => {
                Self::new(ErrorCode::SnapshotUnusable, error)
            }
            RestoreError::NotEmpty { .. } => Self::new(ErrorCode::DirectoryInUse, error),
            RestoreError::Plan(_) => Self::new(ErrorCode::InvalidArgument, error),
            RestoreError::Open(_) => Self::bare(error),
        }
    }
}

impl From<SalvageError> for OfflineRefusal {
    fn from(error: SalvageError) -> Self {
        match &error {
            SalvageError::Open(OpenError::Contradiction { .. }) => {
                Self::new(ErrorCode::InvalidArgument, error)
            }
            _ => Self::bare(error),
        }
    }
}

fn run_restore(args: &RestoreArgs) -> Result<(), OfflineRefusal> {
    let mut members: Vec<MemberRecord> = args
        .members
        .iter()
        .map(|m| record(&m.name, &m.peer_addr, &m.client_addr, &m.zone))
        .collect();
    if members.is_empty() {
        let file = SnapshotFileReader::open(&args.file)
            .map_err(|error| OfflineRefusal::new(ErrorCode::SnapshotUnusable, error))?;
        let listed = file.header().members.iter();
        members = listed.map(|m| record(&m.name, &m.peer_addr, &m.client_addr, &m.zone)).collect();
    }
    let plan = RestorePlan {
        data_dir: args.data_dir.clone(),
        member: args.member.clone(),
        members,
        token: args.token.clone(),
    };
    let restored = restore(&args.file, &plan, &mut progress_printer("restoring"))?;
    let mut names: Vec<String> = plan.members.iter().map(|member| member.name.clone()).collect();
    names.sort_unstable();
    let text = format!(
        "member {} of the new cluster {} is in {}\n  from      index {} of cluster {}{}\n  members   {}\n  next      \
         restore the others with the same file, members and token; start all of them",
        plan.member,
        restored.cluster_id,
        plan.data_dir.display(),
        restored.header.index,
        restored.header.cluster_id,
        if restored.header.salvaged { ", salvaged: acknowledged work may be missing" } else { "" },
        names.join(", "),
    );
    let done = Done {
        cluster_id: restored.cluster_id.to_string(),
        member: plan.member,
        members: names,
        ..Done::new(&restored.header, &restored.summary.digest)
    };
    done.print(args.json, &text);
    Ok(())
}

fn run_salvage(args: &SalvageArgs) -> Result<(), OfflineRefusal> {
    let identity = owner(&args.data_dir)?;
    if args.confirm.as_deref() != Some(identity.name.as_str()) {
        let warning = warning(&args.data_dir, &identity.name);
        return Err(OfflineRefusal::new(ErrorCode::Unconfirmed, warning));
    }
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let program = env!("CARGO_PKG_VERSION");
    let salvaged = salvage(&args.data_dir, &args.file, program, wall.as_millis() as u64)?;
    let behind = salvaged.header.index.saturating_sub(salvaged.committed);
    let text = format!(
        "{}: what member {} of cluster {} has, up to index {}\n  of these  {behind} entries were perhaps never \
         acknowledged\n  missing   writes that only the lost members had received\n  next      rolloutctl snapshot \
         restore {} --data-dir DIR --member NAME --token TEXT, for each of the new members",
        args.file.display(),
        identity.name,
        identity.cluster_id,
        salvaged.header.index,
        args.file.display(),
    );
    let done = Done {
        committed: Some(salvaged.committed.to_string()),
        ..Done::new(&salvaged.header, &salvaged.digest)
    };
    done.print(args.json, &text);
    Ok(())
}

fn warning(dir: &std::path::Path, name: &str) -> String {
    format!(
        "this is the last resort, for a cluster whose majority is permanently lost.\n  what may be lost  work that was \
         acknowledged and had reached only the other members\n  what else         if another member is alive after \
         all, there will be two clusters that both believe to own the runs;\n                    stop and wipe it \
         first\n  to continue       confirm whose directory {} is: --confirm {name}",
        dir.display()
    )
}

/// Prints progress to stderr from time to time, if that is a terminal.
fn progress_printer(what: &'static str) -> impl FnMut(u64) {
    let (mut reported_at, mut looked) = (Instant::now(), 0);
    let terminal = std::io::stderr().is_terminal();
    move |bytes| {
        if terminal && bytes - looked >= TELL_BYTES {
            looked = bytes;
            if reported_at.elapsed() >= TELL_EVERY {
                reported_at = Instant::now();
                eprintln!("{what}: {} MiB read", bytes >> 20);
            }
        }
    }
}
