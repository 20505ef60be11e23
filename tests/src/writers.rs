//! Clients that write all the time, and the pauses that they see while a test disturbs the cluster.
//!
//! *Invariant:* each writer increments a counter of its own and knows how many increments were acknowledged, so a
//! lost or doubled one shows in the next answer. A pause is the longest wait of any single writer: other writers that
//! are served do not hide it.
//! Absent: a bound on pauses; each test has its own.

use crate::fleet::Fleet;
use crate::wait::eventually;
use anyhow::{Context, Result, ensure};
use rollout_proto::{Client, services, v1};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

const PATIENCE: Duration = Duration::from_secs(60);

fn store() -> Option<v1::StoreName> {
    Some(v1::StoreName { job: "writers".into(), ..Default::default() })
}

/// Increments a counter of its own repeatedly; returns when each increment was acknowledged.
async fn write(
    client: Client,
    writer: usize,
    stop: Arc<AtomicBool>,
    count: Arc<AtomicUsize>,
) -> Result<Vec<Instant>> {
    let session = client.open_session("a writer").await?;
    let mut acknowledged = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let pending = session.request();
        let add = v1::StoreAdd { key: format!("writer-{writer}").into_bytes().into(), delta: 1 };
        let request = v1::StoreApplyRequest {
            request: Some(pending.id()),
            store: store(),
            ops: vec![v1::StoreOp { kind: Some(v1::store_op::Kind::Add(add)) }],
        };
        let answer = client
            .with_leader("add", |channel| {
                let request = request.clone();
                async move { services::store(channel).apply(request).await }
            })
            .await?;
        acknowledged.push(Instant::now());
        count.store(acknowledged.len(), Ordering::Relaxed);
        let said = answer.answers.first().and_then(|a| a.kind.clone());
        let sum = acknowledged.len() as i64;
        let wanted = Some(v1::store_answer::Kind::Number(sum));
        ensure!(said == wanted, "writer {writer}: {said:?} after {sum} acknowledgments");
    }
    Ok(acknowledged)
}

/// The counter under each writer's key.
async fn sums(client: &Client, writers: usize) -> Result<Vec<i64>> {
    let keys = (0..writers).map(|n| format!("writer-{n}").into_bytes().into()).collect();
    let request = v1::StoreReadRequest { store: store(), keys, ..Default::default() };
    let read = client
        .with_leader("read", |channel| {
            let request = request.clone();
            async move { services::store(channel).read(request).await }
        })
        .await?;
    let number = |answer: &v1::StoreAnswer| -> Result<i64> {
        let Some(v1::store_answer::Kind::Value(value)) = &answer.kind else {
            anyhow::bail!("no value: {answer:?}");
        };
        Ok(std::str::from_utf8(value)?.parse()?)
    };
    read.values.iter().map(number).collect()
}

/// The 99th percentile of the last fsyncs of each member's log.
async fn fsync_p99(operator: &Client) -> Result<Vec<Duration>> {
    let asked = operator.each_member(|_, channel| async move {
        services::cluster(channel).counters(v1::CountersRequest {}).await
    });
    let p99 = |answer: v1::CountersResponse| Duration::from_micros(answer.fsync_us_p99);
    // A member that the test has just killed cannot answer.
    let known: Vec<Duration> =
        asked.await.into_iter().filter_map(|(_, answer)| Some(p99(answer.ok()?))).collect();
    ensure!(!known.is_empty(), "no member says how long its fsyncs take");
    Ok(known)
}

/// A step of the test, with its time.
struct Step {
    what: String,
    from: Instant,
    /// `None` while it continues.
    to: Option<Instant>,
}

/// Clients that write until they are stopped, on a runtime that the test does not use.
pub struct Writers {
    runtime: Runtime,
    stop: Arc<AtomicBool>,
    writers: Vec<JoinHandle<Result<Vec<Instant>>>>,
    /// The number of acknowledged writes of each.
    counts: Vec<Arc<AtomicUsize>>,
    steps: Vec<Step>,
}

/// What the writers observed.
pub struct Written {
    /// Acknowledged writes, each present once.
    pub writes: usize,
    /// Each step in order, with the longest time in it in which any one writer got no acknowledgment. That includes
    /// the client's time to find the next leader.
    pub pauses: Vec<(String, Duration)>,
    /// The 99th percentile of the fsyncs of each member that answered, at the end.
    pub fsync_p99: Vec<Duration>,
}

