//! An agent that a test starts and stops, and what it leaves on disk.

use std::path::Path;
use std::time::{Duration, Instant};

use rollout_worker::{AgentError, Config, DrainOrder, Drained, Drains, EngineConfig, EngineKind};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::fake::{Fake, Outcome};

/// An agent on its own runtime, so that it can end as by SIGKILL.
pub(crate) struct Agent {
    runtime: Option<Runtime>,
    drains: Drains,
    drain: Duration,
    pub(crate) ended: Option<JoinHandle<Result<Drained, AgentError>>>,
}

impl Agent {
    pub(crate) fn start(config: Config) -> Self {
        config.check().unwrap();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.unwrap();
        let drains = Drains::default();
        let drain = Duration::from_millis(config.timing.drain_ms);
        let ended = runtime.spawn(rollout_worker::run(config, drains.clone()));
        Self { runtime: Some(runtime), drains, drain, ended: Some(ended) }
    }

    pub(crate) async fn drain(mut self) -> Drained {
        self.drains.request(DrainOrder::rows_for(self.drain, "the test is over"));
        self.ended.take().unwrap().await.unwrap().unwrap()
    }

    pub(crate) async fn kill(mut self) {
        let runtime = self.runtime.take().unwrap();
        tokio::task::spawn_blocking(move || runtime.shutdown_timeout(Duration::from_secs(10)))
            .await
            .unwrap();
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

pub(crate) fn config(dir: &Path, fake: &Fake, engine: impl FnOnce(&mut EngineConfig)) -> Config {
    let mut mock = EngineConfig::new(EngineKind::Mock);
    mock.side_file = Some(dir.join("side"));
    engine(&mut mock);
    let mut config = Config {
        name: "w1".into(),
        data_dir: dir.join("w1"),
        endpoints: fake.state.lock().addrs.clone(),
        engine: vec![mock],
        ..Config::default()
    };
    config.tls.insecure_plaintext = true;
    config.part.linger_ms = 50;
    config
}

pub(crate) fn prompts(count: usize) -> Vec<String> {
    (0..count).map(|row| format!(r#"{{"prompt":"prompt {row}"}}"#)).collect()
}

/// The rows of the side file's lines of one kind, in order.
pub(crate) fn side(dir: &Path, kind: &str) -> Vec<u64> {
    let text = std::fs::read_to_string(dir.join("side")).unwrap_or_default();
    let words = text.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    words.filter(|words| words[3] == kind).map(|words| words[1].parse().unwrap()).collect()
}

pub(crate) fn assert_all_answered(fake: &Fake) {
    for (row, state) in fake.state.lock().rows.iter().enumerate() {
        let expected = Outcome::Done(format!("MOCK:prompt {row}"));
        assert_eq!(state.outcome.as_ref(), Some(&expected), "row {row}");
    }
}

pub(crate) fn spooled(dir: &Path) -> usize {
    let spool = dir.join("w1/spool/slot-0");
    let copy = dir.join("copy");
    let Ok(files) = std::fs::read_dir(spool) else { return 0 };
    let mut rows = 0;
    for file in files {
        if std::fs::copy(file.unwrap().path(), &copy).is_ok() {
            rows += rollout_storage::Spool::open(&copy).map_or(0, |(_, rows)| rows.len());
        }
    }
    rows
}

pub(crate) async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(30), "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
