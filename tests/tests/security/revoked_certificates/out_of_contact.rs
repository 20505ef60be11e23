//! A member that clients reach but that cannot learn of revocations answers only administrators.

use crate::revoked_certificates::{PATIENCE, asks, ctl, hears_a_leader, is_refused, issue};
use anyhow::{Context, Result, bail, ensure};
use rollout_proto::v1::events_client::EventsClient;
use rollout_proto::v1::runs_client::RunsClient;
use rollout_proto::{
    ChannelOptions, ClientError, ClientTls, DialMap, Endpoint, ErrorCode, Role, RpcError, Security,
    TlsFiles, channel, unconfirmed, v1,
};
use rollout_tests::{Batch, Fleet, FleetOptions, WorkerOptions, dial, eventually};
use std::time::{Duration, Instant};
use tonic::transport::Channel;

/// After 3 s a member must not answer, as docs/operating/certificates.md says. The rest is slack for a busy machine.
const OUT_OF_CONTACT: Duration = Duration::from_secs(3 + 2);
/// A command ends at the first member that reports the certificate as revoked, long before its `--timeout` of 10 s.
/// It takes less than a second; the rest is slack for a busy machine.
const ENDS_WITHIN: Duration = Duration::from_secs(5);
/// Interval between checks of a condition.
const POLL: Duration = Duration::from_millis(20);

/// A fleet, one of its followers, and a client that is connected to it and will be revoked.
struct Scene {
    fleet: Fleet,
    leader: String,
    lagging: String,
    others: Vec<String>,
    mallory: TlsFiles,
    asker: Channel,
    /// The same client's channels to each of the other members.
    askers: Vec<Channel>,
    operator: Channel,
}

impl Scene {
    async fn start() -> Result<Self> {
        let fleet = Fleet::start(FleetOptions { cuttable: true, ..FleetOptions::default() })?;
        let leader = fleet.leader();
        let follower = fleet.member_names().into_iter().find(|name| *name != leader);
        let lagging = follower.context("a follower")?;
        let others: Vec<String> =
            fleet.member_names().into_iter().filter(|n| *n != lagging).collect();
        let mallory = issue(&fleet, Role::Client, "mallory")?;
        let tls = ClientTls::load(&Security::Mtls(mallory.clone()))?;
        let asks = |member: &String| -> Result<Channel> {
            let endpoint = Endpoint::with_name(member, fleet.client_addr(member))?;
            Ok(channel(&endpoint, &tls, &DialMap::default(), &ChannelOptions::default())?)
        };
        let asker = asks(&lagging)?;
        let askers = others.iter().map(asks).collect::<Result<Vec<_>>>()?;
        let operator = dial(&fleet, &lagging, "admin", "operator")?;
        for asker in askers.iter().chain([&asker]) {
            answers(asker).await?;
        }
        Ok(Self { fleet, leader, lagging, others, mallory, asker, askers, operator })
    }

    fn revoke(&self) -> Result<()> {
        ctl(&self.fleet, &["cert", "revoke", "client/mallory"])
    }

    async fn others_refuse(&self) -> Result<()> {
        for asker in &self.askers {
            let refused = async {
                while read(asker).await.is_ok() {
                    tokio::time::sleep(POLL).await;
                }
            };
            tokio::time::timeout(PATIENCE, refused).await.context("another one still answers")?;
        }
        Ok(())
    }

    /// Waits until the member refuses the client. It is an error if the member answers later than it may.
    async fn until_refused(&self, since: Instant) -> Result<()> {
        loop {
            let began = since.elapsed();
            match read(&self.asker).await {
                Ok(()) => ensure!(began < OUT_OF_CONTACT, "it still answers after {began:?}"),
                Err(error) if error.code == ErrorCode::NoLeader => break,
                Err(error) => bail!("{error:?}"),
            }
            tokio::time::sleep(POLL).await;
        }
        answers(&self.operator).await
    }

    /// Checks commands that also ask the member that has not heard of the revocation: the other members' refusal
    /// decides.
    fn commands_end_as_revoked(&self) -> Result<()> {
        for args in [
            &["status"][..],
            &["run", "list"],
            &["worker", "list"],
            &["member", "list"],
            &["events", "--follow"],
            &["doctor"],
        ] {
            let began = Instant::now();
            is_refused(&asks(&self.fleet, &self.mallory, &self.lagging, args)?)
                .with_context(|| format!("{args:?}"))?;
            let took = began.elapsed();
            ensure!(took < ENDS_WITHIN, "{args:?} took {took:?}");
        }
        Ok(())
    }

