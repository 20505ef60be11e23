//! Starts and stops all parts of the daemon, in the order that safety requires.
//!
//! *Invariant:* a member listens for its peers before it requests votes, and hands leadership over before it stops
//! listening to workers.

use crate::config::Config;
use crate::enrollment::CertificateIssuer;
use crate::gc;
use crate::gc::run_stores::RunStores;
use crate::grpc::body_budget::BodyBudgetLayer;
use crate::grpc::caller::Caller;
use crate::grpc::epoch_gate::EpochGate;
use crate::grpc::middleware::MiddlewareLayer;
use crate::grpc::position_layer::PositionLayer;
use crate::grpc::revoked_certificates;
use crate::grpc::store_probe::StoreProbe;
use crate::grpc::trace_layer::Trace;
use crate::grpc::{
    BarrierService, CertificatesService, CheckpointsService, ClusterService, DatasetsService,
    DigestPace, DryRunsService, EnrollmentService, EventsService, ForwardService, ItemsService,
    JobsService, KeysService, MaintenanceService, MembersService, NamespacesService,
    RendezvousService, RunsService, ShardsService, Shared, StoreService, TokensService, Waits,
    WorkerService,
};
use crate::http;
use crate::leader::fence::Fence;
use crate::leader::state::{self, LeaderState};
use crate::leader::stuck_runs::StuckRuns;
use crate::leader::webhooks::Webhooks;
use crate::observe::audit::{AuditLayer, AuditLog};
use crate::observe::metrics::MetricsPage;
use crate::observe::open_files::{self, Bounded, Shares};
use crate::observe::telemetry;
use crate::openai::batch_work::BatchWork;
use crate::openai::listener::{ApiPort, ApiServer};
use anyhow::{Context, Result};
use metrics_exporter_prometheus::PrometheusHandle;
use rollout_ledger::Ledger;
use rollout_proto::{AuthzLayer, Incoming, MESSAGE_BYTES_MAX, Role, ServerTls, Supervisor, v1};
use rollout_raft::Node;
use rollout_storage::BlobStore;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;

/// How long open streams may take to end after leadership was handed over.
const STREAMS_END_WITHIN: Duration = Duration::from_secs(1);

/// The longest that an unenrolled client's request may take, and then its connection.
const ENROLLMENT_TIMEOUT: Duration = Duration::from_secs(20);
/// Size limit of an unenrolled client's message: a token and a signing request, which has bounds of its own.
const ENROLLMENT_MESSAGE_BYTES_MAX: usize = 16 * 1024;

/// Runs a member until SIGTERM or SIGINT. A second such signal during the hand-over ends it at once. SIGHUP, with
/// which operators ask daemons to reload files, reloads the certificates.
///
/// # Errors
/// The cause of a failed start, by name: a file, an address, a data directory.
pub async fn run(config: Config) -> Result<()> {
    let metrics = metrics_exporter_prometheus::PrometheusBuilder::new()
        .install_recorder()
        .context("cannot start metrics")?;
    let spans = telemetry::export(&config)?;
    let ended = run_until_signal(config, metrics).await;
    if let Some(spans) = spans {
        spans.finish().await;
    }
    ended
}

