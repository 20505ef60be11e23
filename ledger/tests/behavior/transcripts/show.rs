//! Formats replies and states for a story.

use rollout_ledger::id::{RunNo, SegmentNo, SessionId, SlotRef};
use rollout_ledger::view::{
    FailureRecord, FlightView, ItemPlace, ItemState, ItemView, Ruling, RunState, SlotView,
    WorkerState,
};
use rollout_ledger::{
    BarrierEnd, BarrierFailure, Event, EventKind, Generation, GrantedRows, HeldRows, JobView,
    Ledger, ParticipantState, RefusedRows, Reply, Rows, SettingView, StoreAnswer,
};
use std::fmt::Write;

pub(crate) fn reply(reply: &Reply) -> String {
    match reply {
        Reply::Ok => "ok".into(),
        Reply::Rejected(why) => format!("rejected: {why}"),
        Reply::ClientOpened { session } => format!("client {session}"),
        Reply::Run { run, created, segments, rows, input_closed, .. } => {
            let made = if *created { "created" } else { "there" };
            let open = if *input_closed { "closed" } else { "open" };
            format!("run {run} {made}: {rows} rows in {segments} segments, {open}")
        }
        Reply::Registered { session, resumed, dropped } => {
            let how = if *resumed { "resumed" } else { "registered" };
            let dropped: Vec<String> = dropped.iter().map(held).collect();
            match dropped.is_empty() {
                true => format!("{how} {session}"),
                false => format!("{how} {session}, dropped {}", dropped.join("; ")),
            }
        }
        Reply::Granted(grants) if grants.is_empty() => "granted nothing".into(),
        Reply::Granted(grants) => {
            let grants: Vec<String> = grants.iter().map(granted).collect();
            format!("granted {}", grants.join("; "))
        }
        Reply::Taken { refused } if refused.is_empty() => "taken".into(),
        Reply::Taken { refused } => format!("taken but for {}", refusals(refused)),
        Reply::Won { refused, superseded } => {
            let superseded: Vec<String> = superseded.iter().map(|o| held(&o.held)).collect();
            let but = if refused.is_empty() { "" } else { " but for " };
            format!("taken{but}{}, faster than {}", refusals(refused), superseded.join("; "))
        }
        Reply::Stolen { granted: grants, refused } => {
            let grants: Vec<String> = grants.iter().map(granted).collect();
            let refused: u64 = refused.iter().map(|r| r.rows.len()).sum();
            let grants = if grants.is_empty() { "nothing".into() } else { grants.join("; ") };
            format!("stole {grants}, {refused} refused")
        }
        Reply::Retried { rows } => format!("{rows} rows again"),
        Reply::EpochOpened { at } => format!("open from {at}"),
        Reply::Participant { incarnation, .. } => format!("ticket {incarnation}"),
        Reply::Joined { incarnation, generation } => {
            format!("ticket {incarnation} of lineage {generation}")
        }
        Reply::NeedsRecovery { trainer, host } => format!("torn: {trainer} on {host} is lost"),
        Reply::KeptAlive { lost } if lost.is_empty() => "kept".into(),
        Reply::KeptAlive { lost } => format!("lost {}", lost.join(" ")),
        Reply::Shard { number, token, from: 0 } => format!("shard {number} as {token}"),
        Reply::Shard { number, token, from } => format!("shard {number} as {token} from {from}"),
        Reply::NoShard { finished: true } => "no shard: the epoch is finished".into(),
        Reply::NoShard { .. } => "no shard is free".into(),
        Reply::ShardEnded { epoch_finished: true } => "done, and with it the epoch".into(),
        Reply::ShardEnded { .. } => "done".into(),
        Reply::Checkpoint { number, rank } => format!("checkpoint {number}, rank {rank}"),
        Reply::Reported { complete: true } => "reported: complete".into(),
        Reply::Reported { .. } => "reported".into(),
        Reply::Pruned { numbers } => format!("pruned {numbers:?}"),
        Reply::Batch { id, created } => {
            format!("{id} {}", if *created { "created" } else { "there" })
        }
        Reply::Store(answers) if answers.is_empty() => "used".into(),
        Reply::Store(answers) => answers.iter().map(answer).collect::<Vec<_>>().join("; "),
    }
}

