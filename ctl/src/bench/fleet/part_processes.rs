//! The processes of the generator, as their parent sees them.
//!
//! Invariant: every order goes to all of them, and all answer before the next one. A process that ends or hangs ends
//! the benchmark. Dropping this struct kills them. Absent: what they do (`part`).

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use rollout_proto::programs;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use super::part::{Order, OrderReply};
use super::plan::Plan;
use super::row_record::RunOf;
use super::tally::{Spreads, Tally};

/// A process that takes longer than this to answer an order hangs.
const PATIENCE: Duration = Duration::from_secs(120);

struct Process {
    child: Child,
    orders: ChildStdin,
    stdout: Lines<BufReader<ChildStdout>>,
}

/// All processes.
pub(super) struct PartProcesses {
    processes: Vec<Process>,
}

impl PartProcesses {
    /// Starts `processes`, which share the workers of the plan evenly.
    pub(super) async fn start(plan: &Plan, processes: u32) -> anyhow::Result<Self> {
        let mut all = Self { processes: Vec::new() };
        for number in 0..processes {
            let own = Plan { first: number, step: processes, ..plan.clone() };
            let mut process = Process::start()?;
            process.order(&Order::Start(Box::new(own))).await?;
            all.processes.push(process);
        }
        Ok(all)
    }

    pub(super) fn len(&self) -> usize {
        self.processes.len()
    }

    async fn ask(&mut self, order: &Order) -> anyhow::Result<Vec<OrderReply>> {
        for process in &mut self.processes {
            process.send(order).await?;
        }
        let mut all = Vec::new();
        for process in &mut self.processes {
            all.push(process.receive().await?);
        }
        Ok(all)
    }

    /// Announces created runs to all of them.
    pub(super) async fn learn(&mut self, runs: Vec<RunOf>) -> anyhow::Result<()> {
        self.ask(&Order::Runs(runs)).await.map(drop)
    }

    /// Cuts off this many of a thousand workers; 0 lets them come back.
    pub(super) async fn lose(&mut self, per_mille: u32) -> anyhow::Result<()> {
        self.ask(&Order::Lose { per_mille }).await.map(drop)
    }

    /// Tells the workers to end; returns how many have not yet.
    pub(super) async fn stop(&mut self) -> anyhow::Result<usize> {
        let replies = self.ask(&Order::Stop).await?;
        Ok(replies
            .iter()
            .map(|reply| if let OrderReply::Left(left) = reply { *left } else { 0 })
            .sum())
    }

    /// The counters of all. With `reset`, times start a new window.
    pub(super) async fn report(&mut self, reset: bool) -> anyhow::Result<(Tally, Spreads)> {
        let (mut sum, mut spreads) = (Tally::default(), Spreads::new());
        for reply in self.ask(&Order::Report { reset }).await? {
            let OrderReply::Report(tally) = reply else {
                bail!("a process of the generator reports nothing")
            };
            sum.add(&tally, &mut spreads);
        }
        Ok((sum, spreads))
    }

    /// The rows that each process has started and seen accepted, by process.
    pub(super) async fn rows(&mut self) -> anyhow::Result<Vec<OrderReply>> {
        self.ask(&Order::Rows).await
    }
}

impl Process {
    fn start() -> anyhow::Result<Self> {
        let mut child = Command::from(programs::own()?.command())
            .args(["bench", "fleet-part"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("cannot start a process of the generator")?;
        let orders = child.stdin.take().context("a process without stdin")?;
        let stdout = child.stdout.take().context("a process without stdout")?;
        Ok(Self { child, orders, stdout: BufReader::new(stdout).lines() })
    }

    async fn order(&mut self, order: &Order) -> anyhow::Result<OrderReply> {
        self.send(order).await?;
        self.receive().await
    }

    async fn send(&mut self, order: &Order) -> anyhow::Result<()> {
        let line = serde_json::to_string(order)? + "\n";
        let sent = self.orders.write_all(line.as_bytes()).await;
        sent.with_context(|| format!("process {:?} of the generator has ended", self.child.id()))
    }

    async fn receive(&mut self) -> anyhow::Result<OrderReply> {
        let id = self.child.id();
        let line = timeout(PATIENCE, self.stdout.next_line()).await;
        let line = line.with_context(|| format!("process {id:?} of the generator hangs"))??;
        let line = line.with_context(|| format!("process {id:?} of the generator has ended"))?;
        Ok(serde_json::from_str(&line)?)
    }
}
