//! Owns: the whole agent: how it is assembled at the start, and the order in which it shuts down.
//!
//! Invariant: no slot starts before its spool is read. The agent exits cleanly only after the leader has answered for
//! every row that it held.
//! Absent: signals and the command line; the program passes in the requests to stop.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
use futures::FutureExt;
use rollout_proto::v1::{self, ClusterHeader};
use rollout_proto::{CallOptions, Client, ClientError, ErrorCode, services};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};

use crate::agent_error::AgentError;
use crate::combiner::Combiner;
use crate::config::Config;
use crate::connect::connect;
use crate::disk::DataDir;
use crate::drain::{DrainOrder, Drains};
use crate::engine::{self, SlotPlace};
use crate::enrollment;
use crate::fence::{Fence, fence};
use crate::part::OpenPart;
use crate::run::{FetchRun, RunError, RunInfo, Runs};
use crate::segments::SegmentCache;
use crate::session::{Link, Session, SlotLink};
use crate::slot::{self, SlotCommand, SlotParts};
use crate::spool::SlotSpool;
use crate::store_gateway;
use crate::stores::Stores;

const DEREGISTER_TIMEOUT: Duration = Duration::from_secs(5);

/// How a drained agent ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drained {
    /// False if results stay in the spool, for the next start in the same directory.
    pub everything_answered: bool,
}

/// Runs an agent until a drain is requested.
pub async fn run(mut config: Config, drains: Drains) -> Result<Drained, AgentError> {
    let mut drained = drains.watch();
    let _renewing = tokio::select! {
        // First, so that an agent that has nothing to wait for can still start.
        biased;
        certified = enrollment::certify(&mut config) => certified?,
        // invariant: this function holds `drains`, so the sender lives.
        _ = drained.wait_for(Option::is_some) => return Ok(Drained { everything_answered: false }),
    };
    let (failed, mut disk_failed) = mpsc::channel(1);
    let config = Arc::new(config);
    let agent = Agent::start(config, failed, drains.clone()).await.map_err(AgentError::Start)?;
    let mut session = agent.session;
    let mut orders = drains.watch();
    tokio::select! {
        // invariant: this function holds `drains`, so the sender lives.
        _ = orders.wait_for(Option::is_some) => {}
        Some(reason) = disk_failed.recv() => {
            session.abort();
            return Err(AgentError::Disk(reason));
        }
        ended = &mut session => {
            return Err(ended.unwrap_or(AgentError::Internal("the session's task panicked")));
        }
    }
    let commands: Vec<_> = agent.slots.iter().map(|slot| slot.commands.clone()).collect();
    let ended = futures::future::join_all(agent.slots.into_iter().map(|slot| slot.ended));
    let ended = tokio::select! {
        biased;
        ended = ended => Some(ended),
        // Without the session, the slots would get no more answers.
        ended = &mut session => {
            return Err(ended.unwrap_or(AgentError::Internal("the session's task panicked")));
        }
        () = pass_on(orders, commands) => None,
        Some(reason) = disk_failed.recv() => {
            session.abort();
            return Err(AgentError::Disk(reason));
        }
    };
    session.abort();
    // Drop everything that it held, including its connection's span, which must be sent before the process ends.
    let _ = session.await;
    let all = |ended: Vec<Result<bool, _>>| ended.iter().all(|slot| matches!(slot, Ok(true)));
    let everything_answered = ended.is_some_and(all);
    let number = agent.current.load(Ordering::Acquire);
    if everything_answered && number != 0 {
        deregister(&agent.client, number, agent.instance).await;
    }
    Ok(Drained { everything_answered })
}

/// Tells the slots how long rows may run, and again when that time is shortened. Returns when the time is over.
async fn pass_on(
    mut orders: watch::Receiver<Option<DrainOrder>>,
    slots: Vec<mpsc::Sender<SlotCommand>>,
) {
    loop {
        let Some(order) = orders.borrow_and_update().clone() else { return };
        // All at once, so that a slot that hangs does not delay the others. A slot that has ended is drained.
        let tell = slots.iter().map(|slot| slot.send(SlotCommand::Drain(order.rows_until)));
        let notices = futures::future::join_all(tell).then(|_| futures::future::pending::<()>());
        tokio::select! {
            () = notices => {}
            () = tokio::time::sleep_until(order.gone_by.into()) => {
                tracing::warn!("the drain deadline has passed");
                return;
            }
            // No sender is left, so the deadline stays as it is.
            Ok(()) = orders.changed() => {}
        }
    }
}