fn answer(answer: &StoreAnswer) -> String {
    match answer {
        StoreAnswer::Done => "done".into(),
        StoreAnswer::Number(n) => n.to_string(),
        StoreAnswer::Value(None) => "nothing".into(),
        StoreAnswer::Value(Some(value)) => format!("\"{}\"", value.escape_ascii()),
        StoreAnswer::Refused(why) => format!("refused: {why}"),
    }
}

/// A job, its participants by name and its barriers.
fn job(out: &mut String, view: JobView<'_>) {
    let (name, r) = (view.name(), view.rendezvous());
    let state = match (r.closed, r.complete) {
        (true, true) => "complete and closed",
        (true, false) => "closed",
        (false, true) => "complete",
        (false, false) => "forming",
    };
    let _ = write!(out, "job {}/{} round {} {state}", name.namespace, name.job, r.round);
    if let Some(at) = r.last_call {
        let _ = write!(out, ", last call until {at}");
    }
    let roster: Vec<&str> = r.roster.iter().map(|m| m.decl.name.as_str()).collect();
    if !roster.is_empty() {
        let _ = write!(out, ", roster {}", roster.join(" "));
    }
    out.push('\n');
    for p in view.participants() {
        let how = match p.state {
            ParticipantState::Joining { until } => format!("joining until {until}"),
            ParticipantState::Late { until } => format!("late until {until}"),
            ParticipantState::Member { rank } => format!("rank {rank}"),
            ParticipantState::Dismissed { redundant: true } => "dismissed, one too many".into(),
            other => other.name().into(),
        };
        let _ = writeln!(out, "  {} {}: {how}", p.decl.name, p.incarnation);
    }
    for (barrier, _) in view.barriers("") {
        view.generations(barrier).for_each(|g| generation(out, barrier, g));
    }
}

fn generation(out: &mut String, barrier: &str, g: &Generation) {
    let how = match &g.end {
        None => format!("waits until {}", g.until),
        Some(BarrierEnd::Open) => "open".into(),
        Some(BarrierEnd::Failed(BarrierFailure::TimedOut)) => "timed out".into(),
        Some(BarrierEnd::Failed(BarrierFailure::Aborted { reason })) => {
            format!("aborted: {reason}")
        }
        Some(BarrierEnd::Failed(BarrierFailure::Gone(d))) => {
            let ago = d.at_wall_ms - d.heard_wall_ms;
            format!("failed: {} on {} {} (heard {ago} ms before)", d.name, d.host, d.why.name())
        }
    };
    let _ = write!(out, "  barrier {barrier} {}: {} of {}", g.number, g.arrived.len(), g.expected);
    let missing: Vec<&str> = g.missing().collect();
    for (what, names) in [
        ("arrived", g.in_order()),
        ("missing", missing),
        ("without", g.without.iter().map(String::as_str).collect()),
    ] {
        if !names.is_empty() {
            let _ = write!(out, ", {what} {}", names.join(" "));
        }
    }
    let _ = writeln!(out, ": {how}");
}

/// The contents of stores.
fn stores(out: &mut String, ledger: &Ledger) {
    for name in ledger.store_names() {
        let Some(store) = ledger.store(name) else { continue };
        let pairs = store.keys().map(|key| {
            let value = store.get(key).unwrap_or_default();
            format!(" {}={}", key.escape_ascii(), value.escape_ascii())
        });
        let queues = store.queues().map(|(key, all)| {
            let all: Vec<String> = all.iter().map(|v| v.escape_ascii().to_string()).collect();
            format!(" {}=[{}]", key.escape_ascii(), all.join(" "))
        });
        let held: String = pairs.chain(queues).collect();
        let _ = writeln!(out, "store {}/{}/{}:{held}", name.namespace, name.job, name.round);
    }
}