async fn run_until_signal(config: Config, metrics: PrometheusHandle) -> Result<()> {
    // Register before slow work such as reading the log, during which a signal would end the process.
    let hangup = signal(SignalKind::hangup()).context("cannot wait for SIGHUP")?;
    let files = open_files::raise_limit();
    let shares = Shares::of(files, config.api.is_some());
    tracing::info!(files, ?shares, "connection limits");
    let ports = Ports::bind(&config, &shares).await?;
    let issuer = CertificateIssuer::open(&config)?.map(Arc::new);
    let revocations = config.raft.revocations.clone();
    let tls = ServerTls::refusing(&config.security, revocations.clone()).context("[tls]")?;
    let store = BlobStore::open(&config.store_url).context("[store] url")?;
    let stores = RunStores::new(store.clone(), &config.store_urls).context("[store] urls")?;
    let hooks = Webhooks::open(&config.webhooks).context("[webhooks]")?.map(Arc::new);
    let audit = AuditLog::open(&config.name, &config.audit).context("[audit] file")?;
    let audit = Arc::new(audit);
    let tls = tls.with_on_revoked(audit.clone().on_revoked());

    let node = Node::open(config.raft.clone()).await?;
    if node.is_waiting() {
        tracing::info!("the data directory is empty: waiting to be made part of a cluster");
    }
    // Before the first connection is accepted.
    revoked_certificates::refresh(&node, &revocations, &mut None);
    let revoking = tokio::spawn(revoked_certificates::follow(node.clone(), revocations.clone()));
    let stop = CancellationToken::new();
    let current = state::Current::default();
    let fence = Fence::start().context("cannot start the watchdog")?;
    let (led, certified) = ((node.clone(), current.clone()), (tls.clone(), issuer.clone()));
    let metrics = MetricsPage::new(metrics, &config, led, certified);
    let shared = Arc::new(Shared {
        node: node.clone(),
        probe: StoreProbe::new(store.clone(), &config.name),
        current: current.clone(),
        started: Instant::now(),
        hooks: hooks.clone(),
        stores: stores.clone(),
        metrics,
        issuer,
        tls,
        stuck: StuckRuns::default(),
        revocations,
        digest_pace: DigestPace::default(),
        config,
    });
    let batches = BatchWork::start(shared.clone(), store.clone(), stop.clone())?;
    let servers = ports.serve(&shares, (shared.clone(), audit), store, &stop)?;
    let retention = shared.config.retention;
    let collect = move |leader: &Arc<LeaderState>| gc::start(leader, &stores, retention);
    let workers = shared.config.workers.clone();
    let follow = state::follow(node.clone(), workers, current.clone(), fence, (hooks, collect));
    let following = tokio::spawn(follow);
    tracing::info!(
        name = shared.config.name,
        client = shared.config.advertise_client,
        peer = shared.config.advertise_peer,
        "member started"
    );
    let alive = until_stopped(hangup, shared).await?;
    stop_gently(&node, &current, &stop).await;
    drop(batches);
    servers.end().await;
    revoking.abort();
    node.stop().await;
    let _ = tokio::time::timeout(STREAMS_END_WITHIN, following).await;
    alive.abort();
    Ok(())
}

/// Reports to the supervisor until a signal to stop arrives. Returns the task that goes on reporting.
async fn until_stopped(hangup: Signal, shared: Arc<Shared>) -> Result<JoinHandle<()>> {
    // A member that waits to join a cluster counts as started, so that the supervisor does not restart it.
    let supervisor = Supervisor::from_env();
    supervisor.ready();
    let reloaded = shared.tls.clone();
    let standing = move || http::standing(&shared).1;
    let alive = tokio::spawn(supervisor.clone().keep_alive(standing));
    let mut signals = Signals::listen(hangup)?;
    signals.stop(&reloaded).await;
    tracing::info!("stopping");
    tokio::spawn(signals.stop_at_once());
    supervisor.stopping();
    Ok(alive)
}

/// The ports of a member, open and not served yet.
struct Ports {
    client: TcpListener,
    peer: TcpListener,
    http: TcpListener,
    enrollment: Option<EnrollmentPort>,
    api: Option<ApiPort>,
}

impl Ports {
    async fn bind(config: &Config, shares: &Shares) -> Result<Self> {
        Ok(Self {
            client: bind("client", config.listen_client).await?,
            peer: bind("peer", config.listen_peer).await?,
            http: bind("http", config.listen_http).await?,
            enrollment: EnrollmentPort::bind(config, shares.unenrolled).await?,
            api: ApiPort::bind(config, shares.api).await?,
        })
    }