async fn deregister(client: &Client, session: u64, instance: u64) {
    let options = CallOptions::default().timeout(DEREGISTER_TIMEOUT);
    let request = v1::DeregisterRequest { session, nacks: Vec::new(), instance };
    let ended = client.with_leader_opts("deregister", options, |channel| {
        let request = request.clone();
        async move { services::worker(channel).deregister(request).await }
    });
    match ended.await {
        Ok(_) => tracing::info!(session, "deregistered"),
        // The leader ends a silent session by itself.
        Err(error) => tracing::warn!(%error, session, "could not deregister"),
    }
}

struct RunningSlot {
    commands: mpsc::Sender<SlotCommand>,
    ended: JoinHandle<bool>,
}

struct Agent {
    client: Client,
    session: JoinHandle<AgentError>,
    current: Arc<AtomicU64>,
    /// Drawn for this process.
    instance: u64,
    slots: Vec<RunningSlot>,
    /// Dropped with the agent, which ends it.
    _store_gateway: JoinSet<()>,
}

/// What all slots share.
struct Shared {
    config: Arc<Config>,
    fence: Fence,
    eligibility: Arc<Notify>,
    ran_dry: Arc<Notify>,
    stores: Arc<Stores>,
    runs: Arc<Runs>,
    segments: Arc<SegmentCache>,
    combiner: Arc<Combiner>,
    failed: mpsc::Sender<String>,
}

impl Agent {
    async fn start(
        config: Arc<Config>,
        failed: mpsc::Sender<String>,
        drains: Drains,
    ) -> anyhow::Result<Self> {
        let disk = Arc::new(DataDir::open(&config.data_dir)?);
        let state = disk.load()?;
        let client = client(&config, &disk)?;
        let seen = ClusterHeader {
            cluster_id: state.cluster_id.clone(),
            coord_epoch: state.coord_epoch,
            ..ClusterHeader::default()
        };
        match client.observe(&seen) {
            // The client's own file may be newer; then the agent's has nothing new.
            Err(error) if error.code != ErrorCode::StaleEpoch => {
                return Err(error).context("the directory's own files disagree");
            }
            _ => {}
        }
        if let Some(aside) = disk.set_aside_foreign_spool(&client.cluster_id())? {
            tracing::error!(moved_to = %aside.display(), cluster_id = client.cluster_id(),
                "the spool is another cluster's, its rows are not sent");
        }
        let store_gateway = start_store_gateway(&config, &disk)?;
        let (keeper, fence) = fence();
        let shared = Shared {
            fence,
            eligibility: Arc::default(),
            ran_dry: Arc::default(),
            stores: Arc::new(Stores::new(config.store.urls.clone())),
            runs: Arc::new(Runs::new(fetch_run(client.clone()))),
            segments: Arc::new(SegmentCache::new(config.cache.bytes)),
            combiner: Arc::new(Combiner::new(config.part.clone())),
            failed,
            config: config.clone(),
        };
        let (slots, mut links) = start_slots(&shared, &disk).await?;
        // This runs while the engines load.
        let installed = crate::versions::installed(&config.engine).await;
        let of_slots = config.engine.iter().zip(&installed.of_blocks);
        let of_slots = of_slots.flat_map(|(block, own)| (0..block.slots).map(move |_| own));
        links.iter_mut().zip(of_slots).for_each(|(link, own)| link.versions.clone_from(own));
        let versions = installed.all;
        let (current, instance) = (Arc::new(AtomicU64::new(0)), rand::random());
        let session = Session {
            config,
            client: client.clone(),
            disk,
            state,
            instance,
            versions,
            slots: links,
            stores: shared.stores,
            fence: keeper,
            eligibility: shared.eligibility,
            ran_dry: shared.ran_dry,
            drains,
            current: current.clone(),
            link: Link::new(),
        };
        let session = tokio::spawn(session.run());
        Ok(Self { client, session, current, instance, slots, _store_gateway: store_gateway })
    }
}

/// It has its own connections: a job's waits are long by design and not worth a warning.
fn start_store_gateway(config: &Config, disk: &DataDir) -> anyhow::Result<JoinSet<()>> {
    let mut running = JoinSet::new();
    if let Some(gateway) = &config.store_gateway {
        let mut connect = connect(config)?;
        connect.members_file = Some(disk.gateway_members());
        let serving = store_gateway::keep_serving(
            Client::new(connect)?,
            config.namespace.clone(),
            gateway.clone(),
        );
        running.spawn(serving);
    }
    Ok(running)
}

fn client(config: &Config, disk: &DataDir) -> anyhow::Result<Client> {
    let mut client = connect(config)?;
    client.members_file = Some(disk.members());
    client.on_wait = Some(Arc::new(|what| tracing::warn!("{what}")));
    Ok(Client::new(client)?)
}

