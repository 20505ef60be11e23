//! A training process without the training: it takes part in a job's rendezvous, or arrives at its barriers, prints
//! each event on a line of its own, and continues until it is killed or the rendezvous is closed.
//!
//! Usage: `participant meet JOB NAME key=value...` or `participant pass JOB NAME key=value...`. The environment says
//! how to reach the cluster: `PARTICIPANT_ENDPOINTS`, `_CA`, `_CERT`, `_KEY`.

use anyhow::{Context, Result, bail};
use rollout_proto::{
    CallOptions, Client, ClientConfig, ClientError, ErrorCode, Security, Session, TlsFiles,
    services, v1,
};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use v1::barrier_wait_response::Outcome as Passing;
use v1::rendezvous_wait_response::Outcome as Meeting;

/// How long the leader holds a wait.
const WAIT_MS: u64 = 5000;
/// Interval between checks of the test's own files.
const LOOK: Duration = Duration::from_millis(20);

/// A participant of a job.
struct Participant {
    client: Client,
    session: Session,
    job: v1::JobName,
    decl: v1::Participant,
    ticket: Arc<AtomicU64>,
    asked: BTreeMap<String, String>,
}

/// Whether the same request may still be answered.
fn passes(error: &ClientError) -> bool {
    match error {
        ClientError::NoLeader { .. }
        | ClientError::Timeout { .. }
        | ClientError::OutcomeUnknown { .. } => true,
        ClientError::Rpc(error) => error.retryable,
        _ => false,
    }
}

/// Asks the leader until it answers, with the same request.
macro_rules! ask {
    ($client:expr, $what:literal, $request:expr, $service:ident.$method:ident) => {{
        let (client, request) = (&$client, $request);
        let options = CallOptions::read().attempt_timeout(Duration::from_millis(3 * WAIT_MS));
        loop {
            let answer = client
                .with_leader_opts($what, options, |channel| {
                    let request = request.clone();
                    async move { services::$service(channel).$method(request).await }
                })
                .await;
            match answer {
                Err(error) if passes(&error) => tokio::time::sleep(LOOK).await,
                answer => break answer,
            }
        }
    }};
}

impl Participant {
    fn number(&self, key: &str, default: u64) -> Result<u64> {
        match self.asked.get(key) {
            Some(text) => text.parse().with_context(|| format!("{key}={text}")),
            None => Ok(default),
        }
    }