    fn serve(
        self,
        shares: &Shares,
        (shared, audit): (Arc<Shared>, Arc<AuditLog>),
        store: BlobStore,
        stop: &CancellationToken,
    ) -> Result<Servers> {
        let (node, tls) = (shared.node.clone(), shared.tls.clone());
        // On the threads of consensus, because a flood of work must not delay a heartbeat.
        let peer = tls.clone().only(Role::Member).incoming(self.peer).at_most(shares.peers);
        let peers = node.runtime().spawn(serve_peers(peer, node.clone(), stop.clone()));
        let client = tls
            .incoming(self.client)
            .at_most(shares.clients)
            .at_most_of_one_identity(shares.clients / 2);
        let audited = (shared.clone(), audit);
        let enrolling =
            self.enrollment.map(|port| tokio::spawn(port.serve(audited.clone(), stop.clone())));
        let api = self.api.map(|port| port.serve(audited.clone(), store.clone(), stop.clone()));
        let api = api.transpose()?;
        let clients = tokio::spawn(serve_clients(client, audited, store, stop.clone()));
        let http = Bounded::new(self.http, shares.http, http::OPEN_MAX);
        let probes = tokio::spawn(http::serve(http, shared, stop.clone()));
        Ok(Servers { peers, clients, enrolling, probes, api })
    }
}

/// The servers of the ports.
struct Servers {
    peers: JoinHandle<Result<()>>,
    clients: JoinHandle<Result<()>>,
    enrolling: Option<JoinHandle<Result<()>>>,
    probes: JoinHandle<std::io::Result<()>>,
    api: Option<ApiServer>,
}

impl Servers {
    async fn end(self) {
        let Self { peers, clients, enrolling, probes, api } = self;
        let api = async {
            if let Some(api) = api {
                api.end().await;
            }
        };
        // The epoch ended with the hand-over. If there was none, it ends with consensus.
        let streams = async { tokio::join!(peers, clients, api) };
        let _ = tokio::time::timeout(STREAMS_END_WITHIN, streams).await;
        probes.abort();
        // A client that has no certificate by now asks another member.
        if let Some(enrolling) = enrolling {
            enrolling.abort();
        }
    }
}

/// The enrollment port, for callers that have no certificate yet.
struct EnrollmentPort(Incoming);

impl EnrollmentPort {
    /// Listens on the enrollment port, if it is configured.
    async fn bind(config: &Config, connections_max: usize) -> Result<Option<Self>> {
        let Some(settings) = &config.enrollment else { return Ok(None) };
        let listener = bind("enrollment", settings.listen).await?;
        let tls = ServerTls::for_unenrolled(&config.security).context("[tls]")?;
        Ok(Some(Self(tls.incoming(listener).at_most(connections_max))))
    }

    /// Serves one method, with small messages, few requests at a time and short connections.
    async fn serve(
        self,
        (shared, audit): (Arc<Shared>, Arc<AuditLog>),
        stop: CancellationToken,
    ) -> Result<()> {
        let enrollment = EnrollmentService(shared);
        let enrollment = v1::enrolment_server::EnrolmentServer::new(enrollment)
            .max_decoding_message_size(ENROLLMENT_MESSAGE_BYTES_MAX);
        server()
            .concurrency_limit_per_connection(2)
            .max_concurrent_streams(4)
            .timeout(ENROLLMENT_TIMEOUT)
            .max_connection_age(ENROLLMENT_TIMEOUT)
            .max_connection_age_grace(ENROLLMENT_TIMEOUT)
            .layer(MiddlewareLayer(Trace))
            // The position goes to the audit log, not to a caller without a certificate.
            .layer(MiddlewareLayer(PositionLayer::InAuditOnly))
            .layer(AuditLayer(audit))
            .layer(AuthzLayer::new())
            .add_service(enrollment)
            .serve_with_incoming_shutdown(self.0, stop.cancelled_owned())
            .await
            .context("the enrollment port ended")
    }
}

async fn bind(what: &str, addr: std::net::SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(addr).await.with_context(|| format!("cannot listen on {addr} ({what})"))
}

