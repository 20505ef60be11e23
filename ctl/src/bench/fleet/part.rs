//! One process of the generator: its share of the workers, on one thread, driven by its parent line by line.
//!
//! Invariant: each line on stdin is one order, answered by one line on stdout. The process ends when stdin does, so it
//! does not outlive its parent. Absent: the cluster's processes, and what members count.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::{JoinSet, LocalSet};

use super::plan::Plan;
use super::row_record::{RowRecord, RowSets, RunOf, Shared};
use super::tally::Tally;
use super::worker::{Orders, Worker};
use crate::bench::open_files;
use crate::output::write_stdout;
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// The parent's orders.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Order {
    /// Start with this plan.
    Start(Box<Plan>),
    /// Runs were created.
    Runs(Vec<RunOf>),
    /// Report the counters; with `reset`, times start a new window.
    Report { reset: bool },
    /// Cut off this many of a thousand workers; 0 lets them come back.
    Lose { per_mille: u32 },
    /// Report finished rows, request no more, deregister.
    Stop,
    /// The rows of every run.
    Rows,
}

/// The answer to an order.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum OrderReply {
    Done,
    Report(Box<Tally>),
    /// After [`Order::Stop`]: how many workers have not ended yet.
    Left(usize),
    Rows(Vec<RowSets>),
}

/// The lines of stdin, read by a dedicated thread.
fn lines_of_stdin() -> anyhow::Result<mpsc::Receiver<std::io::Result<String>>> {
    let (out, lines) = mpsc::channel(1);
    let read = move || {
        let each = std::io::stdin().lines();
        // After an error the reader is gone.
        let _ = each.map(|line| out.blocking_send(line)).take_while(Result::is_ok).count();
    };
    std::thread::Builder::new().name("orders".into()).spawn(read)?;
    Ok(lines)
}

struct Part {
    record: Shared,
    orders: watch::Sender<Orders>,
    workers: JoinSet<anyhow::Result<()>>,
}

/// No arguments.
#[derive(Debug, clap::Args)]
pub(crate) struct FleetPartArgs {}

impl Verb for FleetPartArgs {
    const KIND: Kind<Self> = Kind::Once;

    /// Executes orders until stdin ends.
    async fn run(self, _globals: &Globals) -> anyhow::Result<()> {
        open_files::raise();
        let mut lines = lines_of_stdin()?;
        let local = LocalSet::new();
        let mut part = Part {
            record: RowRecord::new(),
            orders: watch::Sender::default(),
            workers: JoinSet::new(),
        };
        local.run_until(async { Box::pin(part.run_orders(&local, &mut lines)).await }).await
    }
}

impl Part {
    async fn run_orders(
        &mut self,
        local: &LocalSet,
        lines: &mut mpsc::Receiver<std::io::Result<String>>,
    ) -> anyhow::Result<()> {
        loop {
            let line = tokio::select! {
                line = lines.recv() => line.transpose()?,
                Some(ended) = self.workers.join_next(), if !self.workers.is_empty() => {
                    ended.context("a worker panicked")??;
                    if !self.orders.borrow().stop {
                        bail!("a worker ended before it was told to");
                    }
                    continue;
                }
            };
            let Some(line) = line else { return Ok(()) };
            let order: Order = serde_json::from_str(&line).context("this is no order")?;
            let reply = self.follow(order, local);
            write_stdout(&(serde_json::to_string(&reply)? + "\n"))?;
        }
    }

    fn follow(&mut self, order: Order, local: &LocalSet) -> OrderReply {
        match order {
            Order::Start(plan) => self.start(*plan, local),
            Order::Runs(runs) => self.record.borrow_mut().learn(runs),
            Order::Report { reset } => {
                let mut record = self.record.borrow_mut();
                let report = record.report();
                if reset {
                    record.reset();
                }
                return OrderReply::Report(Box::new(report));
            }
            Order::Lose { per_mille } => self.orders.send_modify(|orders| {
                orders.returned = (per_mille == 0).then(Instant::now);
                orders.lost_per_mille = per_mille;
            }),
            Order::Stop => {
                self.orders.send_if_modified(|orders| !std::mem::replace(&mut orders.stop, true));
                return OrderReply::Left(self.workers.len());
            }
            Order::Rows => return OrderReply::Rows(self.record.borrow().row_sets().collect()),
        }
        OrderReply::Done
    }

    fn start(&mut self, plan: Plan, local: &LocalSet) {
        let gate = Arc::new(Semaphore::new(plan.connecting as usize));
        let plan = Rc::new(plan);
        for number in plan.workers() {
            let (record, orders) = (self.record.clone(), self.orders.subscribe());
            let worker = Worker::new(number, plan.clone(), record, orders, gate.clone());
            let run = async move { worker.run().await.with_context(|| format!("worker {number}")) };
            self.workers.spawn_local_on(run, local);
        }
    }
}
