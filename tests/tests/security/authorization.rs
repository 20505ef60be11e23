//! No client reaches a method outside its certificate's role, a namespace that the certificate does not name, or
//! another client's session: calls every method of every service on real members over TLS.
//!
//! `docs/authorization.md` has the table that the first test finds. `proto/tests/authorization.rs` writes it from the
//! options of the methods, so this test compares what members do with these options.

use anyhow::{Context, Result, bail, ensure};
use prost_reflect::prost::Message as _;
use prost_reflect::{
    DescriptorPool, DynamicMessage, FieldDescriptor, Kind, MessageDescriptor, MethodDescriptor,
    Value,
};
use rollout_proto::pki::{self, IssueRequest};
use rollout_proto::{
    BytesCodec, ChannelOptions, ClientTls, DRY_RUNS, DialMap, Endpoint, ErrorCode, Outcome, Role,
    RpcError, Security, TlsFiles, authz, channel, v1,
};
use rollout_tests::{Fleet, FleetOptions, create_run};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

/// Time limit for a member to accept or refuse a caller.
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// The method that checks requests of others.
const DRY_RUN: &str = "/rollout.v1.DryRuns/DryRun";
/// The deepest nesting of messages in a test's request.
const DEPTH_MAX: usize = 5;

fn dial(security: &Security, member: &str, addr: &str) -> Result<Channel> {
    dial_as(&ClientTls::load(security)?, member, addr)
}

fn dial_as(tls: &ClientTls, member: &str, addr: &str) -> Result<Channel> {
    let endpoint = Endpoint::with_name(member, addr)?;
    Ok(channel(&endpoint, tls, &DialMap::default(), &ChannelOptions::default())?)
}

/// Sends one message, and returns the member's first answer. Works for methods of every kind.
async fn call(channel: &Channel, path: &str, message: Vec<u8>) -> Result<Result<(), Status>> {
    let mut grpc = tonic::client::Grpc::new(channel.clone());
    let asked = async {
        if let Err(error) = grpc.ready().await {
            return Err(Status::from_error(error.into()));
        }
        let path = path.parse().expect("a path");
        let answer = grpc.server_streaming(Request::new(message.into()), path, BytesCodec).await?;
        let mut stream = answer.into_inner();
        // For a stream, its start is the answer, whether that is a refusal or not.
        match tokio::time::timeout(Duration::from_millis(200), stream.message()).await {
            Ok(Err(status)) => Err(status),
            _ => Ok(()),
        }
    };
    tokio::time::timeout(ANSWER_MAX, asked).await.with_context(|| format!("{path} does not answer"))
}

fn methods() -> Result<Vec<MethodDescriptor>> {
    let pool = DescriptorPool::decode(v1::DESCRIPTORS)?;
    let services = pool.services().filter(|s| s.package_name() == "rollout.v1");
    let mut all: Vec<_> = services.flat_map(|s| s.methods().collect::<Vec<_>>()).collect();
    all.sort_by_key(path);
    Ok(all)
}

fn path(method: &MethodDescriptor) -> String {
    format!("/{}/{}", method.parent_service().full_name(), method.name())
}

fn issue(fleet: &Fleet, role: Role, name: &str, namespaces: &[&str]) -> Result<TlsFiles> {
    let request = IssueRequest {
        role,
        name: name.into(),
        namespaces: namespaces.iter().map(|n| (*n).to_owned()).collect(),
        dns_names: vec!["localhost".into()],
        ip_addrs: vec![[127, 0, 0, 1].into()],
        days: 2,
    };
    Ok(pki::issue(&fleet.path("ca"), &request, &fleet.path("tls"))?)
}

/// A certificate of another authority, which the members do not know.
fn of_strangers(fleet: &Fleet) -> Result<Security> {
    let dir = fleet.path("strangers");
    pki::init_ca(&dir, "strangers")?;
    let request = IssueRequest {
        role: Role::Admin,
        name: "operator".into(),
        namespaces: Vec::new(),
        dns_names: vec!["localhost".into()],
        ip_addrs: vec![[127, 0, 0, 1].into()],
        days: 2,
    };
    let own = pki::issue(&dir, &request, &dir)?;
    Ok(Security::Mtls(TlsFiles { ca: fleet.path("tls").join("ca.pem"), ..own }))
}

