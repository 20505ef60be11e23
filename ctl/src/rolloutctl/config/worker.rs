//! The keys of rollout-worker.

use super::key::Kind::{
    Address, Bool, Bytes, Choice, Count, Devices, Float, Integer, Integers, Map, Path, Text, Texts,
};
use super::key::{Key, key};

const MAX: u64 = i64::MAX as u64;
const MOCK: &[&str] = &["mock"];
const OPENAI: &[&str] = &["openai"];
const VLLM: &[&str] = &["vllm"];
const OWN_PROCESS: &[&str] = &["mock", "vllm"];

/// Every key, in the order of the example file.
pub(super) const KEYS: &[Key] = &[
    key("name", Text, "", "the worker's name; its certificate names the same")
        .required()
        .flag("--name")
        .env("ROLLOUT_WORKER_NAME"),
    key("namespace", Text, "\"default\"", "the namespace that it works for")
        .flag("--namespace")
        .env("ROLLOUT_NAMESPACE"),
    key("data_dir", Path, "", "session and spool")
        .required()
        .flag("--data-dir")
        .env("ROLLOUT_WORKER_DATA_DIR"),
    key("endpoints", Texts, "", "members to begin with, host:port")
        .required()
        .flag("--endpoint")
        .env("ROLLOUT_ENDPOINTS"),
    key("address", Text, "", "where a person finds this worker; its host and process by default"),
    key("metrics_listen", Address, "", "serve metrics over HTTP here")
        .flag("--metrics-listen")
        .env("ROLLOUT_WORKER_METRICS_LISTEN"),
    key("labels", Map, "", "what a run's selector is compared with").flag("--label"),
    key("tls.ca_file", Path, "", "the cluster's authority")
        .flag("--ca-file")
        .env("ROLLOUT_CA_FILE"),
    key("tls.cert_file", Path, "", "the worker's certificate")
        .flag("--cert-file")
        .env("ROLLOUT_CERT_FILE"),
    key("tls.key_file", Path, "", "its key").flag("--key-file").env("ROLLOUT_KEY_FILE"),
    key("tls.insecure_plaintext", Bool, "false", "no TLS: the worker trusts every peer")
        .flag("--insecure-plaintext"),
    key("enrolment.token_file", Path, "", "a join token, instead of the three files"),
    key("enrolment.endpoints", Texts, "", "the members' enrolment addresses, host:port"),
    key("dial_map", Map, "", "members dialled elsewhere")
        .flag("--dial-map")
        .env("ROLLOUT_DIAL_MAP"),
    key("store.urls", Texts, "", "other stores that runs may name, and everything below them")
        .flag("--store-url"),
    key(
        "credit.rows",
        Integer(1, 4096),
        "",
        "of a slot, queued and running; twice its concurrency by default",
    )
    .flag("--credit-rows"),
    key("credit.tokens", Integer(1, 1 << 40), "", "that these may take; by what its engine holds"),
    key("part.rows", Integer(1, 4096), "1000", "rows that close a part"),
    key("part.bytes", Bytes, "\"8MiB\"", "bytes that close a part"),
    key(
        "part.linger_ms",
        Integer(1, 60_000),
        "10000",
        "time since its first row that closes a part",
    ),
    key(
        "timing.self_fence_ms",
        Integer(200, 60_000),
        "4000",
        "without an answer for so long no row is started",
    ),
    key(
        "timing.leader_silent_ms",
        Integer(50, 60_000),
        "1000",
        "then another leader is looked for",
    ),
    key(
        "timing.drain_ms",
        Integer(0, 3_600_000),
        "60000",
        "how long running rows may take after SIGTERM",
    ),
    key(
        "timing.probe_ms",
        Integer(10, 600_000),
        "2000",
        "how often an unreachable engine or store is tried",
    ),
    key(
        "timing.register_refused_ms",
        Integer(0, 3_600_000),
        "60000",
        "how long a refused registration is tried",
    ),
    key(
        "timing.store_refused_ms",
        Integer(0, 3_600_000),
        "60000",
        "how long a refused part is kept",
    ),
    key("cache.bytes", Bytes, "\"256MiB\"", "input segments in memory"),
    key(
        "compute.provider",
        Choice(&["auto", "aws", "gcp", "azure", "none"]),
        "\"auto\"",
        "whose notices are listened to",
    )
    .flag("--compute")
    .env("ROLLOUT_WORKER_COMPUTE"),
    key("compute.endpoint", Text, "", "address of the metadata service, if not the usual one")
        .flag("--compute-endpoint")
        .env("ROLLOUT_WORKER_COMPUTE_ENDPOINT"),
    key(
        "compute.poll_ms",
        Integer(100, 30_000),
        "5000",
        "how often AWS is asked; Azure every second at least",
    ),
    key("store_gateway.job", Text, "", "the training job whose store is served to this host")
        .flag("--store-gateway")
        .env("ROLLOUT_WORKER_STORE_GATEWAY"),
    key("store_gateway.round", Integer(0, MAX), "0", "the round of its rendezvous"),
    key("store_gateway.listen", Address, "\"127.0.0.1:29400\"", "where the store is served"),
    key(
        "store_gateway.insecure_tcpstore",
        Bool,
        "false",
        "other hosts, and all users of this one, may connect, without TLS",
    ),
    key("store_gateway.allow_uids", Integers, "[]", "users of this host that it serves, too"),
    key(
        "tracing.otlp_endpoint",
        Text,
        "\"\"",
        "an OpenTelemetry collector's port for gRPC, http://HOST:PORT; empty: no spans",
    )
    .flag("--otlp-endpoint")
    .env("ROLLOUT_OTLP_ENDPOINT"),
    key("tracing.sample_ratio", Float, "1.0", "the share of traces that is recorded, 0 to 1"),
    key(
        "tracing.queue_spans_max",
        Integer(1, 100_000),
        "4096",
        "spans that wait; more are dropped",
    ),
    key("tracing.timeout_ms", Integer(10, 60_000), "5000", "how long the collector may take"),
    key("engine[].kind", Choice(&["mock", "openai", "vllm"]), "", "which engine")
        .required()
        .flag("--engine"),
    key("engine[].slots", Count(1, 64, "auto"), "1", "slots with such an engine").flag("--slots"),
    key("engine[].models", Texts, "[\"*\"]", "model URIs that runs may name"),
    key("engine[].tasks", Texts, "[]", "what runs may ask of it; empty: what its kind can"),
    key("engine[].concurrency", Integer(1, 4096), "64", "rows that run at a time in each slot")
        .flag("--concurrency"),
    key("engine[].labels", Map, "", "labels of its slots, over the worker's"),
    key("engine[].loras", Map, "", "adapters that rows may name, and where they are")
        .of(OWN_PROCESS),
    key("engine[].latency_ms_min", Integer(0, MAX), "0", "the shortest latency of a row").of(MOCK),
    key("engine[].latency_ms_max", Integer(0, MAX), "0", "the longest latency of a row").of(MOCK),
    key("engine[].seed", Integer(0, MAX), "0", "which latencies").of(MOCK),
    key("engine[].tail", Choice(&["uniform", "pareto"]), "\"uniform\"", "how latencies are spread")
        .of(MOCK),
    key("engine[].tail_alpha", Float, "1.2", "the smaller, the heavier").of(MOCK),
    key("engine[].side_file", Path, "", "a line for each execution").of(MOCK),
    key("engine[].once_dir", Path, "", "shared memory of rows that failed once").of(MOCK),
    key("engine[].fail_rows", Integers, "[]", "rows that fail as invalid").of(MOCK),
    key("engine[].process", Bool, "false", "runs in a separate process").of(MOCK),
    key("engine[].program", Path, "", "the program of that process").of(MOCK),
    key("engine[].exit_at_start", Integer(0, 255), "", "that process ends so whenever it starts")
        .of(MOCK),
    key("engine[].exit_at_row", Integer(0, 255), "", "that process ends so at every row").of(MOCK),
    key("engine[].base_url", Text, "", "the server, without /v1").of(OPENAI).flag("--base-url"),
    key("engine[].api_key_env", Text, "", "the variable that holds the key").of(OPENAI),
    key("engine[].timeout_ms", Integer(1, MAX), "600000", "how long one request may take")
        .of(OPENAI),
    key("engine[].served_model", Text, "", "the model's name on the server, if it differs")
        .of(OPENAI),
    key("engine[].python", Path, "", "of an environment with vLLM and this project's package")
        .of(VLLM),
    key("engine[].model", Text, "", "a directory, or a name that vLLM finds").of(VLLM),
    key("engine[].revision", Text, "\"\"", "the model's revision").of(VLLM),
    key("engine[].engine_args", Map, "", "by vLLM's own names").of(VLLM),
    key("engine[].env", Map, "", "variables of its process").of(VLLM),
    key(
        "engine[].pass_env",
        Texts,
        "[]",
        "variables of the worker that it gets too; NAME or BEGINNING*",
    )
    .of(OWN_PROCESS),
    key("engine[].gpus_per_slot", Integer(0, MAX), "0", "devices of a slot; 0: vLLM's choice")
        .of(VLLM),
    key("engine[].devices", Devices, "[]", "the devices of these slots").of(VLLM),
    key(
        "engine[].tensor_parallel_size",
        Integer(1, 1024),
        "1",
        "devices that an engine is spread over",
    )
    .of(VLLM),
    key(
        "engine[].stall_timeout_ms",
        Integer(100, 86_400_000),
        "300000",
        "without progress for so long it is killed",
    )
    .of(OWN_PROCESS),
    key(
        "engine[].start_timeout_ms",
        Integer(100, 86_400_000),
        "600000",
        "how long it may take to be ready",
    )
    .of(OWN_PROCESS),
];
