//! The loss of a third of all slots at once, as the leader reports it to the ledger.

use std::time::Duration;

use anyhow::ensure;
use rand::SeedableRng as _;
use rand::seq::SliceRandom as _;
use rollout_ledger::id::{LedgerMs, SessionId};
use rollout_ledger::{Body, HeldRows, OpKind, Rows, limits, op};
use serde::Serialize;

use super::ledger_fixture::{LedgerFixture, Size, bytes_of};
use super::{Spread, spread};
use crate::output::{Report, u64_string};

/// How many of its rows a slot has started.
const STARTED_ROWS: u32 = 32;
/// Rows of each attempt that are done out of order, which splits the rest into that many pieces.
const HOLES: u64 = 4;
const GRACE_MS: u64 = 30_000;

/// The figures of one kind of command.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Commands {
    pub(super) commands: u64,
    pub(super) max_ms: f64,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct LossFigures {
    pub(super) cluster_version: u32,
    pub(super) slots: u32,
    pub(super) slots_lost: u32,
    pub(super) attempts_lost: u64,
    pub(super) suspect: Commands,
    /// All workers come back before their time is over, measured on a copy.
    pub(super) unsuspect: Commands,
    pub(super) tick: Commands,
    /// Claims of other workers while the lost ones are suspect, and after their sessions have ended.
    pub(super) claims_while_suspect: Spread,
    pub(super) claims_after: Spread,
    #[serde(serialize_with = "u64_string")]
    pub(super) image_bytes: u64,
    pub(super) image_ms: f64,
}

impl Report for LossFigures {
    const KIND: &'static str = "BenchApplyLoss";

    fn table(&self) -> String {
        let commands = |name: &str, c: &Commands| {
            format!("{name:<24} {:>6} commands, longest {:.1} ms\n", c.commands, c.max_ms)
        };
        let claims = |name: &str, s: &Spread| {
            format!(
                "{name:<24} p50 {:.1} us, p99 {:.1} us, max {:.1} us\n",
                s.p50_us, s.p99_us, s.max_us
            )
        };
        format!(
            "{} of {} slots lost with {} attempts, cluster version {}\n{}{}{}{}{}image {} bytes, {:.1} ms\n",
            self.slots_lost,
            self.slots,
            self.attempts_lost,
            self.cluster_version,
            commands("suspect", &self.suspect),
            commands("back", &self.unsuspect),
            commands("tick", &self.tick),
            claims("claims while suspect", &self.claims_while_suspect),
            claims("claims after", &self.claims_after),
            self.image_bytes,
            self.image_ms,
        )
    }
}

#[derive(Default)]
pub(super) struct Longest {
    commands: u64,
    max: Duration,
}

impl Longest {
    pub(super) fn add(&mut self, taken: Duration) {
        self.commands += 1;
        self.max = self.max.max(taken);
    }

    pub(super) fn figures(&self) -> Commands {
        Commands { commands: self.commands, max_ms: self.max.as_secs_f64() * 1e3 }
    }
}

/// Every slot holds rows of every run, with holes.
pub(super) fn busy(size: Size, rows_of_each: u32) -> anyhow::Result<LedgerFixture> {
    let mut fixture = LedgerFixture::of(size)?;
    let rows_max = rows_of_each * size.runs;
    for at in 0..fixture.pullers.len() {
        let (got, _) = fixture.claim(at, rows_max)?;
        ensure!(got, "too few rows are declared");
        fixture.complete(at, some_done)?;
    }
    Ok(fixture)
}

/// Rows done before others of the same attempt.
fn some_done(held: &HeldRows) -> HeldRows {
    let step = (held.rows.len() / (HOLES + 1)).max(2) as usize;
    let done = held.rows.iter().skip(step).step_by(step).take(HOLES as usize).map(|row| (row, 1));
    HeldRows { rows: Rows::from_ranges(done).unwrap_or_default(), ..held.clone() }
}

