//! The keys of rollout-coordinator.

use super::key::Kind::{Address, Choice, Integer, Map, Path, Text};
use super::key::{Key, Kind, key};

const MAX: u64 = i64::MAX as u64;

/// Every key, in the order of the guide.
pub(super) const KEYS: &[Key] = &[
    key("name", Text, "", "the member's name").required().flag("--name").env("ROLLOUT_MEMBER_NAME"),
    key("data_dir", Path, "", "identity, log and image, on a local disk of its own")
        .required()
        .flag("--data-dir")
        .env("ROLLOUT_DATA_DIR"),
    key("zone", Text, "\"\"", "failure domain").flag("--zone").env("ROLLOUT_ZONE"),
    key("cluster_id", Text, "", "refuse the data of another cluster, 32 hex digits")
        .flag("--cluster-id"),
    key("log", Text, "\"info,openraft=error\"", "filter of the log")
        .flag("--log")
        .env("ROLLOUT_LOG"),
    key("listen.client", Address, "", "where workers, clients and operators connect").required(),
    key("listen.peer", Address, "", "where members connect").required(),
    key("listen.http", Address, "\"127.0.0.1:7422\"", "health and metrics, plain HTTP"),
    key("advertise.client", Text, "", "printed at the start; as [listen] by default"),
    key("advertise.peer", Text, "", "the same for members"),
    key(
        "tls.ca_file",
        Path,
        "",
        "authorities that the certificates of others must be signed by; several during a replacement",
    )
    .flag("--ca-file")
    .env("ROLLOUT_CA_FILE"),
    key("tls.cert_file", Path, "", "the member's certificate")
        .flag("--cert-file")
        .env("ROLLOUT_CERT_FILE"),
    key("tls.key_file", Path, "", "its key").flag("--key-file").env("ROLLOUT_KEY_FILE"),
    key("tls.insecure_plaintext", Kind::Bool, "false", "no TLS: every caller is an administrator"),
    key(
        "tls.insecure_plaintext_public",
        Kind::Bool,
        "false",
        "no TLS where other hosts reach the ports either",
    ),
    key("store.url", Text, "", "the cluster's object store").required(),
    key("store.urls", Kind::Texts, "[]", "other stores that runs may name, and everything below them"),
    key(
        "storage.low_bytes",
        Integer(0, MAX),
        "2147483648",
        "free bytes of data_dir's disk below which the member raises DISK_LOW",
    ),
    key(
        "storage.reserve_bytes",
        Integer(0, MAX),
        "536870912",
        "free bytes below which a leader refuses writes that grow the ledger",
    ),
    key(
        "raft.profile",
        Choice(&["near", "far-zones"]),
        "\"near\"",
        "the longest round trip and fsync: docs/deploy-three-zones.md#choosing-the-profile",
    ),
    key("raft.heartbeat_ms", Integer(5, MAX), "50", "between heartbeats of a leader").far("300"),
    key("raft.election_min_ms", Integer(1, MAX), "150", "at least three heartbeats").far("1000"),
    key("raft.election_max_ms", Integer(1, MAX), "250", "also the length of a leader's lease")
        .far("2000"),
    key("raft.image_interval_ms", Integer(1, MAX), "1000", "between writes of the image"),
    key(
        "raft.image_log_bytes",
        Integer(1, MAX),
        "67108864",
        "log after which the image is written at once",
    ),
    key("raft.log_keep_bytes", Integer(0, MAX), "1073741824", "log kept at least"),
    key("worker.heartbeat_ms", Integer(1, MAX), "500", "interval of a worker's heartbeats"),
    key(
        "worker.self_fence_ms",
        Integer(1, MAX),
        "4000",
        "silence after which a worker starts no rows",
    ),
    key("worker.failure_ms", Integer(1, MAX), "5000", "silence after which a worker is suspect"),
    key(
        "worker.started_grace_ms",
        Integer(0, MAX),
        "60000",
        "how much longer a suspect worker keeps rows that it has started",
    ),
    key("events.bytes_max", Integer(1, MAX), "33554432", "events kept in memory, bytes"),
    key("events.count_max", Integer(1, MAX), "200000", "events kept in memory"),
    key("retention.run_ttl_ms", Integer(0, MAX), "3600000", "from a run's end to its sealing"),
    key("retention.retention_ms", Integer(0, MAX), "0", "from there to its deletion; 0: never"),
    key(
        "retention.sweep_every_ms",
        Integer(0, MAX),
        "3600000",
        "interval between sweeps for objects without a run; 0: never",
    ),
    key(
        "retention.sweep_age_ms",
        Integer(0, MAX),
        "86400000",
        "how long an object must belong to no run before it is removed",
    ),
    key("audit.file", Path, "", "audit file, JSON lines; without it, audit lines go to the log"),
    key("audit.bytes_max", Integer(1, MAX), "67108864", "after which a new file is begun"),
    key("audit.files_max", Integer(1, u32::MAX as u64), "8", "files kept"),
    key(
        "autoscale.rows_per_slot",
        Integer(1, MAX),
        "1024",
        "rows per slot in rollout_pool_desired_slots",
    ),
    key("webhooks.secret_file", Path, "", "secret that signs run-completion notifications"),
    key("webhooks.allow", Kind::Texts, "[]", "origins that runs may notify of their completion"),
    key("enrolment.listen", Address, "", "address for workers and clients that have no certificate yet"),
    key("enrolment.issuer_cert_file", Path, "", "the issuing authority's certificate"),
    key("enrolment.issuer_key_file", Path, "", "its key"),
    key(
        "enrolment.lifetime_s",
        Integer(10, 604_800),
        "86400",
        "how long an issued certificate is good",
    ),
    key(
        "tracing.otlp_endpoint",
        Text,
        "\"\"",
        "an OpenTelemetry collector's port for gRPC, http://HOST:PORT; empty: no spans",
    )
    .flag("--otlp-endpoint")
    .env("ROLLOUT_OTLP_ENDPOINT"),
    key("tracing.sample_ratio", Kind::Float, "1.0", "the share of traces that is recorded, 0 to 1"),
    key(
        "tracing.queue_spans_max",
        Integer(1, 100_000),
        "4096",
        "spans that wait; more are dropped",
    ),
    key("tracing.timeout_ms", Integer(10, 60_000), "5000", "how long the collector may take"),
    key("dial_map", Map, "", "addresses that override those on record for members").flag("--dial-map"),
];