fn refusals(refused: &[RefusedRows]) -> String {
    let one =
        |r: &RefusedRows| format!("run {} attempt {} rows {}: {}", r.run, r.attempt, r.rows, r.why);
    refused.iter().map(one).collect::<Vec<_>>().join("; ")
}

pub(crate) fn held(held: &HeldRows) -> String {
    format!("run {} attempt {} rows {}", held.run, held.attempt, held.rows)
}

fn granted(granted: &GrantedRows) -> String {
    let numbers: Vec<String> = granted.segments.iter().map(|s| s.number.to_string()).collect();
    let alone = if granted.alone { " alone" } else { "" };
    format!("{}{alone} (segment {})", held(&granted.held), numbers.join(","))
}

/// An event, which followers get besides the reply.
pub(crate) fn event(ledger: &Ledger, event: &Event) -> String {
    let worker = |session: &SessionId| match ledger.worker_name(*session) {
        Some((_, name)) => name.to_owned(),
        None => format!("session {session}"),
    };
    let slot = |s: &SlotRef| format!("{}/{}", worker(&s.session), s.slot);
    let run = |no: &RunNo| format!("run {no}");
    let text = match &event.kind {
        EventKind::EpochOpened { epoch } => format!("epoch {epoch} opened"),
        EventKind::LeaderChanged { epoch, leader, former, cause } => {
            format!("{leader} leads epoch {epoch} after {former:?}: {}", cause.word())
        }
        EventKind::MemberChanged { member, to, cause } => {
            format!("member {member} {to} {cause}").trim_end().to_owned()
        }
        EventKind::SettingChanged { setting, from, to } => {
            format!("setting {setting} changed from {from} to {to}")
        }
        EventKind::WorkerRegistered { session, resumed: false } => {
            format!("{} registered", worker(session))
        }
        EventKind::WorkerRegistered { session, .. } => format!("{} resumed", worker(session)),
        EventKind::WorkerSuspect { session } => format!("{} suspect", worker(session)),
        EventKind::WorkerBack { session } => format!("{} back", worker(session)),
        EventKind::WorkerDraining { session } => format!("{} draining", worker(session)),
        EventKind::WorkerDrained { name, .. } => format!("{} drained", name.1),
        EventKind::WorkerLost { name, .. } => format!("{} lost", name.1),
        EventKind::WorkerCordoned { slot: s, whole, cordoned, reason } => {
            let who = if *whole { worker(&s.session) } else { slot(s) };
            let what = if *cordoned { "cordoned" } else { "uncordoned" };
            format!("{who} {what}: {reason}")
        }
        EventKind::RunCreated { run: no } => format!("{} created", run(no)),
        EventKind::RunChanged { run: no, to, reason } if reason.is_empty() => {
            format!("{} {to}", run(no))
        }
        EventKind::RunChanged { run: no, to, reason } => format!("{} {to}: {reason}", run(no)),
        EventKind::Granted { slot: s, held: h, how } => {
            format!("{} got {} ({how})", slot(s), held(h))
        }
        EventKind::Stolen { victim, idle_slot, lost, held: h } => {
            format!("{} got {} of {} under {lost}", slot(idle_slot), held(h), slot(victim))
        }
        EventKind::Completed { held: h, .. } if h.attempt.0 == 0 => {
            format!("{} was carried over: rows {}", run(&h.run), h.rows)
        }
        EventKind::Completed { slot: s, held: h } => format!("{} completed {}", slot(s), held(h)),
        EventKind::Failed { slot: s, held: h, class, code, for_good } => {
            let end = match for_good.is_empty() {
                true => String::new(),
                false => format!(", for good {for_good}"),
            };
            format!("{} failed {}: {class:?} {code}{end}", slot(s), held(h))
        }
        EventKind::Returned { slot: s, held: h, why } => {
            format!("{} gave back {} ({why})", slot(s), held(h))
        }
        EventKind::Job { job, what, subject, round, reason } => {
            let round = if *round == 0 { String::new() } else { format!(" {round}") };
            let subject = if subject.is_empty() { String::new() } else { format!(" {subject}") };
            let reason = if reason.is_empty() { String::new() } else { format!(": {reason}") };
            format!("{}/{} {what}{subject}{round}{reason}", job.namespace, job.job)
        }
        EventKind::TrainingChanged { job, to, detail } => {
            format!("job {}/{} {to}: {detail}", job.namespace, job.job)
        }
        EventKind::Retried { run: no, rows } => format!("{} retries {rows}", run(no)),
    };
    format!("  {}:{} {text}", event.index, event.position)
}

