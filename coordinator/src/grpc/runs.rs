//! `Runs`: batch jobs of users.

use super::namespace::Listed;
use super::{Shared, caller, check_namespace, namespace_or_default, session_room};
use crate::grpc::convert::{self, Kind};
use crate::grpc::session_holder::holder_of;
use crate::leader::ledger_read::ReadLedger;
use crate::observe::audit;
use rollout_ledger::id::{RunNo, SegmentNo};
use rollout_ledger::view::{FailureRecord, RunState, RunView};
use rollout_ledger::{Ledger, Op, OpKind, Reply, RunAction, op};
use rollout_proto::{ErrorCode, Identity, RpcError, v1};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tonic::{Request, Response, Status};

/// Failures shown with a run.
const FAILURES_SHOWN: usize = 100;
/// Messages of a stream that wait for a slow reader.
const STREAM_AHEAD: usize = 4;
/// Parts of reused results in one request.
const REUSED_PARTS_MAX: usize = 64;
/// Bounds of a watch's interval.
const WATCH_MS: std::ops::RangeInclusive<u64> = 50..=60_000;

#[derive(Clone)]
pub(crate) struct RunsService(pub(crate) Arc<Shared>);

type Streamed<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl RunsService {
    fn view(&self, no: RunNo) -> Result<(RunView, String), RpcError> {
        let found = self.0.node.ledger(|l| l.run_view(no).map(|v| (v, l.blocked(no))));
        found.ok_or_else(|| unknown(no))
    }

    /// Checks that the operators list the origin that a run names.
    fn check_notify(&self, url: &str) -> Result<(), RpcError> {
        match (url, &self.0.hooks) {
            ("", _) => Ok(()),
            (url, Some(hooks)) => hooks.admit(url).map(drop).map_err(convert::invalid),
            (_, None) => Err(convert::invalid(
                "this cluster calls no completion webhooks: [webhooks] allow is empty on its members",
            )),
        }
    }

    fn check_run(&self, identity: &Identity, no: RunNo) -> Result<(String, String), RpcError> {
        let name = self.0.found(|l| l.run_name(no)).ok_or_else(|| unknown(no))?;
        audit::about("run", &name.1);
        check_namespace(identity, &name.0)?;
        Ok(name)
    }
}

/// Refuses a sealed run: the ledger no longer has its rows.
pub(super) fn check_unsealed(run: &RunView, name: &str) -> Result<(), RpcError> {
    if run.sealed.is_none() {
        return Ok(());
    }
    let text = format!(
        "run {name} is sealed: its manifest has the outcome of its rows; rollout run results and rollout run export read it"
    );
    Err(RpcError::new(ErrorCode::RunEnded, text))
}

#[tonic::async_trait]
impl v1::runs_server::Runs for RunsService {
    async fn open_session(
        &self,
        request: Request<v1::OpenSessionRequest>,
    ) -> Result<Response<v1::OpenSessionResponse>, Status> {
        let version = self.0.node.ledger(Ledger::version);
        let holder = holder_of(&caller(&request)?, version);
        if let Some(full) = self.0.node.ledger(|l| session_room::check(l, &holder).err()) {
            return Err(full.into());
        }
        let name = request.into_inner().client_name;
        let session =
            match self.0.apply(None, OpKind::OpenClient(op::OpenClient { name, holder })).await? {
                Reply::ClientOpened { session } => session.0,
                other => return Err(unexpected(&other)),
            };
        let store_url = self.0.probe.url().to_owned();
        let header = Some(self.0.header());
        Ok(Response::new(v1::OpenSessionResponse { header, session, store_url }))
    }