    async fn join(&self) -> Result<Option<u64>> {
        let pending = self.session.request();
        let request = v1::JoinRequest {
            request: Some(pending.id()),
            job: Some(self.job.clone()),
            participant: Some(self.decl.clone()),
            min: self.number("min", 1)? as u32,
            max: self.number("max", 2)? as u32,
            join_timeout_ms: self.number("timeout", 0)?,
            last_call_ms: self.number("call", 500)?,
        };
        match ask!(self.client, "join", request, rendezvous.join) {
            Ok(answer) => {
                pending.ack();
                self.ticket.store(answer.ticket, Ordering::SeqCst);
                println!("joined {}", answer.ticket);
                Ok(Some(answer.ticket))
            }
            Err(error) if error.code() == Some(ErrorCode::RendezvousClosed) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Joins round after round. It leaves a round when a participant waits for the next one, or when a member of the
    /// round is gone.
    async fn meet(&self) -> Result<()> {
        while let Some(ticket) = self.join().await? {
            let request = v1::RendezvousWaitRequest {
                job: Some(self.job.clone()),
                ticket,
                wait_ms: WAIT_MS,
                without_members: false,
            };
            let outcome = loop {
                let request = request.clone();
                match ask!(self.client, "wait", request, rendezvous.wait)?.outcome {
                    None | Some(Meeting::Pending(_)) => {}
                    Some(outcome) => break outcome,
                }
            };
            match outcome {
                Meeting::Completed(round) => {
                    let names: Vec<&str> = round.members.iter().map(|m| m.name.as_str()).collect();
                    let (number, rank, size) = (round.round, round.rank, round.world_size);
                    println!("round {number} rank {rank} of {size}: {}", names.join(" "));
                    self.until_it_changes(round.world_size).await?;
                }
                Meeting::Closed(_) => break,
                Meeting::TimedOut(_) => bail!("the rendezvous timed out"),
                Meeting::Gone(gone) => println!("gone {}", gone.why),
                Meeting::Pending(_) => {}
            }
        }
        println!("closed");
        Ok(())
    }

    /// Returns when it is time to leave the round.
    async fn until_it_changes(&self, world_size: u32) -> Result<()> {
        let mut known_version = None;
        loop {
            let request = v1::RendezvousDescribeRequest {
                job: Some(self.job.clone()),
                known_version,
                wait_ms: WAIT_MS,
            };
            let answer = ask!(self.client, "describe", request, rendezvous.describe)?;
            let all = answer.participants.iter();
            let members = all.filter(|p| p.standing == "member").count() as u32;
            let now = answer.rendezvous.unwrap_or_default();
            if now.num_nodes_waiting > 0 || members < world_size || now.closed {
                return Ok(());
            }
            known_version = Some(now.version);
        }
    }

    /// Arrives at generation after generation, at each when the test allows it.
    async fn pass(&self) -> Result<()> {
        let gate = self.asked.get("gate").context("gate=PATH")?;
        let members = self.asked.get("members").map(String::as_str).unwrap_or_default();
        let members: Vec<String> =
            members.split(',').filter(|m| !m.is_empty()).map(str::to_owned).collect();
        let policy = match self.asked.get("policy").map(String::as_str) {
            Some("shrink") => v1::BarrierPolicy::Shrink,
            _ => v1::BarrierPolicy::Fail,
        };
        let barrier = v1::BarrierName { job: Some(self.job.clone()), barrier: "epoch".into() };
        for generation in 1.. {
            while !PathBuf::from(format!("{gate}.{generation}")).exists() {
                tokio::time::sleep(LOOK).await;
            }
            let pending = self.session.request();
            let request = v1::ArriveRequest {
                request: Some(pending.id()),
                barrier: Some(barrier.clone()),
                generation,
                ticket: self.ticket.load(Ordering::SeqCst),
                participant: None,
                set: Some(v1::BarrierSet { members: members.clone(), count: 0 }),
                policy: policy.into(),
                timeout_ms: self.number("timeout", 0)?,
            };
            match ask!(self.client, "arrive", request, barrier.arrive) {
                Ok(_) => pending.ack(),
                Err(error) => {
                    println!("refused {generation}: {error}");
                    continue;
                }
            }
            println!("arrived {generation}");
            let request = v1::BarrierWaitRequest {
                barrier: Some(barrier.clone()),
                generation,
                wait_ms: WAIT_MS,
            };
            loop {
                let request = request.clone();
                match ask!(self.client, "wait", request, barrier.wait)?.outcome {
                    Some(Passing::Open(open)) => {
                        let mut members = open.members;
                        members.sort();
                        println!("passed {generation}: {}", members.join(" "));
                        break;
                    }
                    Some(Passing::Failed(failed)) => {
                        println!("failed {generation}: {}: {}", failed.why, failed.message);
                        break;
                    }
                    None | Some(Passing::Pending(_)) => {}
                }
            }
        }
        Ok(())
    }

    async fn participate(&self) -> Result<()> {
        let pending = self.session.request();
        let request = v1::ParticipateRequest {
            request: Some(pending.id()),
            job: Some(self.job.clone()),
            participant: Some(self.decl.clone()),
        };
        let answer = ask!(self.client, "participate", request, rendezvous.participate)?;
        pending.ack();
        self.ticket.store(answer.ticket, Ordering::SeqCst);
        println!("joined {}", answer.ticket);
        Ok(())
    }
}

/// Keeps the current ticket alive.
async fn keep_alive(client: Client, job: v1::JobName, ticket: Arc<AtomicU64>, every: Duration) {
    loop {
        tokio::time::sleep(every).await;
        let ticket = ticket.load(Ordering::SeqCst);
        if ticket == 0 {
            continue;
        }
        let one = v1::ParticipantRef { job: Some(job.clone()), ticket };
        let request = v1::KeepAliveRequest { participants: vec![one] };
        let _ = client
            .with_leader_opts("keep alive", CallOptions::read().timeout(every), |channel| {
                let request = request.clone();
                async move { services::rendezvous(channel).keep_alive(request).await }
            })
            .await;
    }
}

fn client() -> Result<Client> {
    let var = |name: &str| {
        let name = format!("PARTICIPANT_{name}");
        std::env::var(&name).with_context(|| name)
    };
    let endpoints = var("ENDPOINTS")?.split(',').map(str::to_owned).collect();
    let file = |name| var(name).map(PathBuf::from);
    let files = TlsFiles { ca: file("CA")?, cert: file("CERT")?, key: file("KEY")? };
    Ok(Client::new(ClientConfig::new(endpoints, Security::Mtls(files)))?)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let (what, job, name) = match (args.next(), args.next(), args.next()) {
        (Some(what), Some(job), Some(name)) => (what, job, name),
        _ => bail!("participant meet|pass JOB NAME key=value..."),
    };
    let asked: BTreeMap<String, String> = args
        .filter_map(|arg| arg.split_once('=').map(|(k, v)| (k.to_owned(), v.to_owned())))
        .collect();
    let client = client()?;
    let session = loop {
        match client.open_session("participant").await {
            Err(error) if passes(&error) => tokio::time::sleep(LOOK).await,
            session => break session?,
        }
    };
    let alive_ms: u32 = asked.get("alive").map_or(Ok(5000), |text| text.parse())?;
    let decl = v1::Participant {
        host: format!("host-of-{name}"),
        addr: format!("{name}:29500"),
        name,
        local_world_size: 2,
        keep_alive_interval_ms: alive_ms,
        keep_alive_attempts: 3,
    };
    let (job, ticket) = (v1::JobName { namespace: String::new(), job }, Arc::default());
    let this = Participant { client, session, job, decl, ticket, asked };
    let every = Duration::from_millis(alive_ms.into());
    let keeping = keep_alive(this.client.clone(), this.job.clone(), this.ticket.clone(), every);
    tokio::spawn(keeping);
    match what.as_str() {
        "meet" => this.meet().await,
        "pass" => {
            this.participate().await?;
            this.pass().await
        }
        other => bail!("a participant does not {other}"),
    }
}