/// The channels of one caller: to a member's client port, and to its peer port.
struct Caller {
    who: &'static str,
    client: Channel,
    peer: Channel,
}

impl Caller {
    fn new(fleet: &Fleet, member: &str, who: &'static str, security: &Security) -> Result<Self> {
        let client = dial(security, member, fleet.client_addr(member))?;
        let peer = dial(security, member, fleet.peer_addr(member))?;
        Ok(Self { who, client, peer })
    }

    /// A caller without a certificate, at the enrollment port. The port keeps no connection for long, so this opens a
    /// new one.
    fn unenrolled(fleet: &Fleet, member: &str) -> Result<Self> {
        let pins = pki::authority_pins(&fleet.path("tls").join("ca.pem"))?;
        let enrollment =
            dial_as(&ClientTls::pinned(&pins)?, member, fleet.enrollment_addr(member))?;
        Ok(Self { who: "newcomer", client: enrollment.clone(), peer: enrollment })
    }

    /// Whether an empty message reaches the method; the method's own answer does not count.
    async fn reaches(&self, method: &MethodDescriptor) -> Result<bool> {
        let path = path(method);
        let channel = match method.parent_service().name() {
            "Peer" => &self.peer,
            _ => &self.client,
        };
        let Err(status) = call(channel, &path, Vec::new()).await? else { return Ok(true) };
        let error = RpcError::from_status(&status);
        // A local error means that the connection was refused. Only members can connect to the peer port.
        let local = std::error::Error::source(&status).is_some();
        let alone = method.parent_service().name() == "Peer" && self.who != "member";
        match error.code {
            _ if local && (self.who == "none" || alone) => Ok(false),
            _ if local => bail!("{} {path}: {status}", self.who),
            // A method may refuse for its own reasons too, such as another worker's name.
            ErrorCode::PermissionDenied if status.message().contains("may not call") => {
                ensure!(status.code() == Code::PermissionDenied, "{path}: {status}");
                ensure!(error.outcome == Outcome::NotApplied && !error.retryable, "{error}");
                Ok(false)
            }
            ErrorCode::Unauthenticated => Ok(false),
            ErrorCode::UnsupportedVersion => bail!("{} {path}: not served: {status}", self.who),
            _ => Ok(true),
        }
    }
}

fn page() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/authorization.md")
}

const BEGIN: &str = "<!-- written by proto/tests/authorization.rs -->\n";

/// A line of the table without its last column, which says whether the method is audited.
fn without_audit(line: &str) -> &str {
    let end = line.strip_suffix('|').and_then(|line| line.rfind('|'));
    end.map_or(line, |end| &line[..=end])
}