/// Every join token: how often it was used, and how long it is still valid.
pub(crate) fn tokens(ledger: &Ledger) -> String {
    let lines = ledger.token_views().into_iter().map(|t| {
        let holder = t.spec.holder.map_or(String::new(), |holder| format!(" {holder}"));
        let role = format!("{:?}", t.spec.role).to_lowercase();
        format!(
            "{}: {role}{holder}, used {} of {}, {} ms left",
            t.name, t.uses, t.spec.uses_max, t.left_ms
        )
    });
    let lines: Vec<String> = lines.collect();
    if lines.is_empty() { "none".into() } else { lines.join("\n") }
}

/// Every valid API key: what it is for, and how long it is still valid.
pub(crate) fn api_keys(ledger: &Ledger) -> String {
    let lines = ledger.api_keys(None, None, usize::MAX).into_iter().map(|key| {
        let left = key.left_ms.map_or("no end".to_owned(), |ms| format!("{ms} ms left"));
        let role = format!("{:?}", key.spec.role).to_lowercase();
        format!("{}: {}, {role} of {}, {left}", key.id, key.spec.name, key.spec.namespace)
    });
    let lines: Vec<String> = lines.collect();
    if lines.is_empty() { "none".into() } else { lines.join("\n") }
}

/// Every revocation of certificates.
pub(crate) fn revocations(ledger: &Ledger) -> String {
    let lines = ledger.revocations().iter().map(|(whose, of)| {
        let before = of.issued_before_s.map_or(String::new(), |s| format!(" issued before {s}"));
        format!("{whose}{before}: {}", of.reason)
    });
    let lines: Vec<String> = lines.collect();
    if lines.is_empty() { "none".into() } else { lines.join("\n") }
}

/// Every member as its leaders have seen it.
pub(crate) fn members(ledger: &Ledger) -> String {
    let members = ledger.members();
    let lines = members.seen.iter().map(|(id, seen)| {
        format!("{id} {}: process {} {:?}", seen.name, seen.started_ms, seen.state)
    });
    let head = format!("leader {:?} of epoch {}", members.leader, members.epoch);
    std::iter::once(head).chain(lines).collect::<Vec<_>>().join("\n")
}

/// Every setting of the cluster.
pub(crate) fn settings(ledger: &Ledger) -> String {
    let line = |s: SettingView| format!("{}: {}, default {}", s.name, s.value, s.default);
    let lines: Vec<String> = ledger.settings().views().into_iter().map(line).collect();
    lines.join("\n")
}

