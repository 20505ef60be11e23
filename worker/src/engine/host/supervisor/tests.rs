//! The test plays the engine's process over its own socket.

use std::sync::Arc;

use parking_lot::Mutex;

use super::super::{Forget, HostEngine, Program, Rows};
use super::*;
use crate::engine::{Engine, RowEnd, test_row};
use crate::run::RunInfo;

const STALL: Duration = Duration::from_millis(400);
const START: Duration = Duration::from_secs(10);

/// The engine's side of the socket.
struct Played {
    socket: UnixStream,
}

impl Played {
    async fn send(&mut self, message: &FromEngine) {
        frame::write(&mut self.socket, message).await.unwrap();
    }

    async fn receive(&mut self) -> ToEngine {
        let heard = timeout(Duration::from_secs(10), frame::read(&mut self.socket)).await;
        heard.expect("the agent says something").unwrap()
    }

    /// The ticket of the next row that it receives.
    async fn started(&mut self) -> u64 {
        match self.receive().await {
            ToEngine::Start(row) => row.ticket,
            other => panic!("no row: {other:?}"),
        }
    }
}

struct Agent<T = EndReason> {
    shared: Arc<Shared>,
    /// Ends with the life, and returns why it ended.
    lives: tokio::task::JoinHandle<T>,
    news: mpsc::Receiver<News>,
    state: watch::Receiver<State>,
}

impl Agent {
    /// One life of an engine that is ready for rows.
    async fn start(dir: &std::path::Path) -> (Self, Played) {
        Self::start_with(dir, STALL).await
    }

    async fn start_with(dir: &std::path::Path, stall_timeout: Duration) -> (Self, Played) {
        Self::start_as(dir, stall_timeout, |supervisor, process| async move {
            supervisor.live(&mut Life::begin(process)).await
        })
        .await
    }

    async fn ends(self) -> EndReason {
        let ended = timeout(10 * STALL, self.lives).await;
        ended.expect("the life ends").unwrap()
    }
}

impl<T: Send + 'static> Agent<T> {
    async fn start_as<L: Future<Output = T> + Send + 'static>(
        dir: &std::path::Path,
        stall_timeout: Duration,
        lives: impl FnOnce(Supervisor, Process) -> L,
    ) -> (Self, Played) {
        let (agent, mut played) = Self::begin(dir, stall_timeout, START, lives).await;
        played.send(&FromEngine::Hello { version: frame::VERSION }).await;
        played.send(&FromEngine::Ready).await;
        (agent, played)
    }

    /// An engine that has received the agent's hello and sent nothing yet.
    async fn begin<L: Future<Output = T> + Send + 'static>(
        dir: &std::path::Path,
        stall_timeout: Duration,
        start_timeout: Duration,
        lives: impl FnOnce(Supervisor, Process) -> L,
    ) -> (Self, Played) {
        let program = Program {
            path: "/bin/sleep".into(),
            args: vec!["60".into()],
            env: Vec::new(),
            withheld: Vec::new(),
            slot: 0,
            crash_file: dir.join("crash.json"),
        };
        let mut process = program.start().await.unwrap();
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        theirs.set_nonblocking(true).unwrap();
        process.socket = ours;
        let config = HostConfig {
            program,
            options: "{}".to_owned(),
            gpus: None,
            stall_timeout,
            start_timeout,
            kill_timeout: Duration::from_millis(200),
        };
        let shared = Arc::new(Shared::default());
        let (sender, news) = mpsc::channel(16);
        let (told, state) = watch::channel(State::Starting);
        let stop = CancellationToken::new();
        let supervisor =
            Supervisor { config, shared: shared.clone(), news: sender, state: told, stop };
        let lives = tokio::spawn(lives(supervisor, process));
        let mut played = Played { socket: UnixStream::from_std(theirs).unwrap() };
        assert!(matches!(played.receive().await, ToEngine::Hello { .. }));
        (Self { shared, lives, news, state }, played)
    }

    fn rows(&self) -> &Mutex<Rows> {
        &self.shared.rows
    }

    /// A caller requests a row.
    fn want(&self) -> (u64, oneshot::Receiver<Result<Completion, crate::engine::EngineFailure>>) {
        let (reply, outcome) = oneshot::channel();
        let ticket = self.rows().lock().add(
            test_row(RunInfo::for_test(1), 0, "{}"),
            reply,
            oneshot::channel().0,
        );
        self.shared.changed.notify_one();
        (ticket, outcome)
    }

    /// Its caller no longer wants the row.
    fn cancel(&self, ticket: u64) {
        drop(Forget { shared: &self.shared, ticket });
    }

    /// The slot's side of the engine.
    fn engine(self) -> HostEngine {
        let stop = CancellationToken::new();
        let (shared, state, news) = (self.shared, self.state, tokio::sync::Mutex::new(self.news));
        HostEngine { shared, news, state, _stop: stop.drop_guard() }
    }
}