impl Writers {
    /// Starts this many writers.
    ///
    /// # Errors
    /// When they have no usable certificate.
    pub fn start(fleet: &Fleet, writers: usize) -> Result<Self> {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let stop = Arc::new(AtomicBool::new(false));
        let counts: Vec<Arc<AtomicUsize>> = (0..writers).map(|_| Arc::default()).collect();
        let start = |(writer, count): (usize, &Arc<AtomicUsize>)| {
            let client = fleet.client("client", "user")?;
            Ok(runtime.spawn(write(client, writer, stop.clone(), count.clone())))
        };
        let writers = counts.iter().enumerate().map(start).collect::<Result<_>>()?;
        Ok(Self { runtime, stop, writers, counts, steps: Vec::new() })
    }

    /// Waits until each writer gets an acknowledgment again. Call it after an intended outage: clients look for a
    /// leader less and less often while there is none, which would otherwise count against the next step.
    pub fn all_write(&self) {
        let counts = || self.counts.iter().map(|count| count.load(Ordering::Relaxed));
        let before: Vec<usize> = counts().collect();
        eventually("every writer writes", PATIENCE, || {
            counts().zip(&before).all(|(now, before)| now > *before).then_some(())
        });
    }

    /// Starts a step, and ends the previous one.
    pub fn step(&mut self, what: &str) {
        self.rest();
        self.steps.push(Step { what: what.to_owned(), from: Instant::now(), to: None });
    }

    /// Stops measuring until the next step.
    pub fn rest(&mut self) {
        if let Some(step) = self.steps.last_mut() {
            step.to.get_or_insert_with(Instant::now);
        }
    }

    /// Stops the writers, and compares the stored counters with what was acknowledged.
    ///
    /// # Errors
    /// When a write failed, or an acknowledged write is not there exactly once.
    pub fn stop(mut self, fleet: &Fleet) -> Result<Written> {
        self.rest();
        let operator = fleet.client("admin", "operator")?;
        let fsync_p99 = self.runtime.block_on(fsync_p99(&operator))?;
        self.stop.store(true, Ordering::Relaxed);
        let mut each = Vec::new();
        for writer in self.writers {
            each.push(self.runtime.block_on(writer)?.with_context(|| fleet.logs())?);
        }
        let counts: Vec<i64> = each.iter().map(|acknowledged| acknowledged.len() as i64).collect();
        let user = fleet.client("client", "user")?;
        let there = self.runtime.block_on(sums(&user, counts.len()))?;
        ensure!(there == counts, "{counts:?} were acknowledged, {there:?} are there");
        let pauses = self.steps.iter().map(|step| (step.what.clone(), longest_pause(&each, step)));
        let writes = each.iter().map(Vec::len).sum();
        Ok(Written { writes, pauses: pauses.collect(), fsync_p99 })
    }
}

/// The pause of the writer that waited longest within a step.
fn longest_pause(each: &[Vec<Instant>], step: &Step) -> Duration {
    each.iter().map(|acknowledged| pause(acknowledged, step)).max().unwrap_or_default()
}

/// The longest time within a step in which one writer got no acknowledgment.
fn pause(acknowledged: &[Instant], step: &Step) -> Duration {
    longest_gap(acknowledged, step.from, step.to.unwrap_or(step.from))
}

/// The longest time between two of these instants, in order, or between one of them and an end of the period.
pub fn longest_gap(instants: &[Instant], from: Instant, to: Instant) -> Duration {
    let within = instants.iter().filter(|at| (from..=to).contains(*at));
    let mut last = from;
    let mut longest = Duration::ZERO;
    for at in within.copied().chain([to]) {
        longest = longest.max(at - last);
        last = at;
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_bounded_by_its_step_and_counts_from_its_ends() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let step = |from, to| Step { what: String::new(), from: at(from), to: Some(at(to)) };
        let written = [at(5), at(10), at(40), at(45), at(90)];
        assert_eq!(pause(&written, &step(0, 100)), Duration::from_millis(45));
        assert_eq!(pause(&written, &step(0, 50)), Duration::from_millis(30));
        assert_eq!(pause(&written, &step(46, 80)), Duration::from_millis(34), "none within");
        assert_eq!(pause(&[], &step(7, 9)), Duration::from_millis(2));
    }

    #[test]
    fn a_served_writer_does_not_hide_the_pause_of_another() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let step = Step { what: String::new(), from: at(0), to: Some(at(100)) };
        let served: Vec<Instant> = (1..10).map(|n| at(10 * n)).collect();
        let stuck = vec![at(5), at(85)];
        assert_eq!(longest_pause(std::slice::from_ref(&served), &step), Duration::from_millis(10));
        let wanted = Duration::from_millis(80);
        assert_eq!(longest_pause(&[served.clone(), stuck.clone()], &step), wanted);
        assert_eq!(longest_pause(&[stuck, served.clone()], &step), wanted, "in whatever order");
        let never = Duration::from_millis(100);
        assert_eq!(longest_pause(&[served, Vec::new()], &step), never, "one was never served");
    }
}
