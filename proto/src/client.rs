//! The one client: it finds the leader, follows it, and repeats requests that are safe to repeat.
//!
//! *Invariant:* a call's closure sends the same request every time, so that a repeat with a request id is answered and
//! never executed again. The client rejects answers of another cluster, and of an epoch below the highest that it has
//! seen.
//!
//! Absent: any knowledge of what the requests mean.

mod answer;
mod config;
mod failure;
mod leader_calls;
mod members;
mod members_file;
mod probe;
mod retry_backoff;
mod search;
pub mod services;
mod session;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::future::join_all;
use futures::stream::{FuturesUnordered, StreamExt};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};
use tonic::Status;

pub use self::answer::HasHeader;
pub use self::config::{CallOptions, ClientConfig, OnWait};
pub use self::failure::{ClientError, Tried};
pub use self::members::MemberRef;
pub use self::session::{PendingRequest, Session};

use self::members::ClusterView;
use self::probe::LastProbe;
use crate::channel::{OpenConnections, counted_channel};
use crate::endpoint::Endpoint;
use crate::error::RpcError;
use crate::pki::Validity;
use crate::stamp::Channel;
use crate::tls::ClientTls;
use crate::v1;

/// How many members a saved list has; only for fuzz targets.
#[cfg(feature = "fuzzing")]
pub(crate) fn members_in(bytes: &[u8]) -> std::io::Result<usize> {
    members_file::parse(bytes).map(|view| view.members.len())
}

/// Channels kept at once: to a cluster's members, and to the seeds.
const CHANNELS_MAX: usize = 128;
/// Limit of one member's answer to [`Client::each_member`].
const MEMBER_TIMEOUT: Duration = Duration::from_secs(2);
/// The same limit, once another member has said that the caller's certificate is revoked.
const AFTER_REVOKED: Duration = Duration::from_millis(300);

/// A client of one cluster. Clones share connections and knowledge.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    config: ClientConfig,
    seeds: Vec<Endpoint>,
    tls: ClientTls,
    cluster_view: Mutex<ClusterView>,
    channels: Mutex<HashMap<Endpoint, CachedChannel>>,
    /// Held by the one call that searches for the leader; all others use its result.
    search_turn: tokio::sync::Mutex<()>,
    /// The same for calls that wait at a silent leader and ask whether another one leads.
    hedge_turn: tokio::sync::Mutex<()>,
    /// The last answer of each member.
    last_probes: Mutex<HashMap<Endpoint, LastProbe>>,
    /// When [`ClientConfig::on_wait`] was last called.
    last_wait_report: Mutex<Option<Instant>>,
    /// Since when the search for a leader has been unsuccessful.
    leaderless_since: Mutex<Option<Instant>>,
    /// The longest wait between two tries, in milliseconds.
    longest_wait_ms: AtomicU64,
    /// Held while the members file is replaced, so that the newest state is written last.
    save_turn: Mutex<()>,
}

/// A channel, and whether it is connected.
struct CachedChannel {
    channel: Channel,
    open: OpenConnections,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("config", &self.inner.config).finish_non_exhaustive()
    }
}

impl Client {
    /// A client without connections. Fails on unusable certificates, malformed endpoints, a damaged members file, or
    /// if there is no endpoint at all.
    pub fn new(config: ClientConfig) -> Result<Client, ClientError> {
        let seeds = config.endpoints.iter().map(|text| Endpoint::seed(text.trim()));
        let seeds = seeds.collect::<Result<Vec<_>, _>>()?;
        let tls = ClientTls::load(&config.security)?;
        let mut view = match &config.members_file {
            Some(path) => members_file::read(path)
                .map_err(|error| ClientError::MembersFile {
                    path: path.display().to_string(),
                    cause: error.to_string(),
                })?
                .unwrap_or_default(),
            None => ClusterView::default(),
        };
        view.follow_restored = config.follow_restored;
        view.stamp.update(&view.cluster_id, view.coord_epoch);
        if view.candidates(&seeds, &config.dial_map).is_empty() {
            return Err(ClientError::NoEndpoints);
        }
        let inner = Inner {
            config,
            seeds,
            tls,
            cluster_view: Mutex::new(view),
            channels: Mutex::default(),
            search_turn: tokio::sync::Mutex::new(()),
            hedge_turn: tokio::sync::Mutex::new(()),
            last_probes: Mutex::default(),
            last_wait_report: Mutex::new(None),
            leaderless_since: Mutex::new(None),
            longest_wait_ms: AtomicU64::new(retry_backoff::WAIT_MAX.as_millis() as u64),
            save_turn: Mutex::new(()),
        };
        Ok(Client { inner: Arc::new(inner) })
    }