/// Signals from a supervisor or an operator.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    fn listen(hangup: Signal) -> Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?,
            interrupt: signal(SignalKind::interrupt()).context("cannot wait for SIGINT")?,
            hangup,
        })
    }

    /// Waits for a signal to stop. Meanwhile it handles SIGHUP, which would otherwise end the process without a
    /// hand-over.
    async fn stop(&mut self, tls: &ServerTls) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return,
                _ = self.interrupt.recv() => return,
                _ = self.hangup.recv() => {
                    let certificates = match (tls.refresh(), tls.refused()) {
                        (true, _) => "taken".to_owned(),
                        (false, None) => "unchanged".to_owned(),
                        (false, Some(why)) => format!("refused: {why}"),
                    };
                    tracing::info!(certificates, "SIGHUP: checked the certificate files; other settings are read only at startup");
                }
            }
        }
    }

    /// A second signal means that the operator does not want to wait for the hand-over.
    async fn stop_at_once(mut self) {
        let number = tokio::select! {
            _ = self.terminate.recv() => 15,
            _ = self.interrupt.recv() => 2,
        };
        tracing::warn!("second stop signal: stopping at once, without a transfer of leadership");
        std::process::exit(128 + number);
    }
}

async fn stop_gently(node: &Node, current: &state::Current, stop: &CancellationToken) {
    let leader = current.read().clone();
    if let Some(leader) = leader {
        leader.report_own_stop().await;
    }
    if node.lease_valid() {
        match node.leave_to_stop().await {
            Ok(()) => tracing::info!("leadership was transferred"),
            Err(error) => tracing::warn!(%error, "leadership was not transferred"),
        }
    }
    node.announce_stop().await;
    stop.cancel();
}

/// Size limit of a request of a service that takes no rows: 4,096 names fit, and many small fields stay small when
/// decoded.
const SMALL_MESSAGE_BYTES_MAX: usize = 2 << 20;
/// Size limit of a request that names rows.
const ITEMS_MESSAGE_BYTES_MAX: usize = 4 << 20;
/// Size limit of a request to the shared store: 4,096 keys of 1 KiB, or the values of one command.
const STORE_MESSAGE_BYTES_MAX: usize = 5 << 20;

/// A service that accepts requests of the given size. Answers may have [`MESSAGE_BYTES_MAX`].
macro_rules! bounded {
    ($service:expr, $request_bytes_max:expr) => {
        $service
            .max_decoding_message_size($request_bytes_max)
            .max_encoding_message_size(MESSAGE_BYTES_MAX)
    };
}

/// A service that accepts small requests.
macro_rules! small {
    ($module:ident :: $server:ident, $service:expr) => {
        bounded!(v1::$module::$server::new($service), SMALL_MESSAGE_BYTES_MAX)
    };
}

