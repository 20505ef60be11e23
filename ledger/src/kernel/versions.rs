//! The cluster versions that this build can run, and those that gave existing commands another meaning.
//!
//! *Invariant:* a constant never changes: below its version, `apply` does what earlier builds do.
//! Absent: which version introduced which kind of command (`machine/version_gate.rs`).

/// The cluster version from which on the ledger schedules by virtual time, bounds what one `Tick` ends, keeps each
/// attempt in a record of its own, lets a worker's store URL allow the URLs below it, keeps the store of a complete round
/// for its members, and has settings. Below it, `apply` and the image do what builds of version 2 do.
pub const SCHEDULING_VERSION: u32 = 3;

/// The cluster version from which on the ledger checks the namespace rule (`machine/namespace_rule.rs`), and commands may
/// have the scopes of their operations' callers.
pub const NAMESPACES_VERSION: u32 = 4;

/// The cluster version from which on the leader measures the silence of trainers in its memory, as that of participants,
/// and reports the lost ones. Below it, trainers' keep-alives are in the log, and a `Tick` loses the silent ones.
pub const SILENT_TRAINERS_VERSION: u32 = 4;

/// The cluster version from which on a job and its training are one record, with one number and one limit. Below it,
/// trainings are beside the jobs (`training/job_table.rs`).
pub const ONE_RECORD_VERSION: u32 = 4;

/// The cluster version from which on the ledger keeps a row from all slots that failed it (`batch/failed_sets.rs`), and a
/// row that a worker reports as failed because it killed the engine waits for a second slot, as after an engine death.
pub(crate) const FAILED_SETS_VERSION: u32 = 4;

/// The cluster version from which on the ledger has API keys, and the files, uploads and batches of OpenAI's API.
pub const OPENAI_API_VERSION: u32 = 5;

/// The first and the last cluster version that this build can run. Version 4 adds kinds of operations and the namespace
/// rule, takes the keep-alives of trainers out of the log, and gives the records of a training the number of its job.
/// Version 5 adds kinds of operations.
pub const SUPPORTED_VERSIONS: (u32, u32) = (1, 5);

/// From this version on each row of a completion is credited to the slot that holds it. Below it all are credited to
/// the slot that reports the part, as members with an earlier build do.
pub(crate) const ROWS_OF_SEVERAL_SLOTS: u32 = 3;
