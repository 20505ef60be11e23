//! Owns: the engine that needs no model: it answers `MOCK:` and the prompt, after a latency drawn from the item's ID.
//!
//! Invariant: the same item gives the same answer and, with the same seed, the same latency, on every worker and in
//! every attempt. If a side file is configured, each execution appends one line when it starts and one when it
//! finishes, each with a single write.
//! Absent: tokens. It counts words instead.

mod answers;
mod deadly_prompts;
mod routes;

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Context;
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use rollout_engine_protocol::Loaded;
use rollout_proto::v1::FailureClass;

use self::deadly_prompts::Deadly;
use super::{Completion, Engine, EngineFailure, EngineRow, timed};
use crate::config::{EngineConfig, Tail};
use crate::offer;

/// How many rows that failed once are remembered.
const ONCE_MAX: usize = 65_536;

/// Failures that a prompt can request, by the prompt's text.
const FAILURES: [(&str, FailureClass, &str); 4] = [
    ("MOCK_FAIL_INVALID", FailureClass::InvalidRow, "MOCK_INVALID"),
    ("MOCK_FAIL_TRANSIENT", FailureClass::Transient, "MOCK_TRANSIENT"),
    ("MOCK_FAIL_OOM", FailureClass::OutOfMemory, "MOCK_OOM"),
    ("MOCK_FAIL_ENGINE_DIED", FailureClass::EngineDied, "MOCK_ENGINE_DIED"),
];
const FAIL_ONCE: &str = "MOCK_FAIL_TRANSIENT_ONCE";
const HANG: &str = "MOCK_HANG";

pub(super) struct MockEngine {
    latency_ms: (u64, u64),
    seed: u64,
    tail: Tail,
    alpha: f64,
    side_file: Option<File>,
    once_dir: Option<PathBuf>,
    fail_rows: HashSet<u64>,
    exit_at_row: Option<u8>,
    failed_once: Mutex<HashSet<(u32, u64)>>,
    /// Whether prompts may end this process.
    mortal: bool,
    /// Rows that make progress.
    working: AtomicUsize,
    config: EngineConfig,
}

impl MockEngine {
    pub(super) fn new(config: &EngineConfig) -> anyhow::Result<Self> {
        let open = |path: &PathBuf| {
            let file = OpenOptions::new().create(true).append(true).open(path);
            file.with_context(|| format!("cannot open the side file {}", path.display()))
        };
        Ok(Self {
            latency_ms: (config.latency_ms_min, config.latency_ms_max),
            seed: config.seed,
            tail: config.tail,
            alpha: config.tail_alpha,
            side_file: config.side_file.as_ref().map(open).transpose()?,
            once_dir: config.once_dir.clone(),
            fail_rows: config.fail_rows.iter().copied().collect(),
            exit_at_row: config.exit_at_row,
            failed_once: Mutex::default(),
            mortal: false,
            working: AtomicUsize::new(0),
            config: config.clone(),
        })
    }

    /// An engine whose process may die at a prompt's request.
    pub(super) fn in_own_process(config: &EngineConfig) -> anyhow::Result<Self> {
        Ok(Self { mortal: true, ..Self::new(config)? })
    }

    /// Whether any row makes progress; a hanging row makes none.
    pub(super) fn is_working(&self) -> bool {
        self.working.load(Ordering::Relaxed) > 0
    }