#[tokio::test]
async fn an_engine_that_does_not_stop_an_unwanted_row_hangs_and_gets_no_other_row() {
    let dir = tempfile::tempdir().unwrap();
    let (agent, mut engine) = Agent::start(dir.path()).await;
    let (ticket, _outcome) = agent.want();
    assert_eq!(engine.started().await, ticket);
    agent.cancel(ticket);
    assert_eq!(engine.receive().await, ToEngine::Cancel { ticket });
    let (next, mut outcome) = agent.want();
    let shared = agent.shared.clone();
    assert_eq!(agent.ends().await, EndReason::Stalled);
    let mut rows = shared.rows.lock();
    assert!(!rows.waiting[&next].started() && outcome.try_recv().is_err(), "it waits");
    assert_eq!(rows.bury(), (Vec::new(), 1), "and is no suspect");
}

#[tokio::test]
async fn an_engine_that_answers_for_an_unwanted_row_lives_and_gets_the_next_row() {
    let dir = tempfile::tempdir().unwrap();
    let (agent, mut engine) = Agent::start(dir.path()).await;
    let (mut last, _outcome) = agent.want();
    assert_eq!(engine.started().await, last);
    // Longer than a hang in total.
    for _ in 0..4 {
        tokio::time::sleep(STALL / 2).await;
        agent.cancel(last);
        let (next, _) = agent.want();
        assert_eq!(engine.receive().await, ToEngine::Cancel { ticket: last });
        engine.send(&FromEngine::Stopped { ticket: last }).await;
        assert_eq!(engine.started().await, next);
        last = next;
    }
    agent.cancel(last);
    assert_eq!(engine.receive().await, ToEngine::Cancel { ticket: last });
    engine.send(&FromEngine::Stopped { ticket: last }).await;
    tokio::time::sleep(2 * STALL).await;
    assert!(!agent.lives.is_finished(), "an engine that has nothing to do does not hang");
}

#[tokio::test]
async fn a_rows_time_begins_when_the_engine_is_given_it() {
    let dir = tempfile::tempdir().unwrap();
    let (agent, mut played) = Agent::start_with(dir.path(), Duration::from_secs(60)).await;
    let engine = Arc::new(agent.engine());
    let run = |limit_ms: u64| {
        let limit = Some(Duration::from_millis(limit_ms));
        let info = RunInfo { attempt_timeout: limit, ..RunInfo::for_test(1) };
        let engine = engine.clone();
        tokio::spawn(async move { engine.run(test_row(info, 0, "{}")).await })
    };
    let hanging = run(100);
    let ticket = played.started().await;
    let failure = hanging.await.unwrap().unwrap_err();
    assert_eq!((&*failure.code, failure.end), ("ATTEMPT_TIMEOUT", RowEnd::Failed));
    assert_eq!(played.receive().await, ToEngine::Cancel { ticket });
    // Until the engine has answered for it, others wait: one times out, which is no fault of its own, and one succeeds.
    let (in_vain, waits) = (run(100), run(4000));
    assert_eq!(in_vain.await.unwrap().unwrap_err().end, RowEnd::NotStarted);
    tokio::time::sleep(Duration::from_millis(2000)).await;
    played.send(&FromEngine::Stopped { ticket }).await;
    let ticket = played.started().await;
    tokio::time::sleep(Duration::from_millis(2500)).await;
    let done = Completion::default();
    played.send(&frame::of_row(ticket, Ok(done.clone()))).await;
    assert_eq!(waits.await.unwrap(), Ok(done), "it had its whole time");
}

