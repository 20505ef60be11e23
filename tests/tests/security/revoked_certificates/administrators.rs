//! What a revoked administrator can still read from a member without contact to the others: SECURITY.md lists the
//! calls.

use crate::revoked_certificates::out_of_contact::{follow, is_known_as_revoked, read};
use crate::revoked_certificates::{PATIENCE, ctl, issue};
use anyhow::{Context, Result, bail, ensure};
use rollout_proto::v1::events_client::EventsClient;
use rollout_proto::v1::runs_client::RunsClient;
use rollout_proto::{
    BytesCodec, ChannelOptions, ClientTls, DialMap, Endpoint, ErrorCode, Role, RpcError, Security,
    TlsFiles, authz, channel, unconfirmed, v1,
};
use rollout_tests::{Fleet, FleetOptions, create_run, dial};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;
use tonic::Status;
use tonic::transport::Channel;

/// Time limit for the start of a member's answer.
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// Interval between checks of a condition.
const POLL: Duration = Duration::from_millis(20);
/// The text around the list in SECURITY.md.
const LIST: (&str, &str) =
    ("<!-- checked by tests/tests/security/revoked_certificates -->", "<!-- end of the list -->");

fn dial_with(fleet: &Fleet, member: &str, files: &TlsFiles) -> Result<Channel> {
    let tls = ClientTls::load(&Security::Mtls(files.clone()))?;
    let endpoint = Endpoint::with_name(member, fleet.client_addr(member))?;
    Ok(channel(&endpoint, &tls, &DialMap::default(), &ChannelOptions::default())?)
}

/// `Service/Method` of each call in SECURITY.md's list.
fn documented() -> Result<BTreeSet<String>> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../SECURITY.md");
    let text = std::fs::read_to_string(page)?;
    let list = text.split_once(LIST.0).and_then(|(_, rest)| rest.split_once(LIST.1));
    let (list, _) = list.context("SECURITY.md has no list")?;
    Ok(list.split('`').skip(1).step_by(2).map(str::to_owned).collect())
}

/// `Service/Method` of every method that an administrator's certificate allows.
fn of_administrators() -> Result<BTreeSet<String>> {
    let pool = prost_reflect::DescriptorPool::decode(v1::DESCRIPTORS)?;
    let services = pool.services().filter(|service| service.package_name() == "rollout.v1");
    let methods = services.flat_map(|service| {
        let named = |method: prost_reflect::MethodDescriptor| {
            format!("{}/{}", method.parent_service().name(), method.name())
        };
        service.methods().map(named).collect::<Vec<_>>()
    });
    let open = |method: &String| {
        let roles = authz::allowed(&format!("/rollout.v1.{method}"));
        roles.is_some_and(|roles| roles.contains(&Role::Admin))
    };
    Ok(methods.filter(open).collect())
}

/// The start of the answer to an empty message from a client that accepts unconfirmed data.
async fn call(channel: &Channel, method: &str) -> Result<Result<(), Status>> {
    let mut grpc = tonic::client::Grpc::new(channel.clone());
    let asked = async {
        if let Err(error) = grpc.ready().await {
            return Err(Status::from_error(error.into()));
        }
        let path = format!("/rollout.v1.{method}").parse().expect("a path");
        let request = unconfirmed(bytes::Bytes::new());
        let mut stream = grpc.server_streaming(request, path, BytesCodec).await?.into_inner();
        stream.message().await.map(drop)
    };
    tokio::time::timeout(ANSWER_MAX, asked).await.with_context(|| format!("{method}: no answer"))
}

/// Whether this error says that the member needs a leader, or a newer list of revocations, to answer.
fn is_refused_for_contact(error: &RpcError) -> bool {
    matches!(error.code, ErrorCode::NoLeader | ErrorCode::NotLeader | ErrorCode::NoQuorum)
}

