//! Fuzzes configuration files, and the private files of a client, a worker or a member. The first byte selects the
//! file type. New file types get new bytes, so that kept inputs keep their meaning.

use std::path::Path;

use rollout_batch::export::manifest::Manifest;
use rollout_batch::submission::config::BatchConfig;
use rollout_batch::submission::spec;
use rollout_ctl::connect::{Context, Contexts};

use super::file_of;

const ENROLLMENT: u8 = 255;
const DEV_PIDS: u8 = 254;
const DEV_SETTINGS: u8 = 253;

pub(crate) fn run(bytes: &[u8]) {
    let Some((kind, rest)) = bytes.split_first() else { return };
    match *kind {
        ENROLLMENT => drop(rollout_worker::fuzzing::enrollment(rest)),
        DEV_PIDS => drop(rollout_ctl::fuzzing::dev_pids(rest)),
        DEV_SETTINGS => drop(rollout_ctl::fuzzing::dev_settings(rest)),
        kind => other_file(kind, rest),
    }
}

fn other_file(kind: u8, rest: &[u8]) {
    match kind % 9 {
        kind @ 0..3 => {
            if let Ok(text) = std::str::from_utf8(rest) {
                configuration(kind, text);
            }
        }
        3 => contexts(rest),
        4 => drop(rollout_proto::fuzzing::members_file(rest)),
        5 => drop(serde_json::from_slice::<Manifest>(rest)),
        6 => drop(rollout_batch::export::fuzzing::output_record(rest)),
        7 => {
            let _ = rollout_worker::fuzzing::state(rest);
            let path = file_of("IDENTITY", rest);
            let _ = rollout_raft::owner(path.parent().expect("a directory"));
        }
        _ => drop(rollout_ctl::fuzzing::audit_chain(rest)),
    }
}

fn configuration(kind: u8, text: &str) {
    match kind {
        0 => {
            let file = Path::new("/d/batch.toml");
            if let Ok(mut config) = BatchConfig::parse(text, file, Path::new("/d")) {
                if config.is_undecided() && config.decide(text.len().is_multiple_of(2)).is_err() {
                    return;
                }
                if let Ok(spec) = spec::run_spec(&config) {
                    let _ = spec::rules(&spec);
                }
                let _ = (config.context(), config.layout());
            }
        }
        1 => drop(rollout_coordinator::fuzzing::config(text)),
        _ => {
            if let Ok(config) = rollout_worker::Config::parse(text, "worker.toml")
                && config.check().is_ok()
            {
                for engine in &config.engine {
                    let _ = config.credit_rows(engine);
                }
            }
        }
    }
}

/// A context that is read, written and read again stays the same.
fn contexts(bytes: &[u8]) {
    let path = file_of("contexts.toml", bytes);
    let _ = Context::read(&path);
    if let Ok(contexts) = Contexts::read(&path)
        && contexts.write(&path).is_ok()
    {
        assert_eq!(Contexts::read(&path).expect("what was written is read"), contexts);
    }
}

const BATCH: &str = r#"
[model]
uri = "Qwen/Qwen2.5-0.5B-Instruct"
options = { quantization = "fp8" }
[sampling]
temperature = 0.7
max_tokens = 64
stop = ["a"]
[input]
glob = ["data/*.jsonl"]
columns = { id = "key" }
prompt_template = "Say {text}"
[output]
dir = "out"
format = "jsonl"
shard_rows = 10
[workers]
labels = { zone = "a" }
require = { vllm = ">=0.9" }
[run]
priority = 7
deadline_s = 60
[cluster]
endpoints = ["127.0.0.1:7420"]
dial_map = ["c1=127.0.0.1:7420"]
[tls]
ca_file = "ca.pem"
"#;
const MEMBER: &str = concat!(
    include_str!("../../../../coordinator/src/config/tests/minimal.toml"),
    r#"
[dial_map]
c2 = "127.0.0.1:3"
[tracing]
otlp_endpoint = "http://127.0.0.1:4317"
"#
);
const CONTEXTS: &str = r#"
current = "prod"
[context.prod]
endpoints = ["c1:7420"]
ca_file = "ca.pem"
namespace = "team"
"#;

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let worker = include_str!("../../../../worker/worker.example.toml");
    let of = |kind: u8, text: &str| super::of(kind, text.as_bytes());
    vec![
        of(0, BATCH),
        of(1, MEMBER),
        of(2, worker),
        of(3, CONTEXTS),
        of(3, "endpoints = [\"c1:7420\"]\ninsecure_plaintext = true\n"),
        of(
            4,
            r#"{"format":1,"cluster_id":"a","coord_epoch":9,"members_version":4,"members":[{"id":3,"name":"c3","client_addr":"h3:7","peer_addr":"","zone":"","version_min":1,"version_max":1,"voter":true}]}"#,
        ),
        of(
            5,
            r#"{"version":1,"run":"r","namespace":"n","spec_digest":"","model_uri":"m","model_content_id":"","format":"jsonl","shard_rows":0,"rows":1,"completions":1,"failed":0,"prompt_tokens":1,"completion_tokens":1,"files":[{"name":"completions.jsonl","rows":1,"bytes":2,"blake3":""}]}"#,
        ),
        of(
            6,
            r#"{"version":1,"namespace":"n","run":"r","batch":null,"settled":true,"files":[{"name":"a","bytes":1}],"next":[]}"#,
        ),
        of(7, r#"{"session":"7","cluster_id":"09","coord_epoch":"2"}"#),
        of(
            7,
            r#"{"version":1,"cluster_id":"09090909090909090909090909090909","member_id":1,"name":"c1","checksum":""}"#,
        ),
        super::of(DEV_PIDS, &rollout_ctl::fuzzing::written_dev_pids()),
        super::of(DEV_SETTINGS, &rollout_ctl::fuzzing::written_dev_settings()),
        of(ENROLLMENT, r#"{"labels":{"zone":"a","rack":"7"},"lifetime_ms":86400000}"#),
        of(
            8,
            "{\"time\":\"2026-01-01T00:00:00Z\",\"prev\":null}\n{\"prev\":\"x\"}\n\0{\"prev\":\"x\"}\n",
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use rollout_ctl::fuzzing::{dev_pids, dev_settings};

    #[test]
    fn the_seeds_of_a_development_cluster_are_read() {
        let seeds = seeds();
        let of = |kind: u8| seeds.iter().filter(move |seed| seed[0] == kind).map(|seed| &seed[1..]);
        assert_eq!(of(DEV_PIDS).map(dev_pids).collect::<Vec<_>>(), [Some(2)]);
        assert_eq!(of(DEV_SETTINGS).map(dev_settings).collect::<Vec<_>>(), [Some(1)]);
    }
}