    /// The row's latency: a number in 0..1 from seed and ID, mapped through the distribution.
    fn latency(&self, item_id: &[u8; 32]) -> Duration {
        let (min, max) = self.latency_ms;
        if max == 0 {
            return Duration::ZERO;
        }
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.seed.to_le_bytes());
        hasher.update(item_id);
        let mut word = [0; 8];
        word.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
        // 53 bits fill a double exactly.
        let unit = (u64::from_le_bytes(word) >> 11) as f64 / (1u64 << 53) as f64;
        let (low, high) = (min.max(1) as f64, max as f64);
        let ms = match self.tail {
            Tail::Uniform => min as f64 + unit * (high - min as f64),
            Tail::Pareto => {
                let rest = (low / high).powf(self.alpha);
                low / (1.0 - unit * (1.0 - rest)).powf(1.0 / self.alpha)
            }
        };
        Duration::from_secs_f64(ms.clamp(min as f64, high) / 1000.0)
    }

    fn note(&self, row: &EngineRow, what: &str) {
        let Some(mut file) = self.side_file.as_ref() else { return };
        let line = format!("{} {} {} {what}\n", row.run.number, row.row, row.attempt);
        if let Err(error) = file.write_all(line.as_bytes()) {
            tracing::warn!(%error, "cannot write to the side file");
        }
    }

    fn failure(&self, row: &EngineRow, prompt: &str) -> Option<EngineFailure> {
        if self.fail_rows.contains(&row.row) {
            return Some(EngineFailure::invalid("MOCK_INVALID", "a row of fail_rows"));
        }
        if prompt.contains(FAIL_ONCE) {
            let failure =
                || EngineFailure::new(FailureClass::Transient, "MOCK_TRANSIENT", "fails once");
            return self.fails_first(row).then(failure);
        }
        let (text, class, code) = FAILURES.iter().find(|(text, ..)| prompt.contains(text))?;
        Some(EngineFailure::new(*class, *code, format!("the prompt contains {text}")))
    }

    /// Whether no engine that shares this one's record has failed this row.
    fn fails_first(&self, row: &EngineRow) -> bool {
        let Some(dir) = &self.once_dir else {
            let mut once = self.failed_once.lock();
            return once.len() < ONCE_MAX && once.insert((row.run.number, row.row));
        };
        let path = dir.join(format!("{}-{}", row.run.number, row.row));
        match OpenOptions::new().write(true).create_new(true).open(&path) {
            Ok(_) => true,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => false,
            Err(error) => {
                tracing::warn!(%error, path = %path.display(), "cannot remember a failed row");
                false
            }
        }
    }

    async fn answer(&self, row: EngineRow) -> Result<Completion, EngineFailure> {
        self.note(&row, "started");
        let request = row.request()?;
        let prompt = answers::prompt_of(&request.input)?;
        if prompt.contains(HANG) {
            eprintln!("mock engine: row {} hangs as its prompt asks", row.row);
            std::future::pending::<()>().await;
        }
        let _working = Working::begin(&self.working);
        let latency = self.latency(&row.item_id);
        if !latency.is_zero() {
            tokio::time::sleep(latency).await;
        }
        let broken = self.exit_at_row.map(|status| Deadly::Exit(status.into()));
        let deadly = Deadly::of(&prompt).or(broken);
        if self.mortal
            && let Some(deadly) = deadly
        {
            deadly.die();
        }
        let failure = deadly.map_or_else(|| self.failure(&row, &prompt), Deadly::spared);
        self.note(&row, "finished");
        if let Some(failure) = failure {
            return Err(failure);
        }
        answers::answer(&self.config, &row.run.model, &request, &prompt)
    }
}

/// Counts a row while it makes progress, and stops on drop.
struct Working<'a>(&'a AtomicUsize);

impl<'a> Working<'a> {
    fn begin(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Working<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Engine for MockEngine {
    fn run(&self, row: EngineRow) -> BoxFuture<'_, Result<Completion, EngineFailure>> {
        timed(row.run.attempt_timeout, self.answer(row)).boxed()
    }

    fn probe(&self) -> BoxFuture<'_, Result<(), String>> {
        futures::future::ready(Ok(())).boxed()
    }

