//! `Items`: single rows of a run, and their history.

use super::runs::{check_unsealed, unexpected};
use super::{Shared, caller};
use crate::grpc::convert;
use crate::leader::ledger_read::ReadLedger;
use crate::leader::state::LeaderState;
use rollout_ledger::id::{Attempt, LedgerMs, RunNo, SegmentNo, SlotRef};
use rollout_ledger::view::{
    FailedTry, ItemPlace, ItemState, ItemView, NamedSlot, Ruling, RunState,
};
use rollout_ledger::{Ledger, OpKind, Reply, op};
use rollout_proto::{ErrorCode, RpcError, v1};
use std::sync::Arc;
use tonic::{Request, Response, Status};

/// Rows of a page by default.
const PAGE: u32 = 100;
/// Most rows of a page.
const PAGE_MAX: u32 = 1000;

#[derive(Clone)]
pub(crate) struct ItemsService(pub(crate) Arc<Shared>);

impl ItemsService {
    fn check_rows_are_here(&self, no: RunNo, name: &str) -> Result<(), RpcError> {
        // Does not read the rows, and so notes no position in the log.
        match self.0.node.ledger(|l| l.run_view(no)) {
            Some(run) => check_unsealed(&run, name),
            None => Ok(()),
        }
    }
}

#[tonic::async_trait]
impl v1::items_server::Items for ItemsService {
    async fn list_items(
        &self,
        request: Request<v1::ListItemsRequest>,
    ) -> Result<Response<v1::ListItemsResponse>, Status> {
        let identity = caller(&request)?;
        let r = request.get_ref();
        let state = state_in(r.state())?;
        let limit = if r.limit == 0 { PAGE } else { r.limit };
        if limit > PAGE_MAX {
            return Err(convert::invalid(format!("limit is over {PAGE_MAX}")).into());
        }
        let leader = self.0.reading_for(&request).await?;
        let header = self.0.header();
        let no = self.0.find_run(&identity, &r.namespace, &r.run)?;
        self.check_rows_are_here(no, &r.run)?;
        let mut items = self.0.node.ledger(|l| {
            let now = now(leader.as_deref(), l);
            let found = l.items(no, state, r.from_row, limit as usize);
            found.into_iter().map(|item| item_out(l, now, no, item)).collect::<Vec<_>>()
        });
        for item in &mut items {
            // A list has only the last failure; the description has the whole history.
            let earlier = item.history.len().saturating_sub(1);
            item.history.drain(..earlier);
        }
        let full = items.len() == limit as usize;
        let next_row = items.last().filter(|_| full).map_or(0, |last| last.row + 1);
        Ok(Response::new(v1::ListItemsResponse { header: Some(header), items, next_row }))
    }

    async fn describe_item(
        &self,
        request: Request<v1::DescribeItemRequest>,
    ) -> Result<Response<v1::DescribeItemResponse>, Status> {
        let identity = caller(&request)?;
        let leader = self.0.reading_for(&request).await?;
        let header = self.0.header();
        let r = request.into_inner();
        let no = self.0.find_run(&identity, &r.namespace, &r.run)?;
        self.check_rows_are_here(no, &r.run)?;
        let found = self.0.read_ledger(|l| {
            let item = l.item(no, r.row)?;
            let (namespace, folder) = l.run_folder(no)?;
            let segment = l.segment_ref(no, item.segment)?;
            let segment = convert::segment_out(&namespace, &folder, &segment);
            Some((item_out(l, now(leader.as_deref(), l), no, item), segment))
        });
        let (item, segment) = found.ok_or_else(|| {
            let text = format!("run {} has no row {}", r.run, r.row);
            RpcError::new(ErrorCode::RowNotFound, text)
        })?;
        Ok(Response::new(v1::DescribeItemResponse {
            header: Some(header),
            item: Some(item),
            segment: segment.blob,
            segment_first_row: segment.first_row,
        }))
    }

    async fn retry_items(
        &self,
        request: Request<v1::RetryItemsRequest>,
    ) -> Result<Response<v1::RetryItemsResponse>, Status> {
        let identity = caller(&request)?;
        let r = request.into_inner();
        let leader = self.0.reading().await?;
        let run = self.0.find_run(&identity, &r.namespace, &r.run)?;
        let id = self.0.request_in(&identity, r.request.as_ref())?;
        let rows = convert::rows_in(r.rows.as_ref())?;
        if r.all_failed != rows.is_empty() {
            return Err(convert::invalid("set either all_failed or rows, not both").into());
        }
        let rows = (!r.all_failed).then_some(rows);
        let rows =
            match self.0.apply(Some(id), OpKind::RetryRows(op::RetryRows { run, rows })).await? {
                Reply::Retried { rows } => rows,
                other => return Err(unexpected(&other)),
            };
        tracing::info!(by = %identity, run = r.run, rows, "retrying failed rows");
        leader.wake();
        let state = self.0.node.ledger(|l| l.run_view(run).map(|v| v.state));
        let paused = state == Some(RunState::Paused);
        Ok(Response::new(v1::RetryItemsResponse { header: Some(self.0.header()), rows, paused }))
    }
}

