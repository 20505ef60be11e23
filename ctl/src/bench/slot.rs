//! One slot of the load: an exchange in flight, and the rows that the next one completes.
//!
//! Invariant: one exchange at a time; after a lost stream the same exchange is sent again, with the same number. Rows
//! are completed as soon as they are granted: the engine takes no time.

use std::time::Instant;

use rollout_proto::v1;

use super::load::Load;
use super::objects::Objects;

pub(super) struct Slot {
    number: u32,
    worker: u64,
    nonce: u64,
    seq: u64,
    credit: u32,
    grants: Vec<v1::Grant>,
    in_flight: Option<(v1::Exchange, Instant)>,
    done: bool,
}

impl Slot {
    /// The slot `number` of a worker, which requests `credit` rows at a time.
    pub(super) fn new(number: u32, worker: u64, nonce: u64, credit: u32) -> Self {
        Self {
            number,
            worker,
            nonce,
            seq: 0,
            credit,
            grants: Vec::new(),
            in_flight: None,
            done: false,
        }
    }

    /// Whether it holds nothing and will request nothing more.
    pub(super) fn done(&self) -> bool {
        self.done
    }

    /// The rows that it holds, for registration.
    pub(super) fn held(&self) -> Vec<v1::HeldRows> {
        let sent = self.in_flight.iter().flat_map(|(exchange, _)| &exchange.parts);
        let sent = sent.flat_map(|part| part.sets.iter().cloned());
        let kept = self.grants.iter().map(|grant| v1::HeldRows {
            run: grant.run,
            attempt: grant.attempt,
            rows: grant.rows.clone(),
        });
        sent.chain(kept).collect()
    }

    /// Forgets everything, because the session is new.
    pub(super) fn reset(&mut self) {
        self.in_flight = None;
        self.grants.clear();
        self.seq = 0;
    }

    /// The exchange to send on a new stream: the one in flight again, or the next.
    pub(super) async fn first(
        &mut self,
        load: &Load,
        objects: &Objects,
    ) -> anyhow::Result<Option<v1::Exchange>> {
        match &self.in_flight {
            Some((exchange, _)) => Ok(Some(exchange.clone())),
            None => self.next(load, objects).await,
        }
    }

    /// The next exchange: completes the granted rows and requests more. `None` when it is done.
    pub(super) async fn next(
        &mut self,
        load: &Load,
        objects: &Objects,
    ) -> anyhow::Result<Option<v1::Exchange>> {
        let stopping = load.stopping();
        if stopping && self.grants.is_empty() {
            self.done = true;
            return Ok(None);
        }
        self.seq += 1;
        let exchange = v1::Exchange {
            slot: self.number,
            seq: self.seq,
            parts: self.parts(load, objects).await?,
            credit_rows: if stopping { 0 } else { self.credit },
            ..v1::Exchange::default()
        };
        self.in_flight = Some((exchange.clone(), Instant::now()));
        Ok(Some(exchange))
    }

    /// One part for the rows of each run.
    async fn parts(
        &mut self,
        load: &Load,
        objects: &Objects,
    ) -> anyhow::Result<Vec<v1::PartResult>> {
        let mut parts: Vec<v1::PartResult> = Vec::with_capacity(1);
        for grant in self.grants.drain(..) {
            let set = v1::HeldRows { run: grant.run, attempt: grant.attempt, rows: grant.rows };
            match parts.iter_mut().find(|part| part.run == grant.run) {
                Some(part) => part.sets.push(set),
                None => parts.push(v1::PartResult {
                    run: grant.run,
                    sets: vec![set],
                    ..v1::PartResult::default()
                }),
            }
        }
        for part in &mut parts {
            let folder =
                load.with(|record| record.runs.get(&part.run).map(|run| run.folder.clone()));
            let unique = [
                self.nonce,
                self.worker,
                u64::from(self.number) << 32 | u64::from(part.run),
                self.seq,
            ];
            part.part = Some(objects.part(&folder.unwrap_or_default(), &part.sets, unique).await?);
        }
        Ok(parts)
    }

    /// Handles an answer. False if it answers nothing in flight.
    pub(super) fn answered(&mut self, load: &Load, answer: v1::ExchangeAnswer, epoch: u64) -> bool {
        let Some((exchange, sent)) = self.in_flight.take_if(|(e, _)| e.seq == answer.seq) else {
            return false;
        };
        load.with(|record| {
            record.exchange.record_us(sent.elapsed().as_micros() as u64);
            record.completed(&exchange.parts, &answer.refused);
            record.granted(self.worker, &answer.grants, epoch);
        });
        self.grants = answer.grants;
        true
    }
}