    /// The configuration of this client.
    pub fn config(&self) -> &ClientConfig {
        &self.inner.config
    }

    /// Learns from an answer's header. Refuses an answer of another cluster, and one of an epoch below the highest
    /// seen, because its sender no longer leads.
    pub fn observe(&self, header: &v1::ClusterHeader) -> Result<(), RpcError> {
        // A variable, because otherwise the guard would live on into `save_members`.
        let judged = self.inner.cluster_view.lock().judge(header);
        if judged? {
            self.save_members();
        }
        Ok(())
    }

    /// Learns from the header of an answer that any member may give, even one that lags. Refuses an answer of another
    /// cluster.
    pub fn observe_any(&self, header: &v1::ClusterHeader) -> Result<(), RpcError> {
        let new = {
            let mut view = self.inner.cluster_view.lock();
            view.check_cluster(header)?;
            view.learn(header)
        };
        if new {
            self.save_members();
        }
        Ok(())
    }

    /// Every member, or every seed while no member is known, with a channel to it: for streams that any member serves.
    pub fn member_channels(&self) -> Result<Vec<(MemberRef, Channel)>, ClientError> {
        let all = self.candidates().into_iter();
        all.map(|each| Ok((MemberRef::from(&each), self.channel_to(&each)?))).collect()
    }

    /// The highest epoch seen; 0: none yet.
    pub fn coord_epoch(&self) -> u64 {
        self.inner.cluster_view.lock().coord_epoch
    }

    /// The validity of the certificate in use; `None` without one.
    pub fn certificate_validity(&self) -> Option<Validity> {
        self.inner.tls.validity()
    }

    /// The cluster's id; empty until a member has answered.
    pub fn cluster_id(&self) -> String {
        self.inner.cluster_view.lock().cluster_id.clone()
    }

    /// The newest member list seen; empty until a member has answered.
    pub fn members(&self) -> Vec<v1::MemberInfo> {
        self.inner.cluster_view.lock().members.clone()
    }

    /// The last confirmed leader, unless it has failed since.
    pub fn leader(&self) -> Option<MemberRef> {
        self.inner.cluster_view.lock().leader.as_ref().map(MemberRef::from)
    }

    /// Sets the longest wait between two tries, from the next call on. One of thousands of clients that search for the
    /// leader at the same time should try less often than one of few.
    pub fn wait_at_most(&self, longest: Duration) {
        self.inner.longest_wait_ms.store(longest.as_millis() as u64, Ordering::Relaxed);
    }

    fn longest_wait(&self) -> Duration {
        Duration::from_millis(self.inner.longest_wait_ms.load(Ordering::Relaxed))
    }

    /// Forgets the leader at this address, because its stream broke or it fell silent.
    pub fn leader_failed(&self, addr: &str) {
        let mut view = self.inner.cluster_view.lock();
        if view.leader.as_ref().is_some_and(|leader| leader.addr.to_string() == addr) {
            view.leader = None;
        }
    }

    /// Calls every member, or every seed while no member is known, at the same time. Each has two seconds, or less
    /// once one of them has said that the caller's certificate is revoked. A seed that is not a member, for example a
    /// removed one, appears in the result only if it answers.
    pub async fn each_member<T, F, Fut>(&self, f: F) -> Vec<(MemberRef, Result<T, ClientError>)>
    where
        F: Fn(MemberRef, Channel) -> Fut,
        Fut: Future<Output = Result<tonic::Response<T>, Status>>,
    {
        if self.members().is_empty() {
            self.learn_members().await;
        }
        let revoked = &watch::Sender::new(false);
        let asked = self.candidates().into_iter().map(|endpoint| {
            let member = MemberRef::from(&endpoint);
            let answer = self.channel_to(&endpoint).map(|channel| f(member.clone(), channel));
            async move {
                let answer = one_answer(&member, answer, revoked).await;
                (member, answer)
            }
        });
        let mut answers = join_all(asked).await;
        if !self.members().is_empty() {
            answers.retain(|(member, answer)| answer.is_ok() || !member.name.is_empty());
        }
        answers
    }

    /// Opens a session, within which request ids are unique.
    pub async fn open_session(&self, name: &str) -> Result<Session, ClientError> {
        let request = v1::OpenSessionRequest { client_name: name.to_owned() };
        let opened = self
            .with_leader("open session", |channel| {
                let request = request.clone();
                async move { services::runs(channel).open_session(request).await }
            })
            .await?;
        Ok(Session::new(self.clone(), opened.session, opened.store_url))
    }