    async fn create_run(
        &self,
        request: Request<v1::CreateRunRequest>,
    ) -> Result<Response<v1::CreateRunResponse>, Status> {
        let identity = caller(&request)?;
        let r = request.into_inner();
        let namespace = namespace_or_default(&r.namespace);
        audit::about("run", &r.name);
        check_namespace(&identity, &namespace)?;
        let id = self.0.request_in(&identity, r.request.as_ref())?;
        let mut spec = Box::new(convert::spec_in(r.spec)?);
        self.check_notify(&spec.notify_url)?;
        let there = self.0.node.ledger(|l| {
            let view = l.find_run(&namespace, &r.name).and_then(|no| l.run_view(no));
            view.map(|view| view.spec.store_url)
        });
        let requested_url = std::mem::take(&mut spec.store_url);
        spec.store_url = self.0.stores.recorded(requested_url, there).map_err(convert::invalid)?;
        let folder = folder_of(&r.name, &self.0.cluster_id(), r.folder)?;
        let kind = OpKind::CreateRun(op::CreateRun { namespace, name: r.name, spec, folder });
        match self.0.apply(Some(id), kind).await? {
            Reply::Run { run, created, segments, rows, input_closed, folder } => {
                Ok(Response::new(v1::CreateRunResponse {
                    header: Some(self.0.header()),
                    run: run.0,
                    created,
                    segments,
                    rows,
                    input_closed,
                    folder,
                }))
            }
            other => Err(unexpected(&other)),
        }
    }

    async fn add_segments(
        &self,
        request: Request<v1::AddSegmentsRequest>,
    ) -> Result<Response<v1::AddSegmentsResponse>, Status> {
        let identity = caller(&request)?;
        let r = request.into_inner();
        // A member that does not lead may not know the run yet, so it must not refuse.
        self.0.leader_state()?;
        self.check_run(&identity, RunNo(r.run))?;
        let (namespace, folder) =
            self.0.node.ledger(|l| l.run_folder(RunNo(r.run))).unwrap_or_default();
        let id = self.0.request_in(&identity, r.request.as_ref())?;
        if r.carried.len() > REUSED_PARTS_MAX {
            let text =
                format!("more than {REUSED_PARTS_MAX} parts of reused results in one request");
            return Err(convert::invalid(text).into());
        }
        for segment in &r.segments {
            check_key(&namespace, &folder, Kind::Segment, segment.blob.as_ref())?;
        }
        let segments = r.segments.iter().map(convert::segment_in).collect::<Result<_, _>>()?;
        let run = RunNo(r.run);
        let mut ops = vec![Op {
            request: Some(id),
            kind: OpKind::AddSegments(op::AddSegments { run, segments }),
        }];
        for part in &r.carried {
            check_key(&namespace, &folder, Kind::Part, part.blob.as_ref())?;
            // Reused results need no request id: adding the same part again changes nothing.
            ops.push(convert::reuse_in(run, part)?.into());
        }
        match self.0.apply_all(ops).await? {
            Reply::Run { segments, rows, .. } => Ok(Response::new(v1::AddSegmentsResponse {
                header: Some(self.0.header()),
                segments,
                rows,
            })),
            other => Err(unexpected(&other)),
        }
    }

    async fn close_input(
        &self,
        request: Request<v1::CloseInputRequest>,
    ) -> Result<Response<v1::CloseInputResponse>, Status> {
        let identity = caller(&request)?;
        let r = request.into_inner();
        // As in `add_segments`.
        self.0.leader_state()?;
        self.check_run(&identity, RunNo(r.run))?;
        let id = self.0.request_in(&identity, r.request.as_ref())?;
        let digest = convert::digest_in(&r.digest)?;
        let kind = OpKind::CloseInput(op::CloseInput { run: RunNo(r.run), rows: r.rows, digest });
        self.0.apply(Some(id), kind).await?;
        Ok(Response::new(v1::CloseInputResponse { header: Some(self.0.header()) }))
    }