#[tokio::test(flavor = "multi_thread")]
async fn every_method_is_reached_by_exactly_the_documented_roles() -> Result<()> {
    let enrolling = FleetOptions { enrollment_lifetime_s: Some(3600), ..FleetOptions::default() };
    let fleet = Fleet::start(enrolling)?;
    issue(&fleet, Role::Worker, "w1", &[])?;
    let viewer = Security::Mtls(issue(&fleet, Role::Viewer, "dashboard", &[])?);
    let leader = fleet.leader();
    let callers = [
        Caller::new(&fleet, &leader, "none", &of_strangers(&fleet)?)?,
        Caller::new(&fleet, &leader, "member", &fleet.security("member", "c1"))?,
        Caller::new(&fleet, &leader, "worker", &fleet.security("worker", "w1"))?,
        Caller::new(&fleet, &leader, "viewer", &viewer)?,
        Caller::new(&fleet, &leader, "client", &fleet.security("client", "user"))?,
        Caller::new(&fleet, &leader, "admin", &fleet.security("admin", "operator"))?,
    ];
    let methods = methods()?;
    ensure!(methods.len() > 80, "the descriptors are not read right: {}", methods.len());
    let mut table =
        String::from("| method | none | newcomer | member | worker | viewer | client | admin |\n");
    table.push_str("| --- | --- | --- | --- | --- | --- | --- | --- |\n");
    for method in &methods {
        let name = format!("{}/{}", method.parent_service().name(), method.name());
        write!(table, "| {name} |")?;
        let unenrolled = Caller::unenrolled(&fleet, &leader)?;
        for caller in callers[..1].iter().chain([&unenrolled]).chain(&callers[1..]) {
            let reaches = caller.reaches(method).await?;
            let may = caller.who != "newcomer" || name == "Enrolment/Enrol";
            ensure!(may || !reaches, "{name} lets in who has no certificate");
            table.push_str(if reaches { " yes |" } else { " |" });
        }
        table.push('\n');
    }
    let text = std::fs::read_to_string(page())?;
    let (_, kept) = text.split_once(BEGIN).context("the page has no table")?;
    for (was, is) in kept.trim().lines().zip(table.trim().lines()) {
        assert_eq!(without_audit(was), is, "docs/authorization.md is not what members do");
    }
    assert_eq!(kept.trim().lines().count(), table.trim().lines().count());
    fleet.verify()?;
    fleet.passed()
}

/// Whether a message, or one in it, names a namespace.
fn names_a_namespace(message: &MessageDescriptor, depth: usize) -> bool {
    depth < DEPTH_MAX
        && message.fields().any(|field| match field.kind() {
            Kind::String => field.name() == "namespace",
            Kind::Message(inner) if !field.is_map() => names_a_namespace(&inner, depth + 1),
            _ => false,
        })
}

/// The values in a made-up request.
struct RequestValues<'a> {
    /// For every namespace field.
    namespace: &'a str,
    /// For every other text field. A worker may register only under its own name.
    text: &'a str,
    request: v1::RequestId,
}

/// A request with a value in every field.
fn filled(message: &MessageDescriptor, with: &RequestValues<'_>, depth: usize) -> DynamicMessage {
    let mut out = DynamicMessage::new(message.clone());
    for field in message.fields().filter(|field| !field.is_map()) {
        if let Some(value) = value(&field, with, depth) {
            let value = if field.is_list() { Value::List(vec![value]) } else { value };
            out.set_field(&field, value);
        }
    }
    out
}

fn value(field: &FieldDescriptor, with: &RequestValues<'_>, depth: usize) -> Option<Value> {
    Some(match field.kind() {
        Kind::String if field.name() == "namespace" => Value::String(with.namespace.into()),
        Kind::String => Value::String(with.text.into()),
        Kind::Bytes => Value::Bytes(vec![7; 32].into()),
        Kind::Uint32 | Kind::Fixed32 => Value::U32(1),
        Kind::Uint64 | Kind::Fixed64 => Value::U64(1),
        Kind::Enum(_) => Value::EnumNumber(1),
        Kind::Message(inner) if inner.full_name() == "rollout.v1.RequestId" => {
            let mut id = DynamicMessage::new(inner);
            id.transcode_from(&with.request).expect("a request id is one");
            Value::Message(id)
        }
        Kind::Message(inner) if depth < DEPTH_MAX => {
            Value::Message(filled(&inner, with, depth + 1))
        }
        _ => return None,
    })
}

/// A caller whose certificate is for namespace `a` only, and its session.
struct Bound {
    role: Role,
    channel: Channel,
    name: String,
    session: u64,
    seq: u64,
}

impl Bound {
    async fn new(fleet: &Fleet, leader: &str, role: Role) -> Result<Self> {
        let name = format!("{role}-of-a");
        issue(fleet, role, &name, &["a"])?;
        let security = fleet.security(role.as_str(), &name);
        let channel = dial(&security, leader, fleet.client_addr(leader))?;
        let mut runs = v1::runs_client::RunsClient::new(channel.clone());
        let open = v1::OpenSessionRequest { client_name: name.clone() };
        let session = runs.open_session(open).await?.into_inner().session;
        Ok(Self { role, channel, name, session, seq: 0 })
    }

