//! Polls every member directly, outside the faulty network: its role, term and epoch; and from time to time, and at
//! the end, its digests.

use crate::events::EventKind;
use crate::fleet::{Fleet, FleetMember, MEMBERS};
use crate::recorder::Recorder;
use anyhow::{Context, Result, bail};
use rollout_proto::v1;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// How often members are compared during the run.
const COMPARE_EVERY: Duration = Duration::from_secs(5);
const EVERY: Duration = Duration::from_millis(150);
const LIMIT: Duration = Duration::from_millis(400);
/// Time limit of one call for digests at the end.
const ASK_LIMIT: Duration = Duration::from_secs(5);
/// Older observations do not show which member leads now.
const FRESH: Duration = Duration::from_millis(1500);

const LEADER: &str = "leader";

/// A status with the time and the process life in which it was reported.
type TimedStatus = (Instant, u64, v1::MemberStatus);
type LastStatuses = Arc<Mutex<BTreeMap<usize, TimedStatus>>>;

pub struct Observers {
    seen: LastStatuses,
    tasks: Vec<JoinHandle<()>>,
}

impl Observers {
    /// Starts an observer for each member.
    ///
    /// # Errors
    /// When a certificate cannot be used.
    pub fn start(fleet: &Fleet, recorder: &Arc<Recorder>) -> Result<Self> {
        let seen = LastStatuses::default();
        let mut tasks = Vec::new();
        let mut all = Vec::new();
        for (at, member) in fleet.members.iter().enumerate() {
            let (cluster, member) = (fleet.observer(at)?, member.clone());
            let watching = watch(at, member, cluster, recorder.clone(), seen.clone());
            tasks.push(tokio::spawn(watching));
            all.push((fleet.members[at].name.clone(), fleet.observer(at)?));
        }
        tasks.push(tokio::spawn(compare(all, recorder.clone())));
        Ok(Self { seen, tasks })
    }

    /// The last known leader, if it was seen recently.
    pub fn leader(&self) -> Option<usize> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let leads = seen.iter().filter(|(_, (at, _, s))| s.role == LEADER && at.elapsed() < FRESH);
        leads.max_by_key(|(_, (_, _, status))| status.term).map(|(at, _)| *at)
    }

    /// The last status of a member, however old.
    pub fn last(&self, at: usize) -> Option<v1::MemberStatus> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.get(&at).map(|(_, _, status)| status.clone())
    }

    /// The last life of a member's process in which it reported a status.
    pub fn life(&self, at: usize) -> Option<u64> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.get(&at).map(|(_, life, _)| *life)
    }
}

impl Drop for Observers {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Whether this member, asked now and directly, says that it leads.
pub async fn leads(fleet: &Fleet, at: usize) -> bool {
    let Ok(mut cluster) = fleet.observer(at) else { return false };
    let result = tokio::time::timeout(LIMIT, cluster.status(v1::StatusRequest::default())).await;
    let Ok(Ok(answer)) = result else { return false };
    answer.into_inner().self_.is_some_and(|own| own.role == LEADER)
}

type Cluster = v1::cluster_client::ClusterClient<tonic::transport::Channel>;

async fn watch(
    at: usize,
    member: FleetMember,
    mut cluster: Cluster,
    recorder: Arc<Recorder>,
    seen: LastStatuses,
) {
    let mut beat = tokio::time::interval(EVERY);
    beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        beat.tick().await;
        let life = member.lives.load(Ordering::Relaxed);
        let result =
            tokio::time::timeout(LIMIT, cluster.status(v1::StatusRequest::default())).await;
        let Ok(Ok(answer)) = result else { continue };
        // Drop an answer that was in transit while the member restarted: its life is ambiguous.
        if life != member.lives.load(Ordering::Relaxed) {
            continue;
        }
        let answer = answer.into_inner();
        let own = answer.self_.unwrap_or_default();
        let mut all = seen.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(at, (Instant::now(), life, own.clone()));
        drop(all);
        let header = answer.header.unwrap_or_default();
        recorder.event(EventKind::Status {
            member: member.name.clone(),
            life,
            role: own.role,
            term: own.term,
            epoch: header.coord_epoch,
            applied: header.applied_index,
            installed: own.snapshots_installed,
        });
    }
}

/// Has members compute their digests at one index now and then, and records those that answer.
async fn compare(mut members: Vec<(String, Cluster)>, recorder: Arc<Recorder>) {
    loop {
        tokio::time::sleep(COMPARE_EVERY).await;
        let mut fixed = None;
        for (_, cluster) in &mut members {
            let request = cluster.request_digest(v1::RequestDigestRequest {});
            if let Ok(Ok(answer)) = tokio::time::timeout(LIMIT, request).await {
                fixed = Some(answer.into_inner().index);
                break;
            }
        }
        let Some(index) = fixed else { continue };
        for (member, cluster) in &mut members {
            let request = cluster.digests(v1::DigestsRequest { index, wait_ms: 500 });
            // A member that is cut off, stopped or down cannot answer; the others are compared anyway.
            let Ok(Ok(answer)) = tokio::time::timeout(LIMIT * 3, request).await else { continue };
            let answer = answer.into_inner();
            recorder.event(EventKind::Compared {
                member: member.clone(),
                index: answer.index,
                chain: hex(&answer.chain),
                state: hex(&answer.state),
            });
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Has every member compute its digests at one index, and records them.
///
/// # Errors
/// When no leader fixes the index, or a member does not answer within `limit`.
pub async fn digests(fleet: &Fleet, recorder: &Recorder, limit: Duration) -> Result<()> {
    let begun = Instant::now();
    let mut fixed = None;
    while fixed.is_none() && begun.elapsed() < limit {
        for at in 0..MEMBERS {
            let mut cluster = fleet.observer(at)?;
            let request = cluster.request_digest(v1::RequestDigestRequest {});
            if let Ok(Ok(answer)) = tokio::time::timeout(ASK_LIMIT, request).await {
                fixed = Some(answer.into_inner().index);
                break;
            }
        }
    }
    let index = fixed.context("no leader fixes an index for the digests")?;
    for (at, member) in fleet.members[..MEMBERS].iter().enumerate() {
        let mut cluster = fleet.observer(at)?;
        let answer = loop {
            let request = v1::DigestsRequest { index, wait_ms: 1500 };
            // A member that accepts the call and never answers must not block the verdict.
            match tokio::time::timeout(ASK_LIMIT, cluster.digests(request)).await {
                Ok(Ok(answer)) => break answer.into_inner(),
                Ok(Err(status)) if begun.elapsed() > limit => {
                    return Err(status).with_context(|| format!("digests of {}", member.name));
                }
                Err(_) if begun.elapsed() > limit => {
                    bail!("digests of {}: no answer in time", member.name);
                }
                _ => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        };
        recorder.event(EventKind::Digest {
            member: member.name.clone(),
            index: answer.index,
            chain: hex(&answer.chain),
            state: hex(&answer.state),
            image: hex(&answer.image),
            error: answer.image_error,
        });
    }
    Ok(())
}