    async fn control_run(
        &self,
        request: Request<v1::ControlRunRequest>,
    ) -> Result<Response<v1::ControlRunResponse>, Status> {
        let identity = caller(&request)?;
        let r = request.into_inner();
        let leader = self.0.reading().await?;
        let run = self.0.find_run(&identity, &r.namespace, &r.name)?;
        let id = self.0.request_in(&identity, r.request.as_ref())?;
        let action = match r.action() {
            v1::RunAction::Pause => RunAction::Pause,
            v1::RunAction::Resume => RunAction::Resume,
            v1::RunAction::Cancel => RunAction::Cancel,
            v1::RunAction::Unspecified => return Err(convert::invalid("unknown action").into()),
        };
        let kind = OpKind::ControlRun(op::ControlRun { run, action, reason: r.reason });
        let (index, _) = self.0.apply_at(Some(id), kind).await?;
        if action == RunAction::Cancel {
            leader.revoke_taken(index, "the run was cancelled");
        }
        leader.wake();
        let (view, blocked) = self.view(run)?;
        let run = Some(convert::run_out(&view, blocked));
        Ok(Response::new(v1::ControlRunResponse { header: Some(self.0.header()), run }))
    }

    async fn set_deadline(
        &self,
        request: Request<v1::SetDeadlineRequest>,
    ) -> Result<Response<v1::SetDeadlineResponse>, Status> {
        let identity = caller(&request)?;
        let r = request.into_inner();
        self.0.reading().await?;
        let run = self.0.find_run(&identity, &r.namespace, &r.name)?;
        let id = self.0.request_in(&identity, r.request.as_ref())?;
        let set = op::SetDeadline { run, deadline_ms: r.deadline_ms };
        self.0.apply(Some(id), OpKind::SetDeadline(set)).await?;
        Ok(Response::new(v1::SetDeadlineResponse { header: Some(self.0.header()) }))
    }

    async fn set_weight(
        &self,
        request: Request<v1::SetWeightRequest>,
    ) -> Result<Response<v1::SetWeightResponse>, Status> {
        let identity = caller(&request)?;
        let r = request.into_inner();
        self.0.reading().await?;
        let run = self.0.find_run(&identity, &r.namespace, &r.name)?;
        let id = self.0.request_in(&identity, r.request.as_ref())?;
        let set = op::SetWeight { run, weight: r.weight };
        self.0.apply(Some(id), OpKind::SetWeight(set)).await?;
        Ok(Response::new(v1::SetWeightResponse { header: Some(self.0.header()) }))
    }

    async fn list_runs(
        &self,
        request: Request<v1::ListRunsRequest>,
    ) -> Result<Response<v1::ListRunsResponse>, Status> {
        let identity = caller(&request)?;
        let listed = Listed::of(&identity, &request.get_ref().namespace)?;
        self.0.reading_for(&request).await?;
        let header = self.0.header();
        listed.check_is_there(&self.0)?;
        let runs = self.0.read_ledger(|l| {
            let (views, mut blocked) = (l.run_views(listed.one()).into_iter(), l.all_blocked());
            let views = views.filter(|v| listed.has(&v.namespace));
            views.map(|v| convert::run_out(&v, blocked.why(v.run))).collect()
        });
        Ok(Response::new(v1::ListRunsResponse { header: Some(header), runs }))
    }

    async fn describe_run(
        &self,
        request: Request<v1::DescribeRunRequest>,
    ) -> Result<Response<v1::DescribeRunResponse>, Status> {
        let identity = caller(&request)?;
        self.0.reading_for(&request).await?;
        let header = self.0.header();
        let r = request.into_inner();
        let no = match r.name.is_empty() {
            true => RunNo(r.run),
            false => self.0.find_run(&identity, &r.namespace, &r.name)?,
        };
        self.check_run(&identity, no)?;
        let found = self.0.read_ledger(|l| {
            let failures = l.failures(no, FAILURES_SHOWN);
            l.run_view(no).map(|view| (view, l.blocked(no), failures, l.rows_that_avoid_slots(no)))
        });
        let (view, blocked, failures, avoiding_rows) = found.ok_or_else(|| unknown(no))?;
        let failed = |(row, record): &(u64, FailureRecord)| {
            convert::failed_row_out(&view.namespace, &view.folder, *row, record)
        };
        let store_url = match view.spec.store_url.as_str() {
            "" => self.0.probe.url().to_owned(),
            own => own.to_owned(),
        };
        Ok(Response::new(v1::DescribeRunResponse {
            header: Some(header),
            run: Some(convert::run_out(&view, blocked)),
            spec: Some(convert::spec_for(&identity, &view.spec)),
            spec_digest: view.spec_digest.to_vec().into(),
            failures: failures.iter().map(failed).collect(),
            store_url,
            avoiding_rows,
        }))
    }