#[tokio::test]
async fn a_killed_engine_that_does_not_end_is_reported_dead_and_has_no_successor_yet() {
    let dir = tempfile::tempdir().unwrap();
    let (end, ended) = oneshot::channel();
    let (mut agent, mut engine) = Agent::start_as(dir.path(), STALL, |supervisor, process| {
        // As if a driver held it: its end is never reported.
        let process = Process { ended, ..process };
        let before = Counts { oom_kills: None, xids: 0 };
        async move { supervisor.life(process, before).await }
    })
    .await;
    assert_eq!(agent.news.recv().await, Some(News::Ready));
    let (ticket, mut outcome) = agent.want();
    assert_eq!(engine.started().await, ticket);
    let news = timeout(Duration::from_secs(20), agent.news.recv()).await;
    let Some(News::Died(death)) = news.expect("its death is reported") else { panic!("no death") };
    assert!(death.down && death.evidence.stalled, "{death:?}");
    assert_eq!(death.rows.len(), 1);
    assert!(death.message.contains("does not end"), "{}", death.message);
    assert_eq!(outcome.try_recv().unwrap().unwrap_err().end, RowEnd::Died);
    assert!(matches!(&*agent.state.borrow(), State::Down(why) if why.contains("does not end")));
    // The slot may send another row before it processes the news.
    let (_, late) = agent.want();
    let late = timeout(Duration::from_secs(10), late).await.expect("it comes back").unwrap();
    let failure = late.unwrap_err();
    assert_eq!(failure.end, RowEnd::NotStarted);
    assert!(failure.message.contains("does not end"), "{}", failure.message);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!agent.lives.is_finished(), "its devices are its own yet");
    end.send(Ok(std::process::ExitStatus::default())).unwrap();
    let lived = timeout(Duration::from_secs(20), agent.lives).await;
    assert_eq!(lived.expect("the next may begin").unwrap(), Some(true));
}

#[tokio::test]
async fn rows_come_back_until_an_engine_is_ready_again() {
    let dir = tempfile::tempdir().unwrap();
    let begun = Agent::begin(dir.path(), STALL, START, |supervisor, process| async move {
        supervisor.shared.rows.lock().give_back("the last one did not begin");
        supervisor.live(&mut Life::begin(process)).await
    });
    let (mut agent, mut engine) = begun.await;
    let (_, early) = agent.want();
    let early = timeout(Duration::from_secs(10), early).await.expect("it comes back").unwrap();
    assert_eq!(early.unwrap_err().end, RowEnd::NotStarted);
    engine.send(&FromEngine::Hello { version: frame::VERSION }).await;
    engine.send(&FromEngine::Ready).await;
    assert_eq!(agent.news.recv().await, Some(News::Ready));
    let (ticket, _outcome) = agent.want();
    assert_eq!(engine.started().await, ticket);
}

#[tokio::test]
async fn an_engine_that_does_not_start_reports_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    for (start, said, told) in [
        (300, None, "the engine was not ready within 300 ms"),
        (10_000, Some(FromEngine::Hello { version: 77 }), "the engine speaks version 77 of the"),
        (10_000, Some(FromEngine::Ready), "the engine broke the protocol"),
    ] {
        let start = Duration::from_millis(start);
        let begun = Agent::begin(dir.path(), STALL, start, |supervisor, process| async move {
            supervisor.life(process, Counts { oom_kills: None, xids: 0 }).await
        });
        let (mut agent, mut engine) = begun.await;
        if let Some(said) = said {
            engine.send(&said).await;
        }
        let news = timeout(Duration::from_secs(20), agent.news.recv()).await;
        let Some(News::Died(death)) = news.expect("its death is reported") else { panic!("none") };
        assert!(death.message.starts_with(told), "{}", death.message);
        assert!(death.down && death.evidence.garbled && !death.message.contains("rows"));
    }
}