async fn serve_clients(
    incoming: Incoming,
    (shared, audit): (Arc<Shared>, Arc<AuditLog>),
    store: BlobStore,
    stop: CancellationToken,
) -> Result<()> {
    let runs = v1::runs_server::RunsServer::new(RunsService(shared.clone()));
    let items = v1::items_server::ItemsServer::new(ItemsService(shared.clone()));
    let shared_store = v1::store_server::StoreServer::new(StoreService::new(shared.clone()));
    let waits = Waits::new(shared.clone(), Ledger::training_changes);
    let datasets = v1::datasets_server::DatasetsServer::new(DatasetsService(shared.clone()));
    let shards = ShardsService::new(shared.clone(), waits.clone());
    let jobs = v1::jobs_server::JobsServer::new(JobsService::new(shared.clone(), store.clone()));
    let checkpoints = CheckpointsService::new(shared.clone(), waits, store);
    let job_waits = Waits::new(shared.clone(), Ledger::job_changes);
    let rendezvous = RendezvousService::new(shared.clone(), job_waits.clone());
    let barrier = BarrierService::new(shared.clone(), job_waits);
    let training = (&shards, &checkpoints, &rendezvous, &barrier);
    let memory = BodyBudgetLayer::new();
    let dry_runs = DryRunsService::new((shared.clone(), memory.clone()), training);
    let dry_runs = v1::dry_runs_server::DryRunsServer::new(dry_runs);
    let shards = v1::shards_server::ShardsServer::new(shards);
    let checkpoints = v1::checkpoints_server::CheckpointsServer::new(checkpoints);
    let rendezvous = v1::rendezvous_server::RendezvousServer::new(rendezvous);
    let barrier = v1::barrier_server::BarrierServer::new(barrier);
    let worker = v1::worker_server::WorkerServer::new(WorkerService::new(shared.clone()));
    let cluster = v1::cluster_server::ClusterServer::new(ClusterService(shared.clone()));
    let members = v1::members_server::MembersServer::new(MembersService(shared.clone()));
    let events = v1::events_server::EventsServer::new(EventsService::new(shared.clone()));
    let maintenance =
        v1::maintenance_server::MaintenanceServer::new(MaintenanceService::new(shared.clone()));
    server()
        .layer(MiddlewareLayer(Trace))
        .layer(MiddlewareLayer(PositionLayer::InAnswers))
        .layer(AuditLayer(audit))
        .layer(AuthzLayer::refusing(shared.revocations.clone()))
        .layer(EpochGate(shared.clone()))
        .layer(MiddlewareLayer(Caller))
        .layer(memory)
        .add_service(bounded!(runs, MESSAGE_BYTES_MAX))
        .add_service(bounded!(worker, MESSAGE_BYTES_MAX))
        .add_service(bounded!(shared_store, STORE_MESSAGE_BYTES_MAX))
        .add_service(bounded!(items, ITEMS_MESSAGE_BYTES_MAX))
        .add_service(bounded!(rendezvous, SMALL_MESSAGE_BYTES_MAX))
        .add_service(bounded!(barrier, SMALL_MESSAGE_BYTES_MAX))
        .add_service(bounded!(datasets, SMALL_MESSAGE_BYTES_MAX))
        .add_service(bounded!(shards, SMALL_MESSAGE_BYTES_MAX))
        .add_service(bounded!(checkpoints, SMALL_MESSAGE_BYTES_MAX))
        .add_service(bounded!(jobs, SMALL_MESSAGE_BYTES_MAX))
        .add_service(bounded!(cluster, SMALL_MESSAGE_BYTES_MAX))
        .add_service(bounded!(members, SMALL_MESSAGE_BYTES_MAX))
        .add_service(bounded!(events, SMALL_MESSAGE_BYTES_MAX))
        .add_service(bounded!(maintenance, SMALL_MESSAGE_BYTES_MAX))
        .add_service(small!(namespaces_server::NamespacesServer, NamespacesService(shared.clone())))
        .add_service(small!(tokens_server::TokensServer, TokensService(shared.clone())))
        .add_service(small!(keys_server::KeysServer, KeysService(shared.clone())))
        .add_service(small!(enrolment_server::EnrolmentServer, EnrollmentService(shared.clone())))
        .add_service(small!(
            certificates_server::CertificatesServer,
            CertificatesService(shared.clone())
        ))
        .add_service(small!(forward_server::ForwardServer, ForwardService(shared.clone())))
        .add_service(bounded!(dry_runs, SMALL_MESSAGE_BYTES_MAX))
        .serve_with_incoming_shutdown(incoming, stop.cancelled_owned())
        .await
        .context("the client port ended")
}

async fn serve_peers(incoming: Incoming, node: Node, stop: CancellationToken) -> Result<()> {
    server()
        .layer(AuthzLayer::refusing(node.config().revocations.clone()))
        .add_service(node.peer_service())
        .serve_with_incoming_shutdown(incoming, stop.cancelled_owned())
        .await
        .context("the peer port ended")
}

/// Concurrent calls of one connection. A gateway leaves room for other calls besides its waits (`WaitRoom` in
/// `rollout-gateway`).
const STREAMS_MAX: u32 = 200;

/// HTTP/2 windows that do not stall a stream of large messages, and a keep-alive that detects a peer that disappeared
/// without closing.
fn server() -> Server {
    Server::builder()
        .max_concurrent_streams(STREAMS_MAX)
        .tcp_nodelay(true)
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(4 << 20)
        .http2_keepalive_interval(Some(Duration::from_secs(5)))
        .http2_keepalive_timeout(Some(Duration::from_secs(5)))
}