/// Waits until the member refuses all other clients.
async fn is_out_of_contact(asker: &Channel) -> Result<()> {
    let refused = async {
        loop {
            match read(asker).await {
                Ok(()) => tokio::time::sleep(POLL).await,
                Err(error) if error.code == ErrorCode::NoLeader => return Ok(()),
                Err(error) => bail!("{error:?}"),
            }
        }
    };
    tokio::time::timeout(PATIENCE, refused).await.context("it still answers")?
}

async fn is_revoked_at(channel: &Channel, member: &str) -> Result<()> {
    let known = async {
        while !is_known_as_revoked(channel).await {
            tokio::time::sleep(POLL).await;
        }
    };
    let known = tokio::time::timeout(PATIENCE, known).await;
    known.with_context(|| format!("{member} does not refuse the certificate"))
}

/// Creates an empty run, for a call that names one.
async fn submit(fleet: &Fleet, leader: &str) -> Result<u32> {
    let mut runs = RunsClient::new(dial(fleet, leader, "client", "user")?);
    let open = v1::OpenSessionRequest { client_name: "user".into() };
    let session = runs.open_session(open).await?.into_inner().session;
    let request = v1::RequestId { session, seq: 1, ack_upto: 0 };
    Ok(runs.create_run(create_run(request, "eval")).await?.into_inner().run)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_administrator_gets_only_the_listed_calls_from_a_member_out_of_contact()
-> Result<()> {
    let (listed, all) = (documented()?, of_administrators()?);
    ensure!(listed.is_subset(&all) && listed.len() > 10, "{listed:?}");
    let fleet = Fleet::start(FleetOptions { cuttable: true, ..FleetOptions::default() })?;
    let leader = fleet.leader();
    let names = fleet.member_names();
    let lagging = names.iter().find(|name| **name != leader).context("a follower")?;
    let run = submit(&fleet, &leader).await?;
    let (eve, asker) = (issue(&fleet, Role::Admin, "eve")?, issue(&fleet, Role::Client, "asker")?);
    let (eves, asker) = (dial_with(&fleet, lagging, &eve)?, dial_with(&fleet, lagging, &asker)?);
    let describe = || unconfirmed(v1::DescribeRunRequest { run, ..Default::default() });
    let follows = async {
        while RunsClient::new(eves.clone()).describe_run(describe()).await.is_err() {
            tokio::time::sleep(POLL).await;
        }
    };
    tokio::time::timeout(PATIENCE, follows).await.context("the follower never had the run")?;

    let others: Vec<&String> = names.iter().filter(|name| *name != lagging).collect();
    let set_cut = |cut| others.iter().for_each(|other| fleet.set_cut(lagging, other, cut));
    set_cut(true);
    is_out_of_contact(&asker).await?;
    ctl(&fleet, &["cert", "revoke", "admin/eve"])?;
    for other in &others {
        is_revoked_at(&dial_with(&fleet, other, &eve)?, other).await?;
    }

    for method in &all {
        match (listed.contains(method), call(&eves, method).await?) {
            (true, Err(status)) => {
                let error = RpcError::from_status(&status);
                ensure!(!is_refused_for_contact(&error), "{method} is listed: {error:?}");
            }
            (false, Ok(())) => bail!("{method} is answered, and SECURITY.md does not list it"),
            (true, Ok(())) | (false, Err(_)) => {}
        }
    }
    // Complete requests: a listed call, an unlisted one, and the refused part of WatchEvents.
    let described = RunsClient::new(eves.clone()).describe_run(describe()).await?.into_inner();
    ensure!(described.run.is_some_and(|run| run.name == "eval"));
    let results = unconfirmed(v1::ReadResultsRequest { run, ..Default::default() });
    let results = RunsClient::new(eves.clone()).read_results(results).await.map(drop);
    let watch = EventsClient::new(eves.clone()).watch_events(follow()).await.map(drop);
    for refused in [results, watch] {
        let status = refused.err().context("it is answered")?;
        let error = RpcError::from_status(&status);
        ensure!(is_refused_for_contact(&error), "{error:?}");
    }

    set_cut(false);
    is_revoked_at(&eves, lagging).await?;
    fleet.passed()
}
