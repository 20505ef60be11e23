//! Fuzzes messages between an agent and its engine, responses of HTTP engines, an engine's input row and what it
//! leaves when it dies, and responses of environments and clouds. The first byte selects the decoder. New decoders
//! get new bytes, so that kept inputs keep their meaning.

use prost::Message as _;
use rollout_engine_protocol::{FromEngine, ToEngine};
use rollout_proto::v1;
use rollout_worker::fuzzing;

use super::{of, push_sized, take_sized};

const CRASH: u8 = 255;
const VERSIONS: u8 = 254;
const METADATA: u8 = 253;

pub(crate) fn run(bytes: &[u8]) {
    let Some((kind, mut rest)) = bytes.split_first() else { return };
    match *kind {
        CRASH => {
            let _ = fuzzing::crash(rest);
            return;
        }
        VERSIONS => return drop(fuzzing::versions(rest)),
        METADATA => {
            let date = take_sized(&mut rest).unwrap_or_default();
            return fuzzing::metadata_answer(date, rest);
        }
        _ => {}
    }
    match kind % 4 {
        0 => {
            let _ = rollout_engine_protocol::read::<FromEngine>(&mut &rest[..]);
            let _ = rollout_engine_protocol::read::<ToEngine>(&mut &rest[..]);
        }
        1 => drop(fuzzing::answer(rest)),
        2 => {
            let run = take_sized(&mut rest).and_then(|run| v1::GetRunResponse::decode(run).ok());
            if let Some(run) = run {
                let _ = fuzzing::row(run, rest);
            }
        }
        _ => {
            if let Ok(heartbeat) = v1::Heartbeat::decode(rest) {
                fuzzing::rows(heartbeat.started);
            }
        }
    }
}

fn row(task: &str, body: &[u8]) -> Vec<u8> {
    let engine = v1::EngineSpec { task: task.into(), ..Default::default() };
    let spec = v1::RunSpec {
        engine: Some(engine),
        sampling_json: r#"{"temperature":0.5,"chat_template_kwargs":{"a":1}}"#.into(),
        ..Default::default()
    };
    let run = v1::GetRunResponse { spec: Some(spec), ..Default::default() };
    let mut seed = vec![2];
    push_sized(&mut seed, &run.encode_to_vec());
    seed.extend(body);
    seed
}

fn metadata(body: &str) -> Vec<u8> {
    let mut seed = vec![METADATA];
    push_sized(&mut seed, b"Tue, 05 May 2026 10:00:00 GMT");
    seed.extend(body.as_bytes());
    seed
}

/// Seeds: what a dead engine leaves, and responses of an environment and of clouds.
fn later_seeds() -> Vec<Vec<u8>> {
    vec![
        of(CRASH, br#"{"version":1,"exception":"torch.OutOfMemoryError","message":"CUDA"}"#),
        of(
            CRASH,
            br#"{"version":1,"exception":"vllm.v1.engine.exceptions.EngineDeadError","child_signal":9,"child_exit_code":null}"#,
        ),
        of(VERSIONS, br#"{"vllm":"0.11.0","torch":"2.8.0+cu128"}"#),
        metadata(r#"{"action":"terminate","time":"2026-05-05T10:02:00Z"}"#),
        metadata(
            r#"{"DocumentIncarnation":1,"Events":[{"EventId":"a","EventType":"Preempt","EventStatus":"Scheduled","Resources":["vm"],"NotBefore":"Tue, 05 May 2026 10:00:30 GMT"}]}"#,
        ),
        metadata(
            r#"{"name":"vm","vmId":"1","vmSize":"Standard_ND96","location":"westus","zone":"2","priority":"Spot"}"#,
        ),
    ]
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    // One message of each kind, with as many zeros as the largest has fields.
    let mut messages: Vec<Vec<u8>> =
        (0..8u8).map(|kind| [&24u32.to_le_bytes()[..], &[kind], &[0; 23]].concat()).collect();
    let read =
        messages.iter().filter_map(|seed| rollout_engine_protocol::read(&mut &seed[..]).ok());
    let decoded: Vec<ToEngine> = read.collect();
    messages
        .extend(decoded.iter().filter_map(|message| rollout_engine_protocol::encode(message).ok()));
    let mut seeds: Vec<Vec<u8>> = messages.iter().map(|message| of(0, message)).collect();
    let answers: [&[u8]; 5] = [
        br#" {"choices":[{"text":"a","finish_reason":"stop","logprobs":null,"index":0},{"message":{"content":"b"},"stop_reason":7}],"usage":{"prompt_tokens":1,"completion_tokens":2}}"#,
        b"\x01{\"data\":[{\"embedding\":[0.5,1e3]}],\"usage\":null}",
        br#"!{"data":[{"embedding":[]}]}"#,
        br#""{"usage":{"prompt_tokens":3}}"#,
        br#"/{"error":{"message":"no"}}"#,
    ];
    seeds.extend(answers.map(|answer| of(1, answer)));
    seeds.push(row("generate", br#"{"prompt":"a","sampling_params":{"seed":1}}"#));
    seeds.push(row("embed", br#"{"messages":[{"role":"user"}],"chat_template_kwargs":{"b":2}}"#));
    seeds.push(row("score", br#"{"query":"a","document":"b"}"#));
    seeds.push(row("openai", br#"{"custom_id":"a","method":"POST","url":"/v1/x","body":{}}"#));
    let rows = v1::Rows { starts: vec![1, 9], lens: vec![3, 2] };
    let held = v1::HeldRows { run: 1, attempt: 2, rows: Some(rows) };
    let heartbeat = v1::Heartbeat { started: vec![held], ..Default::default() };
    seeds.push(of(3, &heartbeat.encode_to_vec()));
    seeds.extend(later_seeds());
    seeds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crash_files_and_versions_of_the_seeds_are_read() {
        let seeds = later_seeds();
        let of = |kind: u8| seeds.iter().filter(move |seed| seed[0] == kind).map(|seed| &seed[1..]);
        assert!(of(CRASH).all(|file| fuzzing::crash(file).is_some()));
        assert!(of(VERSIONS).all(|said| fuzzing::versions(said) == Ok(2)));
        assert_eq!((of(CRASH).count(), of(VERSIONS).count(), of(METADATA).count()), (2, 1, 3));
    }
}