/// Everything that a story may want to see, without empty parts.
pub(crate) fn state(ledger: &Ledger) -> String {
    let mut out = format!("clock {} epoch {}\n", ledger.clock(), ledger.epoch());
    for view in ledger.run_views("") {
        run(&mut out, ledger, view.run);
    }
    for session in ledger.worker_sessions() {
        let Some(view) = ledger.worker_view(session) else { continue };
        let state = match view.state {
            WorkerState::Ready => "ready".into(),
            WorkerState::Draining => match view.drain.and_then(|drain| drain.until) {
                Some(until) => format!("draining until {until}"),
                None => "draining".into(),
            },
            WorkerState::Suspect { until, .. } => format!("suspect until {until}"),
        };
        let slots: Vec<String> = view.slots.iter().map(slot).collect();
        let _ = writeln!(out, "worker {} {session} {state}: {}", view.name, slots.join("; "));
    }
    stores(&mut out, ledger);
    for namespace in ["default", "team"] {
        ledger.jobs_after(namespace, "").for_each(|view| job(&mut out, view));
    }
    super::training::show(&mut out, ledger);
    out
}

fn slot(slot: &SlotView) -> String {
    let mut text = format!("holds {} did {}", slot.rows_held, slot.rows_done);
    if slot.in_trial {
        text.push_str(" in trial");
    }
    if slot.deaths > 0 {
        let _ = write!(text, " died {}", slot.deaths);
    }
    if let Some(why) = &slot.cordon {
        let _ = write!(text, " cordoned: {why}");
    }
    text
}

fn bisection_groups(out: &mut String, ledger: &Ledger, flight: &FlightView) {
    for group in &flight.groups {
        let _ = write!(out, "  trial {}", group.number);
        if !group.rows.is_empty() {
            let _ = write!(out, " of {}", group.rows);
        }
        if let Some(until) = group.not_before {
            let _ = write!(out, " not before {until}");
        }
        if let Some(SlotRef { session, slot }) = group.emptying {
            let name = ledger.worker_name(session).map_or("gone", |n| n.1);
            let _ = write!(out, ", {name}/{slot} empties itself for it");
        }
        if let Some((SlotRef { session, slot }, until)) = group.excluded_slot {
            let name = ledger.worker_name(session).map_or("gone", |n| n.1);
            let _ = write!(out, ", others before {name}/{slot} until {until}");
        }
        let attempts: Vec<String> = group.attempts.iter().map(|a| a.to_string()).collect();
        if !attempts.is_empty() {
            let _ = write!(out, ", attempt {}", attempts.join(","));
        }
        out.push('\n');
    }
}

fn run(out: &mut String, ledger: &Ledger, no: RunNo) {
    let (Some(view), Some(flight)) = (ledger.run_view(no), ledger.flight_view(no)) else { return };
    let state = match view.state {
        RunState::Running => "running",
        RunState::Paused => "paused",
        RunState::Cancelled => "cancelled",
        RunState::Finished => "finished",
        RunState::Deleting => "deleting",
        RunState::DeadlineExceeded => "deadline exceeded",
    };
    let c = view.counts;
    let _ = writeln!(
        out,
        "run {no} {}/{} {state}: rows {} pending {} running {} waiting {} done {} failed {}",
        view.namespace, view.name, view.rows, view.pending, c.running, c.waiting, c.done, c.failed
    );
    if view.canary_rows > 0 {
        let _ = writeln!(out, "  canary: the first {} rows", view.canary_rows);
    }
    if let Some(sealed) = &view.sealed {
        let _ = writeln!(out, "  sealed at {}: {} dropped", sealed.at, c.dropped);
    }
    if c.reused > 0 {
        let _ = writeln!(out, "  carried {}", c.reused);
    }
    if !view.reason.is_empty() {
        let _ = writeln!(out, "  reason: {}", view.reason);
    }
    if !flight.returned.is_empty() {
        let _ = writeln!(out, "  returned {}", flight.returned);
    }
    let grants =
        [("live", &flight.live), ("also", &flight.speculative), ("lapsed", &flight.lapsed)];
    for (what, grants) in grants {
        for (SlotRef { session, slot }, held) in grants {
            let name = ledger.worker_name(*session).map_or("gone", |n| n.1);
            let _ = writeln!(out, "  {what} {} at {name}/{slot}: {}", held.attempt, held.rows);
        }
    }
    bisection_groups(out, ledger, &flight);
    for (row, until) in &flight.waiting {
        let _ = writeln!(out, "  waiting {row} until {until}");
    }
    let (mut done, mut failed) = (Vec::new(), Vec::new());
    for number in 0..view.segments {
        let Some(segment) = ledger.segment_view(no, SegmentNo(number)) else { continue };
        let rows = segment.segment.first_row..;
        let results = rows.zip(&segment.results);
        done.extend(results.filter(|r| r.1.is_some()).map(|r| (r.0, 1)));
        failed.extend(segment.failures.iter().map(|f| (f.0, 1)));
    }
    for (what, ranges) in [("done", done), ("failed", failed)] {
        let rows = Rows::from_ranges(ranges).unwrap_or_default();
        if !rows.is_empty() {
            let _ = writeln!(out, "  {what} {rows}");
        }
    }
}