    type WatchRunStream = Streamed<v1::WatchRunResponse>;

    async fn watch_run(
        &self,
        request: Request<v1::WatchRunRequest>,
    ) -> Result<Response<Self::WatchRunStream>, Status> {
        let identity = caller(&request)?;
        let r = request.into_inner();
        self.0.reading().await?;
        let no = self.0.find_run(&identity, &r.namespace, &r.name)?;
        let every = Duration::from_millis(
            u64::from(r.interval_ms).clamp(*WATCH_MS.start(), *WATCH_MS.end()),
        );
        let (out, stream) = mpsc::channel(STREAM_AHEAD);
        let service = self.clone();
        tokio::spawn(async move {
            loop {
                let message = service.watched(no);
                let ends = match &message {
                    Ok((_, ended)) => *ended,
                    Err(_) => true,
                };
                let sent = out.send(message.map(|m| m.0).map_err(Status::from)).await;
                if ends || sent.is_err() {
                    return;
                }
                tokio::select! {
                    () = tokio::time::sleep(every) => {}
                    () = out.closed() => return,
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }

    async fn delete_run(
        &self,
        request: Request<v1::DeleteRunRequest>,
    ) -> Result<Response<v1::DeleteRunResponse>, Status> {
        let identity = caller(&request)?;
        let r = request.into_inner();
        self.0.reading().await?;
        let id = self.0.request_in(&identity, r.request.as_ref())?;
        // If this repeats a request that was applied, the run and its name are gone, but not the answer. So let the
        // ledger decide: it knows the request, and has no run of number 0.
        let (run, missing) = match self.0.find_run(&identity, &r.namespace, &r.name) {
            Err(missing) if missing.code == ErrorCode::RunNotFound => (RunNo(0), Some(missing)),
            found => (found?, None),
        };
        match (self.0.apply(Some(id), OpKind::DeleteRun(op::DeleteRun { run })).await, missing) {
            (Err(why), Some(missing)) if why.code == ErrorCode::RunNotFound => Err(missing)?,
            (applied, _) => applied?,
        };
        Ok(Response::new(v1::DeleteRunResponse { header: Some(self.0.header()) }))
    }

    type ReadResultsStream = Streamed<v1::ReadResultsResponse>;

    async fn read_results(
        &self,
        request: Request<v1::ReadResultsRequest>,
    ) -> Result<Response<Self::ReadResultsStream>, Status> {
        let identity = caller(&request)?;
        let r = request.into_inner();
        self.0.reading().await?;
        let no = RunNo(r.run);
        let (_, name) = self.check_run(&identity, no)?;
        let v = self.view(no)?.0;
        check_unsealed(&v, &name)?;
        let (namespace, folder) = (v.namespace, v.folder);
        let (out, stream) = mpsc::channel(STREAM_AHEAD);
        let shared = self.0.clone();
        tokio::spawn(async move {
            let end = match r.segments_max {
                0 => u32::MAX,
                max => r.first_segment.saturating_add(max),
            };
            for number in r.first_segment..end {
                // One read: the header has the index of the segment's state.
                let (view, at) = shared.node.ledger(|l| {
                    (l.segment_view(no, SegmentNo(number)), (l.applied().index, l.epoch().0))
                });
                let Some(view) = view else { return };
                let mut message = convert::results_out(&namespace, &folder, &view);
                message.header = Some(v1::ClusterHeader {
                    cluster_id: shared.cluster_id(),
                    coord_epoch: at.1,
                    applied_index: at.0,
                    ..Default::default()
                });
                if out.send(Ok(message)).await.is_err() {
                    return;
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }
}

impl RunsService {
    /// One message of a watch, and whether it is the last.
    fn watched(&self, no: RunNo) -> Result<(v1::WatchRunResponse, bool), RpcError> {
        self.0.leader_state()?;
        let (view, blocked) = self.view(no)?;
        let ended = !matches!(view.state, RunState::Running | RunState::Paused);
        let run = Some(convert::run_out(&view, blocked));
        Ok((v1::WatchRunResponse { header: Some(self.0.header()), run }, ended))
    }
}

fn unknown(no: RunNo) -> RpcError {
    RpcError::new(ErrorCode::RunNotFound, format!("no run number {no}"))
}

/// The folder of a new run's objects: the client's choice, or one that this leader generates.
pub(super) fn folder_of(name: &str, cluster_id: &str, wanted: String) -> Result<String, RpcError> {
    if wanted.is_empty() {
        return Ok(rollout_storage::run_folder(name, cluster_id, rand::random()));
    }
    // A cluster must not sweep another one's folders.
    let start = format!("{name}/{}", rollout_storage::folder_mark(cluster_id));
    let drawn = wanted.strip_prefix(&start).filter(|drawn| {
        drawn.len() == 16 && drawn.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    });
    match drawn {
        Some(_) => Ok(wanted),
        None => Err(convert::invalid(format!("folder {wanted} should be {start} and 16 digits"))),
    }
}

/// Checks that an object has the key under which all readers look for it.
pub(super) fn check_key(
    namespace: &str,
    folder: &str,
    kind: Kind,
    blob: Option<&v1::BlobRef>,
) -> Result<(), RpcError> {
    let named = convert::blob_in(blob)?;
    let expected = convert::blob_out(namespace, folder, kind, &named).key;
    let got = blob.map(|b| b.key.as_str()).unwrap_or_default();
    match got == expected {
        true => Ok(()),
        false => Err(convert::invalid(format!("object key {got} should be {expected}"))),
    }
}

/// The reply belongs to another operation, because the caller used one request id twice. The error does not contain
/// the reply, which may have another user's data.
pub(super) fn unexpected(_: &Reply) -> Status {
    let text = "this request id was used for another operation before: take the next one";
    convert::invalid(text).into()
}

#[cfg(test)]
mod tests {
    use super::{folder_of, unexpected};
    use rollout_ledger::{Reply, StoreAnswer};
    use rollout_proto::{ErrorCode, RpcError};

    #[test]
    fn the_error_for_a_reply_to_another_operation_does_not_contain_the_reply() {
        let value = b"a-secret-of-a-store".to_vec();
        let reply = Reply::Store(vec![StoreAnswer::Value(Some(value))]);
        let shown = format!("{reply:?}");
        let status = unexpected(&reply);
        let error = RpcError::from_status(&status);
        assert_eq!(error.code, ErrorCode::InvalidArgument);
        let whole = format!("{status:?} {status} {error:?} {error}");
        assert!(whole.contains("take the next one"), "{whole}");
        for part in ["secret", "StoreAnswer", "97, 45", shown.as_str()] {
            assert!(!whole.contains(part), "{part}: {whole}");
        }
    }

    #[test]
    fn the_folder_of_a_new_run_is_unique_whether_client_or_leader_generates_it() {
        let cluster = "0123456789abcdef0123456789abcdef";
        let drawn = |wanted: &str| folder_of("chat", cluster, wanted.to_owned());
        let (one, two) = (drawn("").expect("drawn"), drawn("").expect("drawn"));
        assert_ne!(one, two);
        assert_eq!(drawn(&one).expect("its own"), one);
        for bad in [
            "chat",
            "chat/segments",
            "other/0123456789abcdef-0000000000000001",
            "chat/0123456789abcdee-0000000000000001",
            "chat/0123456789abcdef-000000000000000G",
            "chat/0123456789abcdef-0000000000000001/x",
        ] {
            assert!(drawn(bad).is_err(), "{bad} was accepted");
        }
    }
}