fn fetch_run(client: Client) -> FetchRun {
    Box::new(move |run| {
        let client = client.clone();
        async move {
            let answer =
                client.with_leader_opts("get run", CallOptions::read(), |channel| async move {
                    services::worker(channel).get_run(v1::GetRunRequest { run }).await
                });
            let answer = answer.await.map_err(|error| of_run(run, &error))?;
            RunInfo::from_wire(answer)
        }
        .boxed()
    })
}

fn of_run(run: u32, error: &ClientError) -> RunError {
    let reason = error.to_string();
    match error.code() {
        Some(ErrorCode::RunNotFound | ErrorCode::RunEnded) => RunError::Gone { run, reason },
        _ => RunError::Unavailable { run, reason },
    }
}

async fn start_slots(
    shared: &Shared,
    disk: &DataDir,
) -> anyhow::Result<(Vec<RunningSlot>, Vec<SlotLink>)> {
    let mut spools = open_spools(disk)?;
    let blocks = shared.config.engine.iter();
    let engines: Vec<_> =
        blocks.flat_map(|block| (0..block.slots).map(move |n| (block, n))).collect();
    // Slots that no longer exist leave their parts to the first slot.
    let orphans = spools.split_off(&(engines.len() as u32));
    let dir = &shared.config.data_dir;
    let built = (0..).zip(&engines).map(|(number, (block, of_block))| {
        engine::build(block, SlotPlace { number, of_block: *of_block }, dir)
    });
    let built = built.collect::<Result<Vec<_>, _>>()?;
    let reasons = futures::future::join_all(built.iter().map(|engine| engine.probe())).await;
    let (mut slots, mut links) = (Vec::new(), Vec::new());
    let mut inherited = orphans.into_values();
    for (index, ((block, _), (engine, probed))) in
        engines.into_iter().zip(built.into_iter().zip(reasons)).enumerate()
    {
        let (index, reason) = (index as u32, probed.err());
        if let Some(reason) = &reason {
            tracing::warn!(slot = index, reason, "the engine cannot be reached yet");
        }
        let mut spool = match spools.remove(&index) {
            Some(spool) => spool,
            None => SlotSpool::open(&slot_dir(disk, index))?,
        };
        for other in inherited.by_ref() {
            spool.adopt(other)?;
        }
        let parts = slot_parts(shared, block, index, engine.clone(), spool)?;
        let handle = slot::start(parts, reason);
        links.push(SlotLink {
            block: block.clone(),
            engine,
            versions: BTreeMap::new(),
            commands: handle.commands.clone(),
            lease_table: handle.lease_table,
            ineligible: handle.ineligible,
        });
        slots.push(RunningSlot { commands: handle.commands, ended: handle.ended });
    }
    Ok((slots, links))
}

fn slot_parts(
    shared: &Shared,
    block: &crate::config::EngineConfig,
    index: u32,
    engine: Arc<dyn engine::Engine>,
    mut spool: SlotSpool,
) -> anyhow::Result<SlotParts> {
    let recovered: Vec<OpenPart> = std::mem::take(&mut spool.parts);
    let next_part = spool.next_number();
    let timing = &shared.config.timing;
    Ok(SlotParts {
        index,
        engine,
        block: block.clone(),
        concurrency: block.concurrency as usize,
        seats: block.seats() as usize,
        credit: shared.config.credit_rows(block).map(|rows| rows as usize),
        credit_tokens: shared.config.credit.tokens.unwrap_or(0),
        part: shared.config.part.clone(),
        probe_every: Duration::from_millis(timing.probe_ms),
        store_refused: Duration::from_millis(timing.store_refused_ms),
        fence: shared.fence.clone(),
        eligibility: shared.eligibility.clone(),
        ran_dry: shared.ran_dry.clone(),
        stores: shared.stores.clone(),
        runs: shared.runs.clone(),
        segments: shared.segments.clone(),
        combiner: shared.combiner.clone(),
        spool: spool.start(shared.failed.clone()).context("cannot start the spool's thread")?,
        recovered,
        next_part,
    })
}

fn slot_dir(disk: &DataDir, index: u32) -> std::path::PathBuf {
    disk.spool().join(format!("slot-{index}"))
}

/// Every slot's spool that an earlier process left behind.
fn open_spools(disk: &DataDir) -> anyhow::Result<BTreeMap<u32, SlotSpool>> {
    let root = disk.spool();
    std::fs::create_dir_all(&root).with_context(|| format!("cannot create {}", root.display()))?;
    let mut spools = BTreeMap::new();
    let entries =
        std::fs::read_dir(&root).with_context(|| format!("cannot list {}", root.display()))?;
    for entry in entries {
        let name = entry?.file_name();
        let index = name.to_str().and_then(|name| name.strip_prefix("slot-")?.parse().ok());
        if let Some(index) = index {
            spools.insert(index, SlotSpool::open(&slot_dir(disk, index))?);
        }
    }
    Ok(spools)
}