fn state_in(state: v1::ItemState) -> Result<ItemState, RpcError> {
    match state {
        v1::ItemState::Pending => Ok(ItemState::Pending),
        v1::ItemState::Waiting => Ok(ItemState::Waiting),
        v1::ItemState::Running => Ok(ItemState::Running),
        v1::ItemState::Done => Ok(ItemState::Done),
        v1::ItemState::Failed => Ok(ItemState::Failed),
        v1::ItemState::Unspecified => Err(convert::invalid("name the state to list")),
    }
}

/// Ledger time as the leader counts it or, at another member, of the last applied entry.
fn now(leader: Option<&LeaderState>, ledger: &Ledger) -> LedgerMs {
    leader.map_or_else(|| ledger.clock(), LeaderState::now)
}

fn item_out(ledger: &Ledger, now: LedgerMs, no: RunNo, item: ItemView) -> v1::Item {
    let (namespace, folder) = ledger.run_folder(no).unwrap_or_default();
    let SegmentNo(segment) = item.segment;
    let tries = item.failure_record.history.iter();
    let mut out = v1::Item {
        row: item.row,
        segment,
        trial_rows: item.group.len(),
        strikes: item.failure_record.strikes.total(),
        history: tries.map(|t| try_out(&namespace, &folder, t)).collect(),
        ..v1::Item::default()
    };
    let state = match item.place {
        ItemPlace::Pending => v1::ItemState::Pending,
        ItemPlace::Waiting(until) => {
            out.waits_ms = until.0.saturating_sub(now.0);
            v1::ItemState::Waiting
        }
        ItemPlace::Running(slot, attempt) => {
            let v1::Holder { worker, slot, attempt } = holder_out(ledger, slot, attempt);
            (out.worker, out.slot, out.attempt) = (worker, slot, attempt);
            out.duplicate = item.speculative.map(|(slot, of)| holder_out(ledger, slot, of));
            v1::ItemState::Running
        }
        ItemPlace::Done(part, row) => {
            let kind = convert::Kind::Part;
            out.part = Some(convert::blob_out(&namespace, &folder, kind, &part.blob));
            out.part_row = row;
            if let Some(by) = item.failure_record.done {
                (out.worker, out.attempt, out.done_wall_ms) = (by.worker, by.attempt.0, by.wall_ms);
            }
            v1::ItemState::Done
        }
        ItemPlace::Failed => v1::ItemState::Failed,
    };
    if let Some(avoids) = item.avoids {
        out.avoids_ms = avoids.until.0.saturating_sub(now.0);
        let named = |at: NamedSlot| v1::SlotName { worker: at.worker, slot: at.slot.0.into() };
        out.avoids = avoids.slots.into_iter().map(named).collect();
    }
    out.state = state.into();
    out
}

fn holder_out(ledger: &Ledger, slot: SlotRef, attempt: Attempt) -> v1::Holder {
    let worker = ledger.worker_name(slot.session).map(|(_, name)| name.to_owned());
    v1::Holder { worker: worker.unwrap_or_default(), slot: slot.slot.0.into(), attempt: attempt.0 }
}

fn try_out(namespace: &str, folder: &str, failed: &FailedTry) -> v1::FailedTry {
    let (ruling, among) = match failed.ruling {
        Ruling::Excused => (v1::Ruling::Excused, 0),
        Ruling::Suspect { among } => (v1::Ruling::Suspect, among),
        Ruling::Strike => (v1::Ruling::Strike, 0),
        Ruling::Final => (v1::Ruling::Final, 0),
        Ruling::Poison => (v1::Ruling::Poison, 0),
    };
    v1::FailedTry {
        attempt: failed.attempt.0,
        worker: failed.worker.clone(),
        class: convert::class_name(failed.class).into(),
        code: failed.code.clone(),
        message: failed.message.clone(),
        evidence: Some(convert::evidence_out(namespace, folder, &failed.evidence)),
        wall_ms: failed.wall_ms,
        ruling: ruling.into(),
        among,
    }
}
