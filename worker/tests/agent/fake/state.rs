//! The state that the fake members share, and a minimal ledger: who holds which rows, their outcomes, and waiting
//! pulls.

use std::collections::{HashMap, HashSet};

use rollout_proto::ErrorCode;
use rollout_proto::v1::leader_message::Kind;
use rollout_proto::v1::{self, ClusterHeader, LeaderMessage};
use rollout_storage::BlobStore;
use tokio::sync::mpsc;
use tonic::Status;

pub(crate) type Out = mpsc::Sender<Result<LeaderMessage, Status>>;

/// The outcome of a row.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Outcome {
    Done(String),
    Failed(v1::FailureClass, String),
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Row {
    pub(crate) attempt: u64,
    pub(crate) running: bool,
    pub(crate) grants: u32,
    /// It was running when an engine died, so it is granted only alone.
    pub(crate) suspect: bool,
    pub(crate) outcome: Option<Outcome>,
}

#[derive(Default)]
pub(crate) struct SlotSeen {
    last_seq: u64,
    last_grant: Vec<v1::Grant>,
    pub(super) parked: Option<(u64, u32, Out)>,
}

pub(crate) struct State {
    pub(crate) epoch: u64,
    pub(crate) leader: usize,
    pub(crate) addrs: Vec<String>,
    pub(crate) store: BlobStore,
    pub(crate) segments: Vec<v1::SegmentRef>,
    pub(crate) rows: Vec<Row>,
    pub(crate) sessions: HashSet<u64>,
    pub(crate) next: u64,
    pub(crate) slots: HashMap<u32, SlotSeen>,
    /// Every exchange with the member that it reached.
    pub(crate) exchanges: Vec<(usize, v1::Exchange)>,
    pub(crate) registers: Vec<v1::RegisterRequest>,
    pub(crate) deregistered: Vec<u64>,
    /// Rows of `held` that the next registration drops.
    pub(crate) drop_held: Vec<u64>,
    /// Every registration is refused: a live process has the name.
    pub(crate) name_taken: bool,
    pub(crate) heartbeats: Vec<v1::Heartbeat>,
    pub(crate) mute_heartbeats: bool,
    /// The interval that answers to heartbeats set; 0, as from a leader that does not know the field.
    pub(crate) heartbeat_ms: u32,
    pub(crate) mute_exchanges: bool,
    pub(crate) hold_grants: bool,
    /// Members that answer no request at all.
    pub(crate) hung: HashSet<usize>,
    pub(crate) out: Option<Out>,
    pub(crate) bad: Vec<String>,
}

impl State {
    pub(super) fn header(&self) -> ClusterHeader {
        let member = |(index, addr): (usize, &String)| v1::MemberInfo {
            id: index as u64 + 1,
            name: format!("c{index}"),
            client_addr: addr.clone(),
            voter: true,
            ..Default::default()
        };
        ClusterHeader {
            cluster_id: "ab".repeat(16),
            coord_epoch: self.epoch,
            applied_index: self.next,
            members: Some(v1::MemberList {
                version: 1,
                members: self.addrs.iter().enumerate().map(member).collect(),
                leader: format!("c{}", self.leader),
            }),
            restored_from: Vec::new(),
        }
    }

    pub(crate) fn count(&self, wanted: impl Fn(&Row) -> bool) -> usize {
        self.rows.iter().filter(|row| wanted(row)).count()
    }

    pub(crate) fn done(&self) -> usize {
        self.count(|row| row.outcome.is_some())
    }

    pub(super) fn message(&self, kind: Kind) -> LeaderMessage {
        LeaderMessage { header: Some(self.header()), kind: Some(kind) }
    }

    pub(crate) fn post(&self, kind: Kind) {
        if let Some(out) = &self.out {
            let _ = out.try_send(Ok(self.message(kind)));
        }
    }

    fn decide(&mut self, attempt: u64, row: u64, outcome: Outcome) -> bool {
        let Some(state) = self.rows.get_mut(row as usize) else { return false };
        if state.attempt != attempt || !state.running {
            return state.outcome.as_ref() == Some(&outcome);
        }
        state.running = false;
        state.outcome = Some(outcome);
        true
    }

