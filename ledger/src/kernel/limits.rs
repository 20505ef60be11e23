//! Every bound of the ledger. Exceeding a bound is a [`Rejection`](crate::Rejection).

/// Rows in one segment.
pub const SEGMENT_ROWS_MAX: u32 = 4096;
/// Rows of one run: all of them fit one range of a set.
pub const RUN_ROWS_MAX: u64 = u32::MAX as u64;
/// Segments declared in one operation.
pub const SEGMENTS_PER_OP_MAX: usize = 1024;
/// Rows granted to one pull.
pub const CLAIM_ROWS_MAX: u32 = 4096;
/// Rows that one slot may hold at a time, over all its grants.
pub const SLOT_ROWS_MAX: u32 = 16_384;
/// Rows in one part of results.
pub const PART_ROWS_MAX: u64 = 4096;
/// Operations in one command. With the grants that they make they stay below
/// [`POSITIONS_PER_ENTRY`](crate::kernel::id::POSITIONS_PER_ENTRY).
pub const OPS_PER_COMMAND_MAX: usize = 4096;
/// Grants made by one command.
pub const GRANTS_PER_COMMAND_MAX: u32 = 4096;
/// Bytes of a run's, worker's or namespace's name, and of a label's key or value.
pub const NAME_BYTES_MAX: usize = 128;
/// Bytes of a client session's holder: a role, a slash and a name.
pub const HOLDER_BYTES_MAX: usize = NAME_BYTES_MAX + 16;
/// Bytes of a model name, URL or other short text.
pub const TEXT_BYTES_MAX: usize = 1024;
/// Bytes of the URL of a run's completion webhook.
pub const NOTIFY_URL_BYTES_MAX: usize = 512;
/// Bytes of the canonical JSON of sampling or options.
pub const JSON_BYTES_MAX: usize = 64 * 1024;
/// Labels of a slot, or of a selector.
pub const LABELS_MAX: usize = 64;
/// Slots of one worker.
pub const SLOTS_MAX: usize = 64;
/// Registrations at one time, from cluster version [`FLEET_VERSION`] on.
pub const WORKERS_MAX: usize = 32_768;
/// Registrations at one time, before.
pub const WORKERS_BEFORE_MAX: usize = 4096;
/// Slots of all workers together. From [`FLEET_VERSION`] on; before, [`WORKERS_BEFORE_MAX`] bounds them to as many.
pub const ALL_SLOTS_MAX: usize = 262_144;
/// The cluster version that introduced more workers and larger stores: members with an earlier build refuse what is
/// over their bounds.
pub const FLEET_VERSION: u32 = crate::kernel::versions::SCHEDULING_VERSION;
/// Namespaces that operators make.
pub const NAMESPACES_MAX: usize = 1024;
/// Runs that have not been forgotten.
pub const RUNS_MAX: usize = 10_000;
/// Client sessions whose answers are remembered. The longest-unused session of the holder with the most sessions
/// makes room.
pub const CLIENTS_MAX: usize = 10_000;
/// Answers remembered for one client, above what it has acknowledged.
pub const CLIENT_REPLIES_MAX: usize = 1024;
/// Bytes of stores' values in the answers remembered for one client: at or above this, only an acknowledgment is
/// accepted from it. It may exceed this by one answer.
pub const CLIENT_REPLIES_BYTES_MAX: u64 = 16 << 20;
/// The same for all clients together. If an answer has no room, the longest-unused session of the holder with the
/// most bytes makes room; before version 3, of all sessions that have some.
pub const REPLIES_BYTES_MAX: u64 = 256 << 20;
/// Ledger time after which an unused client session is forgotten.
pub const CLIENT_TTL_MS: u64 = 24 * 60 * 60 * 1000;
/// Bytes that a sealed run takes, its manifest apart.
pub const SEALED_BYTES_MAX: usize = 4096;
/// Attempts in a row's remembered history.
pub const HISTORY_MAX: usize = 8;
/// Rows of one run that are done and keep the history of their failures.
pub const DONE_HISTORIES_MAX: u64 = 65_536;
/// Times that a row may run out of memory alone, including the last one.
pub const OUT_OF_MEMORY_STRIKES_MAX: u32 = 3;
/// Engine deaths with a row alone after which the row is poison.
pub const ENGINE_DIED_STRIKES_MAX: u32 = 2;
/// Crashes of a process while it runs a row, before the row is a suspect and is tried apart. One further crash with
/// the row alone is a strike, like that of an engine that died.
pub const WORKER_CRASHES_MAX: u32 = 3;
/// How long other slots come before the slot whose engine died of a row, for that row.
pub const OTHER_SLOTS_FIRST_MS: u64 = 10_000;
/// The same from [`SCHEDULING_VERSION`](crate::SCHEDULING_VERSION) on: how long rows that an engine died of wait for a
/// second slot. After that the slot that had them decides.
pub const SECOND_SLOT_WAIT_MS: u64 = 600_000;
/// How long the ledger's cordon lasts for a slot that failed rows that others completed, unless the slot finishes a
/// row.
pub const FAILURE_CORDON_MS: u64 = 600_000;
/// Incidents of a slot that count, with no finished row between, after which the ledger cordons the slot, unless an
/// operator sets another number. Below [`SCHEDULING_VERSION`](crate::SCHEDULING_VERSION) deaths in trials do not count.
pub const CORDON_AFTER_DEFAULT: u32 = 3;
/// The numbers that an operator may set. Each slot remembers [`INCIDENTS_SPARE`] more incidents than this, and judging
/// it reads all of them.
pub const CORDON_AFTER: std::ops::RangeInclusive<u32> = 1..=20;
/// Incidents that are remembered against a slot beyond those that cordon it, because rows may be guilty of some.
pub const INCIDENTS_SPARE: usize = 5;
/// The share in percent of a model's ready slots that the ledger itself may cordon: at least one slot, and never the
/// last. From [`SCHEDULING_VERSION`](crate::SCHEDULING_VERSION) on.
pub const CORDONED_PERCENT_MAX: usize = 20;
/// Workers of one namespace that operators may have cordoned, including workers that are gone.
pub const CORDONS_MAX: usize = 4096;
/// Bytes of a reason: the message of a failure, or why an operator cordons a slot or pauses or cancels a run.
pub const REASON_BYTES_MAX: usize = 512;
/// Ledger time for which a slot must have held a row before an idle slot may run it too.
pub const SPECULATE_AFTER_MS: u64 = 1000;
/// Attempts that one `Tick` ends, from [`SCHEDULING_VERSION`](crate::SCHEDULING_VERSION) on; the next one continues.
/// The last session may exceed the limit.
pub const TICK_ATTEMPTS_MAX: usize = 2048;
/// Rows that one `Tick` returns or makes pending, as [`TICK_ATTEMPTS_MAX`].
pub const TICK_ROWS_MAX: u64 = 8192;
/// Cordons for failures of rows that one `Tick` ends; the next one continues.
pub const TICK_CORDONS_MAX: usize = 256;
/// The longest step of ledger time in one command: a leader with a wild clock expires nothing.
pub const CLOCK_STEP_MAX_MS: u64 = 60_000;
/// The highest priority; priorities start at 0.
pub const PRIORITY_MAX: u8 = 9;
/// The largest share of a run within its priority.
pub const WEIGHT_MAX: u32 = 100;
/// Rows that a run of weight 1 may take before the next run of its priority has its turn.
pub const QUANTUM_ROWS: u32 = 32;
/// Bytes of a key of a shared store, or of a queue's name.
pub const STORE_KEY_BYTES_MAX: usize = 1024;
/// Bytes of a value.
pub const STORE_VALUE_BYTES_MAX: usize = 1 << 20;
/// Values of one store, including the elements of its queues, from cluster version [`FLEET_VERSION`] on: ten for each
/// of 26,000 ranks.
pub const STORE_ENTRIES_MAX: u64 = 262_144;
/// Values of one store, before.
pub const STORE_ENTRIES_BEFORE_MAX: u64 = 100_000;
/// Bytes of the keys and values of one store.
pub const STORE_BYTES_MAX: u64 = 64 << 20;
/// Bytes of all stores together: they are in every member's memory.
pub const STORES_BYTES_MAX: u64 = 512 << 20;
/// Stores of one namespace: one per remembered job for its round, and as many that outlive rounds.
pub const STORES_MAX: usize = 2 * JOBS_MAX;
/// Operations in one request to a store.
pub const STORE_OPS_MAX: usize = 1024;
/// Operations among them that return a value: all answers together must fit a message, including popped values.
pub const STORE_VALUE_OPS_MAX: usize = 8;
/// Pairs that are set at once.
pub const STORE_PAIRS_MAX: usize = 4096;
/// Ledger time after which an unused store is forgotten.
pub const STORE_TTL_MS: u64 = 24 * 60 * 60 * 1000;
/// Jobs of one namespace; the longest-unused one without participants and without a training makes room.
pub const JOBS_MAX: usize = 1024;
/// Ledger time after which a job without participants and without a training is forgotten, even a closed one.
pub const JOB_TTL_MS: u64 = 7 * 24 * 60 * 60 * 1000;
/// Participants of one job.
pub const PARTICIPANTS_MAX: usize = 4096;
/// Departures remembered for one job. One whose name was taken again makes room, otherwise the oldest.
pub const DEPARTURES_MAX: usize = 256;
/// The least and most silence after which a participant is lost.
pub const KEEP_ALIVE_MS: std::ops::RangeInclusive<u64> = 100..=60 * 60 * 1000;
/// The longest join timeout, last call or timeout of a barrier.
pub const JOB_TIMEOUT_MS_MAX: u64 = 7 * 24 * 60 * 60 * 1000;
/// Barriers of one job; among those that do not wait, the one that ended longest ago makes room.
pub const BARRIERS_MAX: usize = 256;
/// Generations of one barrier that are remembered: the next cannot end before all have passed the
/// last.
pub const GENERATIONS_MAX: usize = 2;
/// Names of missing participants that a failure keeps.
pub const MISSING_MAX: usize = 64;
/// Datasets of one namespace.
pub const DATASETS_MAX: usize = 1024;
/// Shards of one dataset.
pub const SHARDS_MAX: u32 = 65_536;
/// Epochs of a dataset in a job.
pub const EPOCHS_MAX: u64 = u32::MAX as u64;
/// Trainings of one namespace, below cluster version 4. From it on [`JOBS_MAX`] covers them.
pub const TRAININGS_MAX: usize = 1024;
/// Trainers of a job.
pub const TRAINERS_MAX: usize = 1024;
/// Shards that one trainer may hold at a time.
pub const TRAINER_SHARDS_MAX: usize = 64;
/// Open epochs of one job, over all its datasets.
pub const DATASET_EPOCHS_MAX: usize = 16;
/// Shards of all open epochs: they are in every member's memory.
pub const SHARDS_OPEN_MAX: u64 = 1 << 20;
/// The shortest and the longest silence after which a trainer is lost.
pub const KEEP_ALIVE_MIN_MS: u64 = 1000;
/// See [`KEEP_ALIVE_MIN_MS`].
pub const KEEP_ALIVE_MAX_MS: u64 = 600_000;
/// Checkpoints of one job that are not complete.
pub const CHECKPOINTS_OPEN_MAX: usize = 8;
/// Checkpoints of one job, including those that are being removed.
pub const CHECKPOINTS_MAX: usize = 1024;
/// Complete checkpoints kept for a job without its own setting.
pub const KEEP_LAST_DEFAULT: u32 = 5;
/// Join tokens that have neither expired nor been revoked.
pub const TOKENS_MAX: usize = 1024;
/// Uses of one join token: each is remembered, so that its repeat does not count.
pub const TOKEN_USES_MAX: u32 = 1024;
/// Ledger time for which a join token may be valid.
pub const TOKEN_TTL_MS_MAX: u64 = 30 * 24 * 60 * 60 * 1000;
/// Namespaces of a join token: as many as a certificate may name.
pub const TOKEN_NAMESPACES_MAX: usize = 64;
/// API keys of one namespace.
pub const NAMESPACE_API_KEYS_MAX: usize = 1024;
/// API keys of all namespaces: they are in every member's memory.
pub const API_KEYS_MAX: usize = 16_384;
/// Revocations of certificates.
pub const REVOCATIONS_MAX: usize = 4096;
/// Members whose last process is remembered, for events.
pub const MEMBERS_SEEN_MAX: usize = 64;
/// Bytes of a member's name.
pub const MEMBER_NAME_BYTES_MAX: usize = 255;
/// Bytes of an id in OpenAI's API after its prefix.
pub const API_ID_BYTES_MAX: usize = 80;
/// Files of one namespace.
pub const FILES_MAX: u64 = 100_000;
/// Files of all namespaces: they are in every member's memory.
pub const ALL_FILES_MAX: u64 = 250_000;
/// Bytes of the name of a file.
pub const FILENAME_BYTES_MAX: usize = 255;
/// Ledger time for which a file may be kept, if it is not kept until it is deleted: an hour to 30 days.
pub const FILE_TTL_MS: std::ops::RangeInclusive<u64> = 60 * 60 * 1000..=30 * 24 * 60 * 60 * 1000;
/// Bytes of one object of a file.
pub const CONTENT_PIECE_BYTES_MAX: u32 = 64 << 20;
/// Objects of one file.
pub const FILE_PIECES_MAX: u64 = 4096;
/// Objects of all files and pending uploads: their digests are in every member's memory.
pub const ALL_PIECES_MAX: u64 = 1 << 20;
/// Bytes of the mark of a cluster in the name of a folder.
pub const CONTENT_MARK_BYTES_MAX: usize = 32;
/// Ledger time from the begin of writing content until the operation that names it is refused.
pub const CONTENT_WRITE_MS_MAX: u64 = 60 * 60 * 1000;
/// Folders with content that is being removed, or was removed within [`CONTENT_WRITE_MS_MAX`].
pub const REMOVALS_MAX: usize = 1 << 20;
/// Folders that one [`ForgetContent`](crate::op::ForgetContent) names.
pub const FORGET_FOLDERS_MAX: usize = 256;
/// Uploads of one namespace, including those that ended and are remembered.
pub const UPLOADS_MAX: u64 = 1000;
/// Uploads of all namespaces.
pub const ALL_UPLOADS_MAX: u64 = 10_000;
/// Bytes of the file that an upload becomes.
pub const UPLOAD_BYTES_MAX: u64 = 8 << 30;
/// Bytes of one part of an upload.
pub const UPLOAD_PART_BYTES_MAX: u64 = 64 << 20;
/// Parts of one upload.
pub const UPLOAD_PARTS_MAX: usize = 1000;
/// Ledger time after which an upload is forgotten.
pub const UPLOAD_TTL_MS: u64 = 60 * 60 * 1000;
/// Folders of expired files and uploads that one `Tick` hands to the garbage collector; the next one continues. The
/// last file or upload may exceed the limit.
pub const TICK_FOLDERS_MAX: usize = 4096;
/// Samples per shard of a dataset without its own setting.
pub const SHARD_SAMPLES_DEFAULT: u32 = 10_000;
/// Batches of one namespace that have not ended.
pub const BATCHES_OPEN_IN_NAMESPACE_MAX: usize = 1024;
/// Batches of all namespaces that have not ended. The leader visits each of them several times a second.
pub const BATCHES_OPEN_MAX: usize = 4096;
/// Batches of one namespace, those that have ended included. The oldest ended one makes room, but none that is younger
/// than [`IDEMPOTENCY_MS`].
pub const BATCHES_IN_NAMESPACE_MAX: u64 = 20_000;
/// Batches of all namespaces. An ended one of the same namespace makes room.
pub const BATCHES_MAX: u64 = 100_000;
/// Bytes of texts in the records of the batches of one namespace: metadata, options and errors. As with their number,
/// ended batches make room. The errors of batches that fail may exceed this.
pub const BATCH_BYTES_IN_NAMESPACE_MAX: u64 = 64 << 20;
/// The same of all namespaces.
pub const BATCH_BYTES_MAX: u64 = 256 << 20;
/// Ledger time for which the idempotency key of a batch is remembered.
pub const IDEMPOTENCY_MS: u64 = 24 * 60 * 60 * 1000;
/// The completion window of a batch: a second to 30 days.
pub const BATCH_WINDOW_MS: std::ops::RangeInclusive<u64> = 1000..=30 * 24 * 60 * 60 * 1000;
/// Rows of one batch.
pub const BATCH_ROWS_MAX: u64 = 100_000_000;
/// Segments of one batch.
pub const BATCH_SEGMENTS_MAX: usize = 65_536;
/// Errors that a failed batch keeps.
pub const BATCH_ERRORS_MAX: usize = 100;
/// Bytes of the settings of a batch's run that OpenAI's API does not have.
pub const BATCH_OPTIONS_BYTES_MAX: usize = 4096;
/// Pairs in the metadata of a batch.
pub const METADATA_PAIRS_MAX: usize = 16;
/// Characters of a key in metadata.
pub const METADATA_KEY_CHARS_MAX: usize = 64;
/// Characters of a value in metadata.
pub const METADATA_VALUE_CHARS_MAX: usize = 512;
