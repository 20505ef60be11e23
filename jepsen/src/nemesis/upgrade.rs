//! Upgrades the cluster while clients run: the members get this build in place of an earlier one, one after another,
//! and one of them goes back in between. Then the cluster's version is raised.
//!
//! *Invariant:* an upgrade of the members counts only if each exited by itself with status 0 and was back before the
//! next one. A raise counts only if the version rose, and the earlier build then refused to start.

use super::{Effect, Nemesis, Undo};
use crate::fleet::MEMBERS;
use crate::observe::Observers;
use crate::recorder::Recorder;
use anyhow::Result;
use rand::Rng;
use rand::seq::SliceRandom;
use rollout_proto::v1;
use std::time::{Duration, Instant};

/// The time between two members, in which clients use a cluster of both builds.
const BETWEEN: Duration = Duration::from_secs(1);
/// Time limit of one call, and for the version to rise.
const CALL_LIMIT: Duration = Duration::from_secs(3);
const RAISE_LIMIT: Duration = Duration::from_secs(15);
const AGAIN_AFTER: Duration = Duration::from_millis(200);
/// Time limit for the earlier build to refuse to start.
const REFUSAL_LIMIT: Duration = Duration::from_secs(10);

impl Nemesis {
    /// Gives each member this build, in an order that the seed decides. Once the version may have been raised, there is
    /// no way back, and the members are only restarted.
    pub(super) async fn upgrade_members(
        &mut self,
        watch: &Observers,
        recorder: &Recorder,
    ) -> Result<Effect> {
        if self.raised {
            return self.roll(watch, recorder).await;
        }
        self.revive(recorder)?;
        let mut order: [usize; MEMBERS] = [0, 1, 2];
        order.shuffle(&mut self.rng);
        let [first, second, third] = order;
        let steps =
            [(first, false), (second, false), (first, true), (third, false), (first, false)];
        let mut proven = true;
        for (at, earlier) in steps {
            proven &= self.start_build(at, earlier, watch, recorder).await?;
            tokio::time::sleep(BETWEEN).await;
        }
        Ok(Effect { on: self.names(&order), proven, undo: Undo::Start(order.to_vec()) })
    }

    /// Raises the version of a cluster whose members all have this build, and starts the earlier build on the data of
    /// one of them.
    pub(super) async fn upgrade_version(
        &mut self,
        watch: &Observers,
        recorder: &Recorder,
    ) -> Result<Effect> {
        if self.raised {
            return self.roll(watch, recorder).await;
        }
        self.revive(recorder)?;
        let all: Vec<usize> = (0..MEMBERS).collect();
        let mut proven = true;
        for &at in &all {
            if self.fleet.has_earlier_build(at) {
                proven &= self.start_build(at, false, watch, recorder).await?;
            }
        }
        proven = proven && self.raise(watch).await;
        if proven {
            let at = self.rng.random_range(0..MEMBERS);
            proven = self.is_refused(at, watch, recorder).await?;
        }
        Ok(Effect { on: self.names(&all), proven, undo: Undo::Start(all) })
    }

    /// Restarts a member with one of the builds. True if it exited by itself and is back.
    async fn start_build(
        &mut self,
        at: usize,
        earlier: bool,
        watch: &Observers,
        recorder: &Recorder,
    ) -> Result<bool> {
        self.fleet.use_earlier_build(at, earlier);
        self.restart(at, watch, recorder).await
    }

    /// Raises the version to the newest one of this build. True if it rose.
    async fn raise(&mut self, watch: &Observers) -> bool {
        let (begun, mut before) = (Instant::now(), None);
        while begun.elapsed() < RAISE_LIMIT {
            let dry_run = before.is_none();
            // The answer to a request that takes effect may be lost.
            self.raised |= !dry_run;
            if let Some(answer) = self.request_version(watch, dry_run).await {
                match before {
                    Some(before) if answer.version > before => return true,
                    // The earlier build supports the newest version too.
                    None if answer.version == answer.before => return false,
                    _ => before = Some(before.unwrap_or(answer.before)),
                }
            }
            tokio::time::sleep(AGAIN_AFTER).await;
        }
        false
    }

    /// Asks the leader to raise the version as far as all members support, or to which one it would.
    async fn request_version(
        &self,
        watch: &Observers,
        dry_run: bool,
    ) -> Option<v1::UpgradeClusterResponse> {
        let mut cluster = self.fleet.observer(watch.leader()?).ok()?;
        let request = cluster.upgrade_cluster(v1::UpgradeClusterRequest { version: 0, dry_run });
        let answer = tokio::time::timeout(CALL_LIMIT, request).await.ok()?.ok()?;
        Some(answer.into_inner())
    }

    /// Stops a member and starts the earlier build on its data, then this build again. True if the earlier one exited
    /// with an error and without a panic.
    async fn is_refused(
        &mut self,
        at: usize,
        watch: &Observers,
        recorder: &Recorder,
    ) -> Result<bool> {
        if !self.fleet.runs(at) {
            return Ok(false); // The other fault of the pair holds it.
        }
        let stopped = self.stop(at, recorder).await?;
        self.fleet.use_earlier_build(at, true);
        self.fleet.start_member(at)?;
        let begun = Instant::now();
        let mut refused = None;
        while refused.is_none() && begun.elapsed() < REFUSAL_LIMIT {
            let death = self.fleet.died(at);
            refused = death.map(|d| !d.status.success() && !d.panicked && !d.port_taken);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.fleet.kill(at);
        self.fleet.use_earlier_build(at, false);
        self.fleet.start_member(at)?;
        let back = self.back(at, watch).await;
        Ok(stopped && refused == Some(true) && back)
    }
}