    pub(super) fn exchange(
        &mut self,
        exchange: v1::Exchange,
        out: &Out,
        parts: Vec<Vec<(u64, u64, String)>>,
    ) {
        let mut refused = Vec::new();
        for rows in parts {
            for (attempt, row, text) in rows {
                if !self.decide(attempt, row, Outcome::Done(text)) {
                    refused.push((attempt, row));
                }
            }
        }
        for failure in &exchange.failures {
            for row in list(failure.rows.as_ref()) {
                let outcome = Outcome::Failed(failure.class(), failure.code.clone());
                if !self.decide(failure.attempt, row, outcome) {
                    refused.push((failure.attempt, row));
                }
            }
        }
        for death in &exchange.deaths {
            let rows = death
                .started
                .iter()
                .flat_map(|set| list(set.rows.as_ref()).into_iter().map(|row| (set.attempt, row)));
            let rows: Vec<(u64, u64)> = rows.collect();
            for (attempt, row) in &rows {
                if rows.len() == 1 {
                    let outcome = Outcome::Failed(death.class(), death.code.clone());
                    self.decide(*attempt, *row, outcome);
                    continue;
                }
                let state = &mut self.rows[*row as usize];
                if state.attempt == *attempt && state.running {
                    (state.running, state.attempt, state.suspect) = (false, 0, true);
                }
            }
        }
        for nack in &exchange.nacks {
            for row in list(nack.rows.as_ref()) {
                let state = &mut self.rows[row as usize];
                if state.attempt == nack.attempt {
                    state.running = false;
                    state.attempt = 0;
                }
            }
        }
        let refused = refused.into_iter().map(|(attempt, row)| v1::Refused {
            run: 1,
            attempt,
            rows: Some(v1::Rows { starts: vec![row], lens: vec![1] }),
            code: ErrorCode::AttemptStale.code().into(),
        });
        let refused = refused.collect();
        let parked = self.slots.entry(exchange.slot).or_default().parked.take();
        if let Some((seq, _, _)) = parked.filter(|(seq, ..)| *seq < exchange.seq) {
            let empty = v1::ExchangeAnswer { slot: exchange.slot, seq, ..Default::default() };
            let _ = out.try_send(Ok(self.message(Kind::Exchange(empty))));
        }
        if !self.answer(exchange.slot, exchange.seq, exchange.credit_rows, out, refused) {
            let slot = self.slots.entry(exchange.slot).or_default();
            slot.parked = Some((exchange.seq, exchange.credit_rows, out.clone()));
        }
    }

    /// False if the pull must wait.
    fn answer(
        &mut self,
        slot: u32,
        seq: u64,
        credit: u32,
        out: &Out,
        refused: Vec<v1::Refused>,
    ) -> bool {
        let mut grants = Vec::new();
        let seen = self.slots.entry(slot).or_default();
        if credit > 0 && seen.last_seq == seq {
            grants = seen.last_grant.clone();
        } else if credit > 0 {
            grants = self.grant(credit);
            if grants.is_empty() && refused.is_empty() {
                return false;
            }
            let seen = self.slots.entry(slot).or_default();
            (seen.last_seq, seen.last_grant) = (seq, grants.clone());
        }
        let answer = v1::ExchangeAnswer { slot, seq, grants, refused, ..Default::default() };
        let _ = out.try_send(Ok(self.message(Kind::Exchange(answer))));
        true
    }

    fn grant(&mut self, credit: u32) -> Vec<v1::Grant> {
        if self.hold_grants {
            return Vec::new();
        }
        let free = |row: &Row| !row.running && row.outcome.is_none();
        let trial = self.rows.iter().any(|row| free(row) && row.suspect);
        if trial && self.rows.iter().any(|row| row.running) {
            return Vec::new();
        }
        let credit = if trial { 1 } else { credit };
        let rows: Vec<u64> = (0..self.rows.len() as u64)
            .filter(|row| free(&self.rows[*row as usize]))
            .filter(|row| self.rows[*row as usize].suspect == trial)
            .take(credit as usize)
            .collect();
        if rows.is_empty() {
            return Vec::new();
        }
        self.next += 1;
        let attempt = self.next;
        for row in &rows {
            let state = &mut self.rows[*row as usize];
            (state.attempt, state.running, state.grants) = (attempt, true, state.grants + 1);
        }
        let holds = |segment: &&v1::SegmentRef| {
            let range = segment.first_row..segment.first_row + u64::from(segment.rows);
            rows.iter().any(|row| range.contains(row))
        };
        let segments = self.segments.iter().filter(holds).cloned().collect();
        let lens = vec![1; rows.len()];
        let rows = Some(v1::Rows { starts: rows, lens });
        vec![v1::Grant { run: 1, attempt, rows, segments, alone: trial }]
    }

    /// Answers parked pulls with the rows that are available now.
    pub(crate) fn wake(&mut self) {
        let slots: Vec<u32> = self.slots.keys().copied().collect();
        for slot in slots {
            let Some(parked) = self.slots.get_mut(&slot).and_then(|s| s.parked.take()) else {
                continue;
            };
            let (seq, credit, out) = parked;
            if !self.answer(slot, seq, credit, &out, Vec::new()) {
                self.slots.entry(slot).or_default().parked = Some((seq, credit, out));
            }
        }
    }
}

pub(crate) fn list(rows: Option<&v1::Rows>) -> Vec<u64> {
    let Some(rows) = rows else { return Vec::new() };
    let range = |(start, len): (&u64, &u32)| *start..start + u64::from(*len);
    rows.starts.iter().zip(&rows.lens).flat_map(range).collect()
}
