//! Only certificates of a complete round's members reach the round's store, at the leader of their round and at the
//! next one.

use anyhow::{Context, Result, bail, ensure};
use rollout_gateway::{JobStore, Waiting, present};
use rollout_proto::{CallOptions, Client, ClientError, ErrorCode, RpcError, services, v1};
use rollout_tests::{Fleet, FleetOptions};
use v1::rendezvous_wait_response::Outcome;
use v1::store_op::Kind as Op;

const JOB: &str = "train";
/// Longer than the test, so no participant counts as lost.
const KEEP_ALIVE_MS: u32 = 600_000;
/// How long the leader holds a wait.
const WAIT_MS: u64 = 5000;

fn job() -> Option<v1::JobName> {
    Some(v1::JobName { namespace: "default".into(), job: JOB.into() })
}

/// The store of round 1, for a process that has guessed its name.
fn guessed(client: &Client) -> JobStore {
    let name = v1::StoreName { job: JOB.into(), round: 1, ..Default::default() };
    JobStore::new(client.clone(), name)
}

fn set(key: &'static str) -> Op {
    let pair = v1::StorePair { key: key.into(), value: "1".into() };
    Op::Set(v1::StoreSet { pairs: vec![pair] })
}

/// Joins a rendezvous of this many members, and returns the ticket.
async fn join(client: &Client, name: &str, size: u32) -> Result<u64> {
    let session = client.open_session(name).await?;
    let pending = session.request();
    let participant = v1::Participant {
        name: name.to_owned(),
        keep_alive_interval_ms: KEEP_ALIVE_MS,
        ..v1::Participant::default()
    };
    let request = v1::JoinRequest {
        request: Some(pending.id()),
        job: job(),
        participant: Some(participant),
        min: size,
        max: size,
        ..v1::JoinRequest::default()
    };
    let ask = |channel| {
        let request = request.clone();
        async move { services::rendezvous(channel).join(request).await }
    };
    let ticket = client.with_leader("join", ask).await?.ticket;
    pending.ack();
    Ok(ticket)
}

/// The store in the answer to a member that waits for its round.
async fn store_of_round(client: &Client, ticket: u64) -> Result<JobStore> {
    let request =
        v1::RendezvousWaitRequest { job: job(), ticket, wait_ms: WAIT_MS, without_members: true };
    let ask = |channel| {
        let request = request.clone();
        async move { services::rendezvous(channel).wait(request).await }
    };
    let answer = client.with_leader_opts("wait for the round", CallOptions::read(), ask).await?;
    match answer.outcome {
        Some(Outcome::Completed(round)) => {
            let name = round.store.context("a round has a store")?;
            Ok(JobStore::new(client.clone(), name))
        }
        other => bail!("the rendezvous ended otherwise: {other:?}"),
    }
}

fn is_refused<T>(what: &str, code: ErrorCode, answer: Result<T, ClientError>) -> Result<()> {
    let error = answer.err().with_context(|| format!("{what} was let in"))?;
    ensure!(error.code() == Some(code), "{what}: {error}");
    Ok(())
}

/// Checks that a store can be neither changed nor read.
async fn is_shut(store: &JobStore, code: ErrorCode) -> Result<()> {
    is_refused("a change", code, store.change(set("kept")).await)?;
    is_refused("a read", code, store.values(vec!["kept".into()]).await)?;
    is_refused("a wait", code, store.wait(&Waiting::new(vec![present("kept".into())])).await)
}

/// Checks that members that do not lead refuse no wait, because they may know too little, but name the leader.
async fn others_refuse_nothing(fleet: &Fleet, client: &Client) -> Result<()> {
    let leader = fleet.leader();
    let name = v1::StoreName { job: JOB.into(), round: 1, ..Default::default() };
    for (member, channel) in client.member_channels()? {
        if member.name == leader {
            continue;
        }
        let request = v1::StoreWaitRequest { store: Some(name.clone()), ..Default::default() };
        let answer = services::store(channel).wait(request).await;
        let refused = answer.err().context("a member that does not lead serves a wait")?;
        let code = RpcError::from_status(&refused).code;
        let sends_on = matches!(code, ErrorCode::NotLeader | ErrorCode::NoLeader);
        ensure!(sends_on, "{}: {refused}", member.name);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_store_of_a_round_serves_its_members_certificates_and_no_others() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    fleet.certify_client("outsider")?;
    let member = fleet.client("client", "user")?;
    let outsider = fleet.client("client", "outsider")?;
    // Before a round is complete, its store does not belong to it yet.
    guessed(&outsider).change(set("early")).await?;
    let ticket = join(&member, "n0", 1).await?;
    let store = store_of_round(&member, ticket).await?;
    ensure!(!store.there(vec!["early".into()]).await?, "members find what an outsider wrote");
    store.change(set("kept")).await?;
    // It takes part in the job, but is not in the round.
    join(&outsider, "n1", 1).await?;
    others_refuse_nothing(&fleet, &outsider).await?;
    for leads_another in [false, true] {
        if leads_another {
            let leader = fleet.leader();
            fleet.member_process(&leader).kill();
            fleet.leader_other_than(&leader);
            fleet.start_member(&leader)?;
        }
        is_shut(&guessed(&outsider), ErrorCode::NotRoundMember).await.context("an outsider")?;
        store.change(set("more")).await?;
        store.wait(&Waiting::new(vec![present("kept".into())])).await?;
        let known = vec!["kept".into(), "more".into()];
        ensure!(store.there(known).await?, "a member does not find its keys");
    }
    let admin = guessed(&fleet.client("admin", "operator")?);
    ensure!(admin.there(vec!["kept".into()]).await?, "an administrator may look");
    let changed = admin.change(set("kept")).await;
    is_refused("a change of an administrator", ErrorCode::NotRoundMember, changed)?;
    fleet.verify()?;
    fleet.passed()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_another_of_its_certificate_replaced_has_no_store() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let client = fleet.client("client", "user")?;
    let (first, second) = (join(&client, "n0", 2).await?, join(&client, "n1", 2).await?);
    let replaced = store_of_round(&client, first).await?;
    let other = store_of_round(&client, second).await?;
    replaced.change(set("kept")).await?;
    // It waits for the next round, and this round continues.
    join(&client, "n0", 2).await?;
    for leads_another in [false, true] {
        if leads_another {
            let leader = fleet.leader();
            fleet.member_process(&leader).kill();
            fleet.leader_other_than(&leader);
            fleet.start_member(&leader)?;
        }
        is_shut(&replaced, ErrorCode::ParticipantGone).await.context("a replaced process")?;
        other.change(set("more")).await?;
        ensure!(other.there(vec!["kept".into(), "more".into()]).await?, "the other has no store");
    }
    fleet.verify()?;
    fleet.passed()
}