/// The rows that failed for good with their histories.
pub(crate) fn failures(ledger: &Ledger, no: RunNo) -> String {
    let mut out = String::new();
    for (row, t) in ledger.failures(no, 100) {
        let _ = writeln!(out, "row {row}: {} strikes", t.strikes.total());
        failure_record(&mut out, &t);
    }
    if out.is_empty() { "none".into() } else { out }
}

fn failure_record(out: &mut String, failure_record: &FailureRecord) {
    for t in &failure_record.history {
        let text = if t.message.is_empty() { "" } else { " " };
        let (class, message) = (t.class, &t.message);
        let ruling = match t.ruling {
            Ruling::Excused => "excused".into(),
            Ruling::Suspect { among } => format!("one of {among}"),
            Ruling::Strike => "a strike".into(),
            Ruling::Final => "final".into(),
            Ruling::Poison => "poison".into(),
        };
        let _ = writeln!(
            out,
            "  {} at {}: {class:?} {}{text}{message}: {ruling}",
            t.attempt, t.worker, t.code
        );
    }
}

pub(crate) fn item_state(text: &str) -> Result<ItemState, String> {
    Ok(match text {
        "pending" => ItemState::Pending,
        "waiting" => ItemState::Waiting,
        "running" => ItemState::Running,
        "done" => ItemState::Done,
        "failed" => ItemState::Failed,
        other => return Err(format!("no such state: {other}")),
    })
}

fn place_of(ledger: &Ledger, SlotRef { session, slot }: SlotRef) -> String {
    let name = ledger.worker_name(session).map_or("gone", |n| n.1);
    format!("{name}/{slot}")
}

/// Rows as their user sees them.
pub(crate) fn items(ledger: &Ledger, items: &[ItemView]) -> String {
    let mut out = String::new();
    for item in items {
        let place = match &item.place {
            ItemPlace::Pending => "pending".into(),
            ItemPlace::Waiting(until) => format!("waiting until {until}"),
            ItemPlace::Running(slot, attempt) => {
                format!("running at {} as {attempt}", place_of(ledger, *slot))
            }
            ItemPlace::Done(_, row) => match &item.failure_record.done {
                None => format!("done, row {row} of its part"),
                Some(by) => {
                    format!("done by {} as {}, row {row} of its part", by.worker, by.attempt)
                }
            },
            ItemPlace::Failed => "failed".into(),
        };
        let _ = write!(out, "row {} in segment {}: {place}", item.row, item.segment);
        if let Some((slot, attempt)) = item.speculative {
            let _ = write!(out, ", and at {} as {attempt}", place_of(ledger, slot));
        }
        if !item.group.is_empty() {
            let _ = write!(out, ", on trial with {}", item.group);
        }
        match item.failure_record.strikes.total() {
            0 => out.push('\n'),
            strikes => drop(writeln!(out, ", {strikes} strikes")),
        }
        failure_record(&mut out, &item.failure_record);
    }
    if out.is_empty() { "none".into() } else { out }
}