pub(super) fn measure(size: Size, rows_of_each: u32, claims: usize) -> anyhow::Result<LossFigures> {
    let mut fixture = busy(size, rows_of_each)?;
    fixture.image();
    let slots = fixture.pullers.len();
    let mut sessions: Vec<_> = fixture.pullers.iter().map(|puller| puller.slot.session).collect();
    sessions.dedup();
    sessions.shuffle(&mut rand::rngs::StdRng::seed_from_u64(7));
    sessions.truncate(sessions.len() / 3);
    let lost: std::collections::BTreeSet<_> = sessions.iter().copied().collect();
    let (gone, stay): (Vec<usize>, Vec<usize>) =
        (0..slots).partition(|at| lost.contains(&fixture.pullers[*at].slot.session));
    let mut suspects: Vec<(OpKind, usize)> = Vec::new();
    let mut attempts_lost = 0;
    for &session in &sessions {
        let own = || fixture.pullers.iter().filter(|puller| puller.slot.session == session);
        let started = own().filter_map(|puller| {
            let held = puller.held.first()?;
            Some(HeldRows { rows: held.rows.clone().take_first(STARTED_ROWS), ..held.clone() })
        });
        let attempts: usize = own().map(|puller| puller.held.len()).sum();
        attempts_lost += attempts as u64;
        let started = started.collect();
        suspects.push((
            OpKind::Suspect(op::Suspect { session, started, grace_ms: GRACE_MS }),
            attempts,
        ));
    }
    let commands = in_commands(suspects, size.cluster_version);
    let mut suspect = Longest::default();
    for ops in commands {
        suspect.add(fixture.ops(ops)?.1);
    }
    let (delta, took) = fixture.image();
    let unsuspect = come_back(fixture.clone(), &sessions, size.cluster_version)?;
    let claims_while_suspect = claims_of(&mut fixture, &stay, rows_of_each, claims)?;
    fixture.clock += GRACE_MS;
    let mut tick = Longest::default();
    let due = |fixture: &LedgerFixture| {
        fixture.ledger.next_deadline().is_some_and(|at| at <= LedgerMs(fixture.clock))
    };
    while due(&fixture) {
        tick.add(fixture.command(Body::Tick)?.1);
    }
    ensure!(
        gone.iter()
            .all(|at| fixture.ledger.worker_state(fixture.pullers[*at].slot.session).is_none())
    );
    let claims_after = claims_of(&mut fixture, &stay, rows_of_each, claims)?;
    Ok(LossFigures {
        cluster_version: size.cluster_version,
        slots: slots as u32,
        slots_lost: gone.len() as u32,
        attempts_lost,
        suspect: suspect.figures(),
        unsuspect: unsuspect.figures(),
        tick: tick.figures(),
        claims_while_suspect,
        claims_after,
        image_bytes: bytes_of(&delta),
        image_ms: took.as_secs_f64() * 1e3,
    })
}

/// Operations grouped into commands as the leader does it: before that version by their bytes alone.
fn in_commands(ops: Vec<(OpKind, usize)>, cluster_version: u32) -> Vec<Vec<OpKind>> {
    let attempts_max = match cluster_version < rollout_ledger::SCHEDULING_VERSION {
        true => usize::MAX,
        false => limits::TICK_ATTEMPTS_MAX,
    };
    let mut commands: Vec<Vec<OpKind>> = vec![Vec::new()];
    let mut ended = 0;
    for (op, attempts) in ops {
        let full = commands.last().is_none_or(|last| last.len() >= limits::OPS_PER_COMMAND_MAX);
        if full || (ended > 0 && attempts > attempts_max.saturating_sub(ended)) {
            commands.push(Vec::new());
            ended = 0;
        }
        ended += attempts;
        if let Some(last) = commands.last_mut() {
            last.push(op);
        }
    }
    commands
}

/// The leader hears from all lost workers again.
fn come_back(
    mut fixture: LedgerFixture,
    sessions: &[SessionId],
    cluster_version: u32,
) -> anyhow::Result<Longest> {
    let ops = sessions.iter().map(|&session| {
        let attempts = fixture.ledger.attempts_of(session);
        (OpKind::Unsuspect(op::Unsuspect { session }), attempts)
    });
    let commands = in_commands(ops.collect(), cluster_version);
    let mut longest = Longest::default();
    for ops in commands {
        longest.add(fixture.ops(ops)?.1);
    }
    Ok(longest)
}

/// The cost of claims of the remaining slots, each of which has completed its rows.
fn claims_of(
    fixture: &mut LedgerFixture,
    slots: &[usize],
    rows_max: u32,
    claims: usize,
) -> anyhow::Result<Spread> {
    let mut times = Vec::with_capacity(claims);
    for at in slots.iter().copied().cycle().take(claims) {
        fixture.complete(at, HeldRows::clone)?;
        times.push(fixture.claim(at, rows_max)?.1);
    }
    Ok(spread(times))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_matches_the_golden_file() {
        let commands = Commands { commands: 4, max_ms: 25.5 };
        let claims = Spread { p50_us: 1.5, p99_us: 3.0, max_us: 20.5 };
        let report = LossFigures {
            cluster_version: 3,
            slots: 10_000,
            slots_lost: 3_328,
            attempts_lost: 66_560,
            suspect: commands.clone(),
            unsuspect: commands.clone(),
            tick: commands,
            claims_while_suspect: claims.clone(),
            claims_after: claims,
            image_bytes: 1 << 20,
            image_ms: 80.5,
        };
        crate::golden::report("bench-apply-loss.txt", &report);
    }
}
