//! Tests every bound of `ledger/src/kernel/limits.rs`: a request at the bound is granted; one beyond it is refused, or has
//! no effect, and leaves no trace.
//!
//! *Invariant:* the table has every constant of that file; a new constant fails the first test until it is listed
//! here.

mod api_keys;
mod jobs;
mod members;
mod revocations;
mod runs;
mod settings;
mod stores;
mod tokens;
mod trainings;
mod workers;

use std::collections::BTreeSet;

/// Bounds that the ledger only defines: they are tested where they are applied.
const ELSEWHERE: &[&str] = &[
    // Missing participants in the coordinator's answers: `coordinator/src/grpc/barrier.rs`.
    "MISSING_MAX",
    // The coordinator's default in a dataset's spec: `coordinator/src/grpc/training_convert.rs`.
    "SHARD_SAMPLES_DEFAULT",
];

/// Bounds of files: `ledger/src/openai/tests` fills the ledger without as many operations.
const OF_FILES: &[&str] = &[
    "API_ID_BYTES_MAX",
    "FILES_MAX",
    "ALL_FILES_MAX",
    "FILENAME_BYTES_MAX",
    "FILE_TTL_MS",
    "CONTENT_PIECE_BYTES_MAX",
    "FILE_PIECES_MAX",
    "ALL_PIECES_MAX",
    "CONTENT_MARK_BYTES_MAX",
    "CONTENT_WRITE_MS_MAX",
    "REMOVALS_MAX",
    "FORGET_FOLDERS_MAX",
    "UPLOADS_MAX",
    "ALL_UPLOADS_MAX",
    "UPLOAD_BYTES_MAX",
    "UPLOAD_PART_BYTES_MAX",
    "UPLOAD_PARTS_MAX",
    "UPLOAD_TTL_MS",
    "TICK_FOLDERS_MAX",
];

const TRIED: &[(&str, fn())] = &[
    ("SEGMENT_ROWS_MAX", runs::segment_rows),
    ("RUN_ROWS_MAX", runs::run_rows),
    ("SEGMENTS_PER_OP_MAX", runs::segments_per_op),
    ("CLAIM_ROWS_MAX", runs::claim_rows),
    ("SLOT_ROWS_MAX", runs::slot_rows),
    ("PART_ROWS_MAX", runs::part_rows),
    ("OPS_PER_COMMAND_MAX", runs::ops_per_command),
    ("GRANTS_PER_COMMAND_MAX", runs::grants_per_command),
    ("NAME_BYTES_MAX", runs::names),
    ("HOLDER_BYTES_MAX", runs::holders),
    ("NOTIFY_URL_BYTES_MAX", runs::notify_urls),
    ("NAMESPACES_MAX", runs::namespaces),
    ("DONE_HISTORIES_MAX", runs::done_histories),
    ("WORKER_CRASHES_MAX", workers::worker_crashes),
    ("TEXT_BYTES_MAX", runs::texts),
    ("JSON_BYTES_MAX", runs::json),
    ("LABELS_MAX", runs::labels),
    ("SLOTS_MAX", workers::slots),
    ("WORKERS_MAX", workers::workers),
    ("WORKERS_BEFORE_MAX", workers::workers_before),
    ("ALL_SLOTS_MAX", workers::all_slots),
    ("FLEET_VERSION", workers::workers_before),
    ("RUNS_MAX", runs::runs),
    ("CLIENTS_MAX", runs::clients),
    ("CLIENT_REPLIES_MAX", runs::client_replies),
    ("CLIENT_REPLIES_BYTES_MAX", stores::reply_bytes_of_a_client),
    ("REPLIES_BYTES_MAX", stores::reply_bytes_of_all),
    ("CLIENT_TTL_MS", runs::client_ttl),
    ("SEALED_BYTES_MAX", runs::sealed_bytes),
    ("HISTORY_MAX", runs::history),
    ("OUT_OF_MEMORY_STRIKES_MAX", workers::out_of_memory_strikes),
    ("ENGINE_DIED_STRIKES_MAX", workers::engine_died_strikes),
    ("OTHER_SLOTS_FIRST_MS", workers::other_slots_first),
    ("SECOND_SLOT_WAIT_MS", workers::second_slot_wait),
    ("FAILURE_CORDON_MS", workers::failure_cordon),
    ("CORDON_AFTER_DEFAULT", workers::deaths_in_row),
    ("CORDON_AFTER", settings::cordon_after),
    ("INCIDENTS_SPARE", workers::deaths_held),
    ("CORDONED_PERCENT_MAX", workers::cordoned_percent),
    ("CORDONS_MAX", workers::cordons),
    ("REASON_BYTES_MAX", workers::reason_bytes),
    ("SPECULATE_AFTER_MS", runs::speculate_after),
    ("TICK_ATTEMPTS_MAX", workers::tick_attempts),
    ("TICK_ROWS_MAX", workers::tick_rows),
    ("TICK_CORDONS_MAX", workers::tick_cordons),
    ("CLOCK_STEP_MAX_MS", runs::clock_step),
    ("PRIORITY_MAX", runs::priority),
    ("WEIGHT_MAX", runs::weight),
    ("QUANTUM_ROWS", runs::quantum),
    ("STORE_KEY_BYTES_MAX", stores::key_bytes),
    ("STORE_VALUE_BYTES_MAX", stores::value_bytes),
    ("STORE_ENTRIES_MAX", stores::entries),
    ("STORE_ENTRIES_BEFORE_MAX", stores::entries_before),
    ("STORE_BYTES_MAX", stores::bytes),
    ("STORES_BYTES_MAX", stores::bytes_of_all),
    ("STORES_MAX", stores::stores),
    ("STORE_OPS_MAX", stores::ops),
    ("STORE_VALUE_OPS_MAX", stores::value_ops),
    ("STORE_PAIRS_MAX", stores::pairs),
    ("STORE_TTL_MS", stores::ttl),
    ("JOBS_MAX", jobs::jobs),
    ("JOB_TTL_MS", jobs::ttl),
    ("PARTICIPANTS_MAX", jobs::participants),
    ("DEPARTURES_MAX", jobs::departures),
    ("KEEP_ALIVE_MS", jobs::keep_alive),
    ("JOB_TIMEOUT_MS_MAX", jobs::timeouts),
    ("BARRIERS_MAX", jobs::barriers),
    ("GENERATIONS_MAX", jobs::generations),
    ("DATASETS_MAX", trainings::datasets),
    ("SHARDS_MAX", trainings::shards),
    ("EPOCHS_MAX", trainings::epochs),
    ("TRAININGS_MAX", trainings::trainings),
    ("TRAINERS_MAX", trainings::trainers),
    ("TRAINER_SHARDS_MAX", trainings::trainer_shards),
    ("DATASET_EPOCHS_MAX", trainings::dataset_epochs),
    ("SHARDS_OPEN_MAX", trainings::shards_open),
    ("KEEP_ALIVE_MIN_MS", trainings::keep_alive),
    ("KEEP_ALIVE_MAX_MS", trainings::keep_alive),
    ("CHECKPOINTS_OPEN_MAX", trainings::checkpoints_open),
    ("CHECKPOINTS_MAX", trainings::checkpoints),
    ("KEEP_LAST_DEFAULT", trainings::keep_last),
    ("REVOCATIONS_MAX", revocations::revocations),
    ("MEMBERS_SEEN_MAX", members::seen),
    ("MEMBER_NAME_BYTES_MAX", members::names),
    ("NAMESPACE_API_KEYS_MAX", api_keys::of_namespace),
    ("API_KEYS_MAX", api_keys::of_all),
    ("TOKENS_MAX", tokens::tokens),
    ("TOKEN_USES_MAX", tokens::uses),
    ("TOKEN_TTL_MS_MAX", tokens::ttl),
    ("TOKEN_NAMESPACES_MAX", tokens::namespaces),
];