    fn loaded(&self) -> Option<Loaded> {
        Some(offer::routes_only(&routes::SERVED))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::config::EngineKind;
    use crate::engine::test_row;
    use crate::run::{RunInfo, Task};

    fn engine(change: impl FnOnce(&mut EngineConfig)) -> MockEngine {
        let mut config = EngineConfig::new(EngineKind::Mock);
        change(&mut config);
        MockEngine::new(&config).unwrap()
    }

    #[tokio::test]
    async fn a_row_that_takes_longer_than_its_run_allows_is_stopped() {
        let limit = Some(Duration::from_millis(50));
        let run = RunInfo { attempt_timeout: limit, ..RunInfo::for_test(1) };
        let row = test_row(run, 0, r#"{"prompt":"MOCK_HANG"}"#);
        assert_eq!(engine(|_| {}).run(row).await.unwrap_err().code, "ATTEMPT_TIMEOUT");
    }

    #[tokio::test]
    async fn an_answer_is_the_prompt_behind_mock() {
        let engine = engine(|_| {});
        let row = test_row(RunInfo::for_test(1), 0, r#"{"prompt":"two words"}"#);
        let done = engine.run(row).await.unwrap();
        assert_eq!(done.text, "MOCK:two words");
        assert_eq!((done.prompt_tokens, done.completion_tokens), (2, 2));
        let body = r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":"c d"}]}"#;
        let done = engine.run(test_row(RunInfo::for_test(1), 0, body)).await.unwrap();
        assert_eq!((done.text.as_str(), done.finish_reason.as_str()), ("MOCK:c d", "stop"));
    }

    #[tokio::test]
    async fn each_task_has_an_answer_and_n_completions_are_n() {
        let engine = engine(|c| {
            c.loras.insert("l".into(), "/l".into());
        });
        let ask = async |task, body: &str| {
            let run = RunInfo { task, ..RunInfo::for_test(1) };
            engine.run(test_row(run, 0, body)).await
        };
        let extra = |done: &Completion| serde_json::from_str::<Value>(&done.extra).unwrap();
        let three = r#"{"prompt":"a b","sampling_params":{"n":3},"lora":"l"}"#;
        let done = ask(Task::Generate, three).await.unwrap();
        assert_eq!((done.text.as_str(), done.completion_tokens), ("MOCK:a b", 8));
        assert_eq!(extra(&done)["completions"][2]["text"], "MOCK:a b 2");
        let done = ask(Task::Embed, r#"{"prompt":"a"}"#).await.unwrap();
        assert_eq!((done.text.as_str(), done.finish_reason.as_str()), ("", "stop"));
        assert_eq!(extra(&done)["embedding"].as_array().map(Vec::len), Some(8));
        let done = ask(Task::Score, r#"{"query":"q","document":"d"}"#).await.unwrap();
        assert!(extra(&done)["score"].is_f64());
        let line = |model: &str| {
            format!(
                r#"{{"custom_id":"c","method":"POST","url":"/v1/chat/completions","body":{{"model":"{model}","messages":[{{"role":"user","content":"hi"}}]}}}}"#
            )
        };
        let response = extra(&ask(Task::Openai, &line("m")).await.unwrap());
        let body = &response["response"]["body"];
        assert_eq!(body["choices"][0]["message"]["content"], "MOCK:hi");
        for (task, body, code) in [
            (Task::Openai, line("other"), "MODEL_MISMATCH"),
            (Task::Generate, r#"{"prompt":"a","lora":"x"}"#.to_owned(), "UNKNOWN_LORA"),
            (
                Task::Generate,
                r#"{"prompt":"a","sampling_params":{"n":0}}"#.to_owned(),
                "MOCK_INVALID",
            ),
        ] {
            let failure = ask(task, &body).await.unwrap_err();
            assert_eq!((failure.class, &*failure.code), (FailureClass::InvalidRow, code));
        }
    }

    #[tokio::test]
    async fn engines_that_share_a_memory_fail_a_row_once_among_them() {
        let dir = tempfile::tempdir().unwrap();
        let one = engine(|c| c.once_dir = Some(dir.path().to_owned()));
        let other = engine(|c| c.once_dir = Some(dir.path().to_owned()));
        let prompt = format!(r#"{{"prompt":"{FAIL_ONCE}"}}"#);
        let row = test_row(RunInfo::for_test(1), 1, &prompt);
        assert_eq!(one.run(row.clone()).await.unwrap_err().class, FailureClass::Transient);
        assert!(other.run(row).await.is_ok());
        let another = test_row(RunInfo::for_test(2), 1, &prompt);
        assert!(other.run(another).await.is_err(), "a row of another run");
    }

    #[tokio::test]
    async fn a_prompt_can_ask_for_each_failure() {
        let engine = engine(|c| c.fail_rows = vec![9]);
        for (text, class, _) in FAILURES {
            let row = test_row(RunInfo::for_test(1), 0, &format!(r#"{{"prompt":"x {text}"}}"#));
            assert_eq!(engine.run(row).await.unwrap_err().class, class);
        }
        let row = test_row(RunInfo::for_test(1), 9, r#"{"prompt":"x"}"#);
        assert_eq!(engine.run(row).await.unwrap_err().class, FailureClass::InvalidRow);
        let once = test_row(RunInfo::for_test(1), 1, &format!(r#"{{"prompt":"{FAIL_ONCE}"}}"#));
        assert_eq!(engine.run(once.clone()).await.unwrap_err().class, FailureClass::Transient);
        assert!(engine.run(once).await.is_ok());
    }

    #[test]
    fn latencies_are_within_bounds_and_the_same_every_time() {
        for tail in [Tail::Uniform, Tail::Pareto] {
            let engine = || {
                engine(|c| {
                    (c.latency_ms_min, c.latency_ms_max) = (5, 500);
                    (c.seed, c.tail) = (3, tail);
                })
            };
            let (one, two) = (engine(), engine());
            let mut all: Vec<u128> = (0..2000u32)
                .map(|i| {
                    let id = *blake3::hash(&i.to_le_bytes()).as_bytes();
                    assert_eq!(one.latency(&id), two.latency(&id));
                    one.latency(&id).as_millis()
                })
                .collect();
            all.sort_unstable();
            assert!(all[0] >= 5 && all[1999] <= 500);
            let median = all[1000];
            match tail {
                Tail::Uniform => assert!((200..300).contains(&median), "{median}"),
                Tail::Pareto => assert!(median < 15 && all[1980] > 100, "{median} {}", all[1980]),
            }
        }
    }

    #[tokio::test]
    async fn executions_leave_their_lines_in_the_side_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("side");
        let engine = engine(|c| c.side_file = Some(path.clone()));
        engine.run(test_row(RunInfo::for_test(4), 2, r#"{"prompt":"x"}"#)).await.unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text, "4 2 7 started\n4 2 7 finished\n");
    }
}