    /// The next request, for this namespace.
    fn request_values<'a>(&'a mut self, namespace: &'a str) -> RequestValues<'a> {
        self.seq += 1;
        let request =
            v1::RequestId { session: self.session, seq: self.seq, ack_upto: self.seq - 1 };
        RequestValues { namespace, text: &self.name, request }
    }

    /// Whether it is refused because of the namespace.
    async fn is_refused(&self, path: &str, message: Vec<u8>) -> Result<bool> {
        let Err(status) = call(&self.channel, path, message).await? else { return Ok(false) };
        let refused = RpcError::from_status(&status).code == ErrorCode::PermissionDenied;
        ensure!(!refused || status.message().contains("namespace"), "{path}: {status}");
        Ok(refused)
    }
}

/// The contents of namespace `default`, as its owner sees them.
async fn of_default(channel: &Channel) -> Result<String> {
    let namespace = || "default".to_owned();
    let mut runs = v1::runs_client::RunsClient::new(channel.clone());
    let listed = runs.list_runs(v1::ListRunsRequest { namespace: namespace() }).await?;
    let mut datasets = v1::datasets_client::DatasetsClient::new(channel.clone());
    let sets = datasets.list_datasets(v1::ListDatasetsRequest { namespace: namespace() }).await?;
    let mut shards = v1::shards_client::ShardsClient::new(channel.clone());
    let asked = v1::ListJobsRequest { namespace: namespace(), ..Default::default() };
    let jobs = shards.list_jobs(asked).await?;
    let mut rendezvous = v1::rendezvous_client::RendezvousClient::new(channel.clone());
    let asked = v1::RendezvousListRequest { namespace: namespace(), ..Default::default() };
    let meetings = rendezvous.list(asked).await?;
    Ok(format!(
        "{:?} {:?} {:?} {:?}",
        listed.into_inner().runs,
        sets.into_inner().datasets,
        jobs.into_inner().jobs,
        meetings.into_inner().rendezvous
    ))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_for_one_namespace_neither_reads_nor_changes_anything_of_another()
-> Result<()> {
    let fleet = Fleet::start(FleetOptions::default())?;
    let leader = fleet.leader();
    let owner = dial(&fleet.security("client", "user"), &leader, fleet.client_addr(&leader))?;
    let mut runs = v1::runs_client::RunsClient::new(owner.clone());
    let open = v1::OpenSessionRequest { client_name: "owner".into() };
    let session = runs.open_session(open).await?.into_inner().session;
    let request = v1::RequestId { session, seq: 1, ack_upto: 0 };
    let run = runs.create_run(create_run(request, "theirs")).await?.into_inner().run;
    let before = of_default(&owner).await?;

    let mut client = Bound::new(&fleet, &leader, Role::Client).await?;
    let mut worker = Bound::new(&fleet, &leader, Role::Worker).await?;
    let mut admin = Bound::new(&fleet, &leader, Role::Admin).await?;
    let (mut named, mut numbered) = (0, 0);
    for method in methods()? {
        let (path, input) = (path(&method), method.input());
        let roles = authz::allowed(&path).context("a method of the table")?;
        let all = [&mut client, &mut worker, &mut admin];
        let Some(by) = all.into_iter().find(|by| roles.contains(&by.role)) else { continue };
        if names_a_namespace(&input, 0) {
            named += 1;
            // An empty namespace means `default`, except in methods where it means every namespace that the caller
            // may see.
            let others = match path.as_str() {
                "/rollout.v1.Events/WatchEvents" => &["default", "b"][..],
                _ => &["default", "b", ""][..],
            };
            for other in others {
                let message = filled(&input, &by.request_values(other), 0).encode_to_vec();
                let refused = by.is_refused(&path, message.clone()).await?;
                ensure!(refused, "{path} lets {} into namespace {other:?}", by.role);
                if DRY_RUNS.contains(&path.as_str()) {
                    let dry = v1::DryRunRequest { method: path.clone(), request: message.into() };
                    let asked = by.is_refused(DRY_RUN, dry.encode_to_vec()).await?;
                    ensure!(asked, "a dry run of {path} lets {} into {other:?}", by.role);
                }
            }
            let message = filled(&input, &by.request_values("a"), 0).encode_to_vec();
            // No client may change its own quota.
            let of_all = path == "/rollout.v1.Namespaces/SetQuota";
            let refused = by.is_refused(&path, message).await?;
            ensure!(refused == of_all, "{path} of their own namespace: refused is {refused}");
        }
        // Requests may also name runs by number.
        if let Some(field) = input.get_field_by_name("run").filter(|f| f.kind() == Kind::Uint32) {
            numbered += 1;
            let mut message = DynamicMessage::new(input.clone());
            message.set_field(&field, Value::U32(run));
            if let Some(field) = input.get_field_by_name("request") {
                let id = value(&field, &by.request_values(""), 0).expect("an id");
                message.set_field(&field, id);
            }
            let refused = by.is_refused(&path, message.encode_to_vec()).await?;
            ensure!(refused, "{path} lets {} at a run of namespace default", by.role);
        }
    }
    ensure!(named > 40 && numbered >= 4, "{named} methods with a namespace, {numbered} by number");
    for path in [
        "Maintenance/SaveSnapshot",
        "Maintenance/Diagnose",
        "Members/RemoveMember",
        "Members/TransferLeader",
        "Cluster/RequestDigest",
    ] {
        let path = format!("/rollout.v1.{path}");
        ensure!(admin.is_refused(&path, Vec::new()).await?, "{path} is for all namespaces");
    }
    assert_eq!(of_default(&owner).await?, before, "nothing of it was changed");
    let seen = events(&client.channel).await?;
    ensure!(seen.iter().all(|namespace| namespace != "default"), "events of others: {seen:?}");
    ensure!(events(&owner).await?.iter().any(|namespace| namespace == "default"));
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn a_list_of_all_namespaces_has_those_of_the_certificate_and_titles_can_be_left_out() -> Result<()>
{
    let fleet = Fleet::start(FleetOptions::default())?;
    let done = |args: &[&str]| -> Result<String> {
        let out = fleet.ctl(args)?;
        ensure!(out.status.success(), "{args:?}: {out:?}");
        Ok(String::from_utf8(out.stdout)?)
    };
    done(&["namespace", "set-quota", "a", "--create", "--runs-max", "9"])?;
    for namespace in ["a", "default"] {
        let within = ["--namespace", namespace];
        let create = ["dataset", "create", "pile", "--uri", "x", "--samples", "5"];
        done(&[&within[..], &create].concat())?;
        let closed =
            done(&[&within[..], &["rendezvous", "close", "sft", "evals", "--yes"]].concat())?;
        ensure!(closed.lines().count() == 2, "both are closed: {closed}");
    }

    let own = issue(&fleet, Role::Client, "of-a", &["a"])?;
    let (cert, key) = (own.cert.to_str().context("a path")?, own.key.to_str().context("a path")?);
    for (noun, things, in_each) in [
        ("dataset", "datasets", 1),
        ("rendezvous", "rendezvous", 2),
        ("job", "jobs", 2),
        ("checkpoint", "checkpoints", 0),
    ] {
        let namespaces = |list: &serde_json::Value| -> Vec<String> {
            let all = list[things].as_array().into_iter().flatten();
            let all = all.filter_map(|thing| thing["namespace"].as_str().map(str::to_owned));
            // Some lists begin with the newest.
            let mut all: Vec<String> = all.collect();
            all.sort();
            all
        };
        // A missing namespace does not matter to a list of all.
        let listed = fleet.ctl_json(&["--namespace", "nope", noun, "list", "-A"])?;
        let expected = [vec!["a"; in_each], vec!["default"; in_each]].concat();
        ensure!(namespaces(&listed) == expected, "{noun}: {listed}");
        let theirs = fleet.ctl_json(&["--cert", cert, "--key", key, noun, "list", "-A"])?;
        ensure!(namespaces(&theirs) == vec!["a"; in_each], "{noun}: {theirs}");
    }

    let table = done(&["dataset", "list", "-A"])?;
    ensure!(table.starts_with("NAMESPACE  NAME") && table.lines().count() == 3, "{table}");
    let bare = done(&["dataset", "list", "-A", "--no-headers"])?;
    ensure!(table.ends_with(&bare) && bare.lines().count() == 2, "{bare}");
    fleet.verify()?;
    fleet.passed()
}

/// The namespaces of all events that a caller gets who asks for all.
async fn events(channel: &Channel) -> Result<Vec<String>> {
    let mut client = v1::events_client::EventsClient::new(channel.clone());
    let all = v1::WatchEventsRequest { start: v1::EventStart::Oldest.into(), ..Default::default() };
    let mut stream = client.watch_events(all).await?.into_inner();
    let mut namespaces = Vec::new();
    while let Some(batch) = tokio::time::timeout(ANSWER_MAX, stream.message()).await?? {
        namespaces.extend(batch.events.into_iter().map(|event| event.namespace));
    }
    Ok(namespaces)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_serves_only_the_client_that_opened_it() -> Result<()> {
    let fleet = Fleet::start(FleetOptions::default())?;
    issue(&fleet, Role::Client, "thief", &[])?;
    // The same name in another role is a different identity.
    issue(&fleet, Role::Admin, "user", &[])?;
    let leader = fleet.leader();
    let client = |role: &str, name: &str| -> Result<_> {
        let channel = dial(&fleet.security(role, name), &leader, fleet.client_addr(&leader))?;
        Ok(v1::runs_client::RunsClient::new(channel))
    };
    let mut owner = client("client", "user")?;
    let open = v1::OpenSessionRequest { client_name: "owner".into() };
    let session = owner.open_session(open).await?.into_inner().session;
    let request = v1::RequestId { session, seq: 1, ack_upto: 0 };
    for (role, name) in [("client", "thief"), ("admin", "user")] {
        let refused = client(role, name)?.create_run(create_run(request, "mine")).await;
        let error = RpcError::from_status(&refused.expect_err("not their session"));
        assert_eq!((error.code, error.outcome), (ErrorCode::PermissionDenied, Outcome::NotApplied));
        // Nor can their acknowledgments make the owner's answers be forgotten.
        let acked = v1::RequestId { session, seq: 1000, ack_upto: 999 };
        assert!(client(role, name)?.create_run(create_run(acked, "mine")).await.is_err());
    }
    // A certificate of the same name for other namespaces is refused too.
    issue(&fleet, Role::Client, "twin", &["default"])?;
    let open = v1::OpenSessionRequest { client_name: "twin".into() };
    let mut owner_of_twins = client("client", "twin")?;
    let twins = owner_of_twins.open_session(open).await?.into_inner().session;
    let twins = v1::RequestId { session: twins, seq: 1, ack_upto: 0 };
    issue(&fleet, Role::Client, "twin", &["default", "b"])?;
    let refused = client("client", "twin")?.create_run(create_run(twins, "twins")).await;
    let error = RpcError::from_status(&refused.expect_err("not its session"));
    assert_eq!(error.code, ErrorCode::PermissionDenied, "{error}");
    owner_of_twins.create_run(create_run(twins, "twins")).await?;
    let guessed = v1::RequestId { session: u64::MAX, seq: 1, ack_upto: 0 };
    let refused = client("client", "thief")?.create_run(create_run(guessed, "mine")).await;
    let error = RpcError::from_status(&refused.expect_err("nobody's session"));
    assert_eq!(error.code, ErrorCode::SessionUnknown);
    let created = owner.create_run(create_run(request, "mine")).await?.into_inner();
    assert!(created.created, "the owner's request is not spent");
    let again = owner.create_run(create_run(request, "mine")).await?.into_inner();
    assert_eq!((again.created, again.run), (true, created.run), "a repeat is answered");
    fleet.passed()
}