    /// Asks the seeds for the member list until all have answered, or the caller's certificate turns out to be
    /// revoked. Once a list is known, the remaining seeds have the usual time for an answer.
    async fn learn_members(&self) {
        let begun = Instant::now();
        let limit = self.inner.config.timeout;
        let mut asked: FuturesUnordered<_> =
            self.candidates().into_iter().map(|seed| self.probe(seed)).collect();
        loop {
            let known = !self.members().is_empty();
            let until = begun + if known { limit.min(MEMBER_TIMEOUT) } else { limit };
            match timeout_at(until, asked.next()).await {
                Ok(Some(_)) if !self.is_revoked() => {}
                _ => return,
            }
        }
    }

    fn candidates(&self) -> Vec<Endpoint> {
        let inner = &self.inner;
        inner.cluster_view.lock().candidates(&inner.seeds, &inner.config.dial_map)
    }

    fn channel_to(&self, endpoint: &Endpoint) -> Result<Channel, ClientError> {
        let config = &self.inner.config;
        let mut channels = self.inner.channels.lock();
        if let Some(kept) = channels.get(endpoint) {
            return Ok(kept.channel.clone());
        }
        // A member that was first called as a seed is called under its name from now on, on the same connection if its
        // address is the same, because the certificate was checked against that. Keeping connections to seeds open
        // would double the connections of thousands of clients at each member.
        if let Some(kept) = self.as_seed(endpoint).and_then(|seed| channels.remove(&seed)) {
            let channel = kept.channel.clone();
            channels.insert(endpoint.clone(), kept);
            return Ok(channel);
        }
        let candidates = self.candidates();
        let seeds: Vec<_> = candidates.iter().filter_map(|each| self.as_seed(each)).collect();
        channels.retain(|known, _| candidates.contains(known) || seeds.contains(known));
        if channels.len() >= CHANNELS_MAX {
            channels.clear();
        }
        let (channel, open) =
            counted_channel(endpoint, &self.inner.tls, &config.dial_map, &config.channel)?;
        let channel = Channel::new(channel, self.inner.cluster_view.lock().stamp.clone());
        channels.insert(endpoint.clone(), CachedChannel { channel: channel.clone(), open });
        Ok(channel)
    }

    fn is_connected_to(&self, endpoint: &Endpoint) -> bool {
        let channels = self.inner.channels.lock();
        let seed = || channels.get(&self.as_seed(endpoint)?);
        channels.get(endpoint).or_else(seed).is_some_and(|kept| kept.open.any())
    }

    /// The seed under which a member was called before its name was known, if both dial the same address.
    fn as_seed(&self, endpoint: &Endpoint) -> Option<Endpoint> {
        let dial_map = &self.inner.config.dial_map;
        let seed = Endpoint { name: None, addr: endpoint.addr.clone() };
        (dial_map.resolve(&seed) == dial_map.resolve(endpoint)).then_some(seed)
    }

    /// Closes every connection once its calls have ended. Keeps what is known of the cluster: the next call connects
    /// again.
    pub fn disconnect(&self) {
        self.inner.channels.lock().clear();
    }

    /// Saves what is known to the members file. A failure only makes a later start slower, so it is logged.
    fn save_members(&self) {
        let Some(path) = &self.inner.config.members_file else { return };
        let _turn = self.inner.save_turn.lock();
        let view = self.inner.cluster_view.lock().clone();
        if let Err(error) = members_file::write(path, &view) {
            tracing::warn!(path = %path.display(), %error, "cannot save the member list");
        }
    }
}

/// The answer of one of several members that are called at the same time. They share `revoked`.
async fn one_answer<T>(
    member: &MemberRef,
    answer: Result<impl Future<Output = Result<tonic::Response<T>, Status>>, ClientError>,
    revoked: &watch::Sender<bool>,
) -> Result<T, ClientError> {
    let silent = |limit: Duration, why: &str| {
        let message = format!("no answer within {} ms{why}", limit.as_millis());
        Err(ClientError::Rpc(RpcError::new(crate::ErrorCode::TimedOut, message)))
    };
    let answer = answer?;
    tokio::select! {
        biased;
        answered = timeout(MEMBER_TIMEOUT, answer) => match answered {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => {
                let error = ClientError::of_member(&status, member);
                if error.is_revoked() {
                    revoked.send_replace(true);
                }
                Err(error)
            }
            Err(_) => silent(MEMBER_TIMEOUT, ""),
        },
        () = after_revoked(revoked.subscribe()) => {
            silent(AFTER_REVOKED, " after another member refused the certificate as revoked")
        }
    }
}

/// Completes shortly after a member has said that the caller's certificate is revoked.
async fn after_revoked(mut revoked: watch::Receiver<bool>) {
    let gone = revoked.wait_for(|revoked| *revoked).await.is_err();
    if gone {
        std::future::pending::<()>().await;
    }
    tokio::time::sleep(AFTER_REVOKED).await;
}
