//! One frame of each message that an agent and an engine's process send.
//!
//! *Invariant:* each kind of message has an example. One that the protocol gains does not compile here until it has one. A
//! line that changes needs another [`VERSION`]: an agent of one build speaks with an engine's process of the same version.
//! `ROLLOUT_REWRITE=1` writes the file anew.

use std::collections::BTreeMap;
use std::fmt::{Debug, Write as _};

use rollout_engine_protocol::{
    CRASH_FILE_ENV, Counters, FRAME_BYTES_MAX, FromEngine, Loaded, Row, RowClass, RowFailure,
    SOCKET_ENV, ToEngine, VERSION, encode, read,
};
use rollout_recorded::check;
use serde::Serialize;
use serde::de::DeserializeOwned;

macro_rules! examples {
    ($all:ident, $kind:ident, { $($variant:ident: $example:expr,)* }) => {
        fn $all() -> Vec<(&'static str, $kind)> {
            fn name(value: &$kind) -> &'static str {
                match value {
                    $($kind::$variant { .. } => stringify!($variant),)*
                }
            }
            let all = vec![$((stringify!($variant), $example)),*];
            all.iter().for_each(|(kind, example)| assert_eq!(*kind, name(example)));
            all
        }
    };
}

examples!(to_engine, ToEngine, {
    Hello: ToEngine::Hello { version: VERSION, slot: 300, options: "{\"dtype\":\"bf16\"}".into() },
    Start: ToEngine::Start(row()),
    Cancel: ToEngine::Cancel { ticket: 300 },
});

fn row() -> Row {
    Row {
        ticket: 300,
        run: 70_000,
        namespace: "team".into(),
        name: "chat".into(),
        model: "hf://m".into(),
        task: "generate".into(),
        sampling: "{\"seed\":1}".into(),
        row: 70_001,
        attempt: 90_112,
        item_id: [7; 32],
        body: b"{\"prompt\":\"a\"}".to_vec(),
    }
}

examples!(from_engine, FromEngine, {
    Hello: FromEngine::Hello { version: VERSION },
    Ready: FromEngine::Ready,
    Finished: FromEngine::Finished {
        ticket: 300,
        text: "b".into(),
        finish_reason: "stop".into(),
        prompt_tokens: 129,
        completion_tokens: 300,
        extra: "{\"n\":1}".into(),
    },
    Failed: FromEngine::Failed { ticket: 300, failure: failure(RowClass::Invalid) },
    Progress: FromEngine::Progress(counters()),
    Stopped: FromEngine::Stopped { ticket: 300 },
    Loaded: FromEngine::Loaded(loaded()),
});

examples!(classes, RowClass, {
    Invalid: RowClass::Invalid,
    Transient: RowClass::Transient,
    OutOfMemory: RowClass::OutOfMemory,
    EngineDied: RowClass::EngineDied,
});

fn failure(class: RowClass) -> RowFailure {
    RowFailure { class, code: "BAD_PROMPT".into(), message: "why".into() }
}

fn counters() -> Counters {
    Counters {
        steps: 301,
        tokens: 302,
        steps_not_full: 303,
        steps_hungry: 304,
        admitted: 305,
        admitted_beside: 306,
        aborted: 307,
        tokens_after_abort: 308,
    }
}

fn loaded() -> Loaded {
    Loaded {
        versions: BTreeMap::from([("vllm".into(), "0.32.0".into())]),
        revisions: vec!["main".into(), "0123456789abcdef".into()],
        room_tokens: 70_000,
    }
}

/// The line of a message, which comes back as it was.
fn line<T>(of: &str, name: &str, message: &T) -> String
where
    T: Serialize + DeserializeOwned + PartialEq + Debug,
{
    let frame = encode(message).unwrap();
    assert_eq!(&read::<T>(&mut frame.as_slice()).unwrap(), message, "{of}.{name}");
    let mut line = format!("{of}.{name} ");
    for byte in frame {
        // invariant: writing to a string does not fail.
        let _ = write!(line, "{byte:02x}");
    }
    line
}

#[test]
fn the_bytes_of_messages_are_locked() {
    let mut lines = vec![
        format!("version {VERSION}"),
        format!("frame_bytes_max {FRAME_BYTES_MAX}"),
        format!("environment {SOCKET_ENV} {CRASH_FILE_ENV}"),
    ];
    lines.extend(to_engine().iter().map(|(name, m)| line("to_engine", name, m)));
    lines.extend(from_engine().iter().map(|(name, m)| line("from_engine", name, m)));
    lines.extend(classes().into_iter().map(|(name, class)| {
        let failed = FromEngine::Failed { ticket: 300, failure: failure(class) };
        line("row_class", name, &failed)
    }));
    check(
        concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/messages.txt"),
        &(lines.join("\n") + "\n"),
    );
}