    /// Waits until the member itself refuses the certificate as revoked.
    async fn until_known_as_revoked(&self) -> Result<()> {
        let known = async {
            while !is_known_as_revoked(&self.asker).await {
                tokio::time::sleep(POLL).await;
            }
        };
        tokio::time::timeout(PATIENCE, known).await.context("it has not heard of the revocation")
    }

    /// Restores contact: the member refuses the certificate as revoked, and its ledger equals that of the others.
    async fn ends(self) -> Result<()> {
        self.until_known_as_revoked().await?;
        let Self { fleet, lagging, mallory, asker, .. } = self;
        is_refused(&asks(&fleet, &mallory, &lagging, &["status"])?)?;
        ensure!(read(&asker).await.is_err(), "a revoked certificate reads");
        eventually("it follows", PATIENCE, || hears_a_leader(&fleet, &lagging)?.then_some(()));
        fleet.verify()?;
        fleet.passed()
    }
}

/// Whether the member refuses the request or the handshake because the certificate is revoked.
pub(crate) async fn is_known_as_revoked(asker: &Channel) -> bool {
    let list = v1::ListRunsRequest { namespace: "default".into() };
    let answer = RunsClient::new(asker.clone()).list_runs(unconfirmed(list)).await;
    answer.is_err_and(|status| ClientError::of_member(&status, &"the member").is_revoked())
}

/// A member's answer to a client that accepts unconfirmed data.
pub(crate) async fn read(asker: &Channel) -> Result<(), RpcError> {
    let list = v1::ListRunsRequest { namespace: "default".into() };
    let answer = RunsClient::new(asker.clone()).list_runs(unconfirmed(list)).await;
    answer.map(drop).map_err(|status| RpcError::from_status(&status))
}

async fn answers(asker: &Channel) -> Result<()> {
    read(asker).await.map_err(|error| anyhow::anyhow!("{error:?}"))
}

pub(crate) fn follow() -> v1::WatchEventsRequest {
    let start = v1::EventStart::Now.into();
    v1::WatchEventsRequest { start, follow: true, ..Default::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_no_other_reaches_answers_administrators_alone() -> Result<()> {
    let scene = Scene::start().await?;
    let mut events = EventsClient::new(scene.asker.clone());
    let mut stream = events.watch_events(follow()).await?.into_inner();
    let set_cut = |cut| {
        scene.others.iter().for_each(|other| scene.fleet.set_cut(&scene.lagging, other, cut));
    };
    set_cut(true);
    scene.until_refused(Instant::now()).await?;
    let ends = async {
        while stream.message().await?.is_some() {}
        Ok::<_, tonic::Status>(())
    };
    let ended = tokio::time::timeout(PATIENCE, ends).await.context("the stream did not end")?;
    let again = events.watch_events(follow()).await.map(drop);
    for ended in [ended, again] {
        let status = ended.err().context("a stream as if nothing were wrong")?;
        ensure!(RpcError::from_status(&status).code == ErrorCode::NoLeader, "{status}");
    }
    scene.revoke()?;
    scene.others_refuse().await?;
    scene.commands_end_as_revoked()?;
    let refused = read(&scene.asker).await.err().context("it reads unconfirmed data")?;
    ensure!(refused.code == ErrorCode::NoLeader, "{refused:?}");
    set_cut(false);
    scene.ends().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_hears_its_leader_and_gets_no_entries_answers_administrators_alone()
-> Result<()> {
    let mut scene = Scene::start().await?;
    // Cause so many entries that their connection has carried the most bytes.
    let head = "[part]\nlinger_ms = 20\n".to_owned();
    let engine = "kind = \"mock\"\nslots = 4\nconcurrency = 8\n".to_owned();
    scene.fleet.start_worker("w1", &WorkerOptions { engine, head })?;
    Batch::submit(&scene.fleet, "entries", 6000, "")?.finish(&scene.fleet)?;
    answers(&scene.asker).await?;
    let (fleet, lagging) = (&scene.fleet, &scene.lagging);
    fleet.set_log_stalled(&scene.leader, lagging, true);
    scene.revoke()?;
    scene.until_refused(Instant::now()).await?;
    scene.others_refuse().await?;
    ensure!(hears_a_leader(fleet, lagging) == Some(true), "its heartbeats are stalled, too");
    ensure!(fleet.leader() == scene.leader, "it had no reason to want another leader");
    fleet.set_log_stalled(&scene.leader, lagging, false);
    scene.ends().await
}
