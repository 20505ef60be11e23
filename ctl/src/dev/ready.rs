//! From started processes to a cluster that serves: formed, led, with its workers registered.
//!
//! Invariant: a process that ends meanwhile is reported at once with the end of its log, not after a timeout.
//! Absent: unbounded waits.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rollout_proto::{Client, ClientConfig, ClientError, DialMap, ErrorCode, Security, v1};

use super::cluster::{DevCluster, Kind};
use super::{config, process};
use crate::rolloutctl::cluster::bootstrap;
use crate::rolloutctl::status::{self, Survey};

const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(100);
const LOG_LINES: usize = 20;

/// A client of the cluster with the given credentials.
///
/// # Errors
/// The credentials cannot be read.
pub fn client(cluster: &DevCluster, security: Security) -> Result<Client, ClientError> {
    Client::new(ClientConfig::new(config::endpoints(cluster.saved()), security))
}

/// Starts the members, forms the cluster at the first start, and waits for a leader that serves.
///
/// # Errors
/// A process ends, or a minute passes; the error says what is missing.
pub async fn start_members(cluster: &mut DevCluster) -> anyhow::Result<()> {
    cluster.start_all(Kind::Member)?;
    if !cluster.saved().bootstrapped {
        form(cluster).await?;
        cluster.set_bootstrapped()?;
    }
    wait_for(cluster, "a leader", |survey| survey.leader.is_some()).await
}

/// Starts the workers, and waits until all are registered.
///
/// # Errors
/// A process ends, or a minute passes; the error says what is missing.
pub async fn start_workers(cluster: &mut DevCluster) -> anyhow::Result<()> {
    cluster.start_all(Kind::Worker)?;
    let workers =
        cluster.processes().iter().filter(|process| process.kind == Kind::Worker).count() as u32;
    wait_for(cluster, "its workers", move |survey| survey.workers_ready >= workers).await
}

/// Forms the cluster, as soon as its members listen.
async fn form(cluster: &mut DevCluster) -> anyhow::Result<()> {
    let members: Vec<v1::MemberInfo> = cluster
        .saved()
        .members
        .iter()
        .map(|member| {
            bootstrap::member(
                &member.name,
                &member.peer_addr(),
                &member.client_addr(),
                &member.zone,
            )
        })
        .collect();
    let first = members[0].client_addr.clone();
    let dial_map = DialMap::default();
    let store_url = cluster.layout().store_url();
    let deadline = Instant::now() + PATIENCE;
    loop {
        match bootstrap::form(
            &first,
            &cluster.admin(),
            &dial_map,
            members.clone(),
            store_url.clone(),
        )
        .await
        {
            Ok(_) => return Ok(()),
            Err(ClientError::Rpc(error)) if error.code == ErrorCode::AlreadyBootstrapped => {
                return Ok(());
            }
            Err(error) if Instant::now() >= deadline => {
                return Err(error).context("the cluster could not be formed");
            }
            Err(_) => check_alive(cluster)?,
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn wait_for<F: Fn(&Survey) -> bool>(
    cluster: &mut DevCluster,
    what: &str,
    enough: F,
) -> anyhow::Result<()> {
    let admin = client(cluster, cluster.admin())?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let survey = status::survey(&admin).await;
        if enough(&survey) {
            return Ok(());
        }
        check_alive(cluster)?;
        if Instant::now() >= deadline {
            bail!("waited {PATIENCE:?} for {what}; {}", survey.problems());
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Fails with the end of its log if a process ended.
fn check_alive(cluster: &mut DevCluster) -> anyhow::Result<()> {
    if let Some(exit) = cluster.reap()?.into_iter().next() {
        let log = cluster.layout().log(&exit.name);
        bail!(
            "{} {} ended with {} while starting; the end of {}:\n{}",
            exit.kind.noun(),
            exit.name,
            process::describe_exit(exit.status),
            log.display(),
            process::log_tail(&log, LOG_LINES)
        );
    }
    Ok(())
}