/// Bounds of batches: `ledger/src/openai/batch_tests` fills the ledger without as many operations.
const OF_BATCHES: &[&str] = &[
    "BATCHES_OPEN_IN_NAMESPACE_MAX",
    "BATCHES_OPEN_MAX",
    "BATCHES_IN_NAMESPACE_MAX",
    "BATCHES_MAX",
    "BATCH_BYTES_IN_NAMESPACE_MAX",
    "BATCH_BYTES_MAX",
    "IDEMPOTENCY_MS",
    "BATCH_WINDOW_MS",
    "BATCH_ROWS_MAX",
    "BATCH_SEGMENTS_MAX",
    "BATCH_ERRORS_MAX",
    "BATCH_OPTIONS_BYTES_MAX",
    "METADATA_PAIRS_MAX",
    "METADATA_KEY_CHARS_MAX",
    "METADATA_VALUE_CHARS_MAX",
];

#[test]
fn every_bound_is_in_the_table() {
    let source = include_str!("../../src/kernel/limits.rs");
    let constant = |line: &'static str| line.strip_prefix("pub const ")?.split(':').next();
    let there: BTreeSet<&str> = source.lines().filter_map(constant).collect();
    assert!(there.len() > 60, "the file was read");
    let tried = TRIED.iter().map(|tried| tried.0);
    let listed: Vec<&str> =
        tried.chain(ELSEWHERE.iter().chain(OF_FILES).chain(OF_BATCHES).copied()).collect();
    let names: BTreeSet<&str> = listed.iter().copied().collect();
    assert_eq!(names.len(), listed.len(), "each once");
    assert_eq!(names, there);
}

#[test]
fn a_request_at_the_limit_is_granted_and_one_over_it_is_refused() {
    let mut broken = Vec::new();
    for (name, tried) in TRIED {
        // The panic's own message is printed before.
        if std::panic::catch_unwind(tried).is_err() {
            broken.push(*name);
        }
    }
    assert!(broken.is_empty(), "{broken:?}");
}
