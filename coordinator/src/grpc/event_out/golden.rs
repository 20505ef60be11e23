//! An event of each kind, with each word that it may say, as text and as bytes of the wire.
//!
//! *Invariant:* a kind that the ledger gains does not compile here until [`VARIANTS`] lists it, and the test fails until
//! [`all`] has an example of it, and of each name of `EVENT_KINDS`. A field that the wire's event gains does not compile until
//! [`shown`] shows it. Fields that have their default are not shown, so a new field changes no line.

use super::{Filter, kind_of};
use crate::golden::hex;
use prost::Message as _;
use rollout_ledger::id::{Attempt, CoordEpoch, RunNo, SessionId, SlotNo, SlotRef};
use rollout_ledger::{Event, EventKind, FailureClass, HeldRows, JobName, LeaderCause, Rows};
use rollout_proto::{EVENT_KINDS, Identity, v1};
use rollout_raft::EventRecord;
use rollout_recorded::check;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;

macro_rules! variants {
    ($($variant:ident)*) => {
        const VARIANTS: &[&str] = &[$(stringify!($variant)),*];

        fn variant(kind: &EventKind) -> &'static str {
            match kind {
                $(EventKind::$variant { .. } => stringify!($variant),)*
            }
        }
    };
}

variants! {
    EpochOpened LeaderChanged MemberChanged SettingChanged WorkerRegistered WorkerSuspect WorkerBack WorkerDraining WorkerDrained WorkerLost
    WorkerCordoned RunCreated RunChanged Granted Stolen Completed Failed Returned Retried Job TrainingChanged
}

const CLASSES: [FailureClass; 6] = [
    FailureClass::InvalidRow,
    FailureClass::Transient,
    FailureClass::OutOfMemory,
    FailureClass::EngineDied,
    FailureClass::InputUnreadable,
    FailureClass::StoreRefused,
];

/// A class that the ledger gains does not compile here until it is listed.
fn is_listed(class: FailureClass) -> bool {
    match class {
        FailureClass::InvalidRow
        | FailureClass::Transient
        | FailureClass::OutOfMemory
        | FailureClass::EngineDied
        | FailureClass::InputUnreadable
        | FailureClass::StoreRefused => CLASSES.contains(&class),
    }
}

fn slot(session: u64) -> SlotRef {
    SlotRef { session: SessionId(session), slot: SlotNo(2) }
}

fn rows() -> Rows {
    Rows::from_ranges([(4, 3), (300, 1)]).expect("ascending")
}

fn held(attempt: u64) -> HeldRows {
    HeldRows { run: RunNo(3), attempt: Attempt(attempt), rows: rows() }
}

/// Of the cluster and its members.
fn of_members() -> Vec<EventKind> {
    let mut all = vec![EventKind::EpochOpened { epoch: CoordEpoch(4) }];
    for (former, cause) in LeaderCause::ALL.into_iter().flat_map(|c| [("c1", c), ("", c)]) {
        let (leader, former) = ("c2".to_owned(), former.to_owned());
        all.push(EventKind::LeaderChanged { epoch: CoordEpoch(4), leader, former, cause });
    }
    let changes = [
        ("started", "first"),
        ("started", "after_stop"),
        ("started", "without_notice"),
        ("stopped", ""),
        ("unreachable", ""),
        ("reachable", ""),
    ];
    let changed = |(to, cause)| EventKind::MemberChanged { member: "c3".into(), to, cause };
    all.extend(changes.map(changed));
    all.push(EventKind::SettingChanged { setting: "cordon-after", from: 3, to: 5 });
    all
}

fn of_workers() -> Vec<EventKind> {
    let session = SessionId(9);
    let name = || ("team".to_owned(), "w".to_owned());
    let cordon = |whole, cordoned| {
        let reason = "a fan is broken".to_owned();
        EventKind::WorkerCordoned { slot: slot(9), whole, cordoned, reason }
    };
    vec![
        EventKind::WorkerRegistered { session, resumed: false },
        EventKind::WorkerRegistered { session, resumed: true },
        EventKind::WorkerSuspect { session },
        EventKind::WorkerBack { session },
        EventKind::WorkerDraining { session },
        EventKind::WorkerDrained { session, name: name() },
        EventKind::WorkerLost { session, name: name() },
        cordon(true, true),
        cordon(true, false),
        cordon(false, true),
        cordon(false, false),
    ]
}

fn of_runs() -> Vec<EventKind> {
    let mut all = vec![EventKind::RunCreated { run: RunNo(3) }];
    let changes = [
        ("paused", "too many failures"),
        ("resumed", "failed rows are tried again"),
        ("cancelled", "asked for"),
        ("finished", ""),
        ("sealed", ""),
        ("deleted", ""),
        ("canary_passed", "10 of 10 rows"),
        ("deadline_exceeded", "too late"),
        ("notified", ""),
        ("notice_given_up", ""),
    ];
    let changed =
        |(to, why): (_, &str)| EventKind::RunChanged { run: RunNo(3), to, reason: why.into() };
    all.extend(changes.map(changed));
    all
}

fn of_rows() -> Vec<EventKind> {
    let slot_here = slot(9);
    let hows = ["claim", "trial", "duplicate", "back"];
    let mut all: Vec<EventKind> = hows
        .map(|how| EventKind::Granted { slot: slot_here, held: held(40), how })
        .into_iter()
        .collect();
    all.push(EventKind::Stolen {
        victim: slot(8),
        idle_slot: slot_here,
        lost: Attempt(40),
        held: held(41),
    });
    // Rows with a reused result have no attempt.
    all.extend(
        [41, 0].map(|attempt| EventKind::Completed { slot: slot_here, held: held(attempt) }),
    );
    all.extend(CLASSES.map(|class| EventKind::Failed {
        slot: slot_here,
        held: held(40),
        class,
        code: "CUDA_OUT_OF_MEMORY".into(),
        for_good: Rows::range(300, 1),
    }));
    let whys = [
        "nacked",
        "silent",
        "lost",
        "timed_out",
        "resumed",
        "cancelled",
        "deadline",
        "store_refused",
        "outrun",
    ];
    all.extend(whys.map(|why| EventKind::Returned { slot: slot_here, held: held(40), why }));
    all.push(EventKind::Retried { run: RunNo(3), rows: rows() });
    all
}

fn of_trainings() -> Vec<EventKind> {
    let whats = [
        ("participant_lost", "p", 0),
        ("participant_left", "p", 0),
        ("rendezvous_completed", "", 7),
        ("rendezvous_ended", "", 7),
        ("rendezvous_closed", "", 7),
        ("barrier_opened", "b", 8),
        ("barrier_failed", "b", 8),
    ];
    let job = |(what, subject, round): (_, &str, _)| EventKind::Job {
        job: JobName { namespace: "team".into(), job: "train".into() },
        what,
        subject: subject.into(),
        round,
        reason: "why".into(),
    };
    let tos = [
        "lineage_begun",
        "trainer_lost",
        "torn",
        "checkpoint_complete",
        "checkpoint_goes",
        "deleted",
    ];
    let training = |to| EventKind::TrainingChanged {
        job: JobName { namespace: "team".into(), job: "sft".into() },
        to,
        detail: "more".into(),
    };
    whats.map(job).into_iter().chain(tos.map(training)).collect()
}

/// Every example. A new kind of event goes here.
fn all() -> Vec<EventKind> {
    [of_members(), of_workers(), of_runs(), of_rows(), of_trainings()].concat()
}

/// As the ring of a member has it: with the names that it knows.
fn record(kind: EventKind) -> EventRecord {
    let name = |name: &str| Some(Arc::new(("team".to_owned(), name.to_owned())));
    let (worker, victim, run) = match &kind {
        EventKind::EpochOpened { .. }
        | EventKind::LeaderChanged { .. }
        | EventKind::MemberChanged { .. }
        | EventKind::SettingChanged { .. }
        | EventKind::Job { .. }
        | EventKind::TrainingChanged { .. } => (None, None, None),
        EventKind::RunCreated { .. } | EventKind::RunChanged { .. } | EventKind::Retried { .. } => {
            (None, None, name("r"))
        }
        EventKind::Granted { .. }
        | EventKind::Completed { .. }
        | EventKind::Failed { .. }
        | EventKind::Returned { .. } => (name("w"), None, name("r")),
        EventKind::Stolen { .. } => (name("w"), name("v"), name("r")),
        EventKind::WorkerRegistered { .. }
        | EventKind::WorkerSuspect { .. }
        | EventKind::WorkerBack { .. }
        | EventKind::WorkerDraining { .. }
        | EventKind::WorkerDrained { .. }
        | EventKind::WorkerLost { .. }
        | EventKind::WorkerCordoned { .. } => (name("w"), None, None),
    };
    let event = Event { index: 300, position: 1, wall_ms: 1_700_000_000_123, kind };
    EventRecord { event, worker, victim, run }
}

/// What a reader gets whose certificate names these namespaces.
fn passed(record: &EventRecord, namespaces: &[&str]) -> Option<v1::Event> {
    let namespaces = namespaces.iter().map(|name| (*name).to_owned()).collect();
    let identity = Identity { namespaces, ..Identity::insecure() };
    Filter::new(&identity, v1::EventFilter::default()).expect("well formed").pass(record)
}

fn slot_text(slot: &v1::EventSlot) -> String {
    let v1::EventSlot { worker, session, slot } = slot;
    match slot {
        Some(slot) => format!("{worker}/{slot} of {session}"),
        None => format!("{worker} of {session}"),
    }
}

fn rows_text(rows: &v1::Rows) -> String {
    let v1::Rows { starts, lens } = rows;
    let ranges = starts.iter().zip(lens).map(|(start, len)| format!("{start}+{len}"));
    ranges.collect::<Vec<_>>().join(",")
}

/// The fields that are set.
fn shown(event: &v1::Event) -> String {
    let v1::Event {
        index,
        position,
        wall_ms,
        kind,
        namespace,
        slot,
        victim,
        run,
        run_name,
        attempt,
        lost_attempt,
        rows,
        for_good,
        class,
        code,
        reason,
        coord_epoch,
        job,
        subject,
        round,
    } = event;
    let number = |value: u64| if value == 0 { String::new() } else { value.to_string() };
    let slots = |slot: &Option<v1::EventSlot>| slot.as_ref().map(slot_text).unwrap_or_default();
    let ranges = |rows: &Option<v1::Rows>| rows.as_ref().map(rows_text).unwrap_or_default();
    let fields = [
        ("index", number(*index)),
        ("position", number((*position).into())),
        ("wall_ms", number(*wall_ms)),
        ("kind", kind.clone()),
        ("namespace", namespace.clone()),
        ("slot", slots(slot)),
        ("victim", slots(victim)),
        ("run", number((*run).into())),
        ("run_name", run_name.clone()),
        ("attempt", number(*attempt)),
        ("lost_attempt", number(*lost_attempt)),
        ("rows", ranges(rows)),
        ("for_good", ranges(for_good)),
        ("class", class.clone()),
        ("code", code.clone()),
        ("reason", reason.clone()),
        ("coord_epoch", number(*coord_epoch)),
        ("job", job.clone()),
        ("subject", subject.clone()),
        ("round", number(*round)),
    ];
    let set = fields.into_iter().filter(|(_, value)| !value.is_empty());
    set.map(|(name, value)| format!("  {name}: {value}\n")).collect()
}

#[test]
fn an_event_of_each_kind_is_kept() {
    let (mut variants, mut kinds, mut text) = (BTreeSet::new(), BTreeSet::new(), String::new());
    for example in all() {
        let variant = variant(&example);
        let kind = kind_of(&example);
        assert!(EVENT_KINDS.contains(&kind), "{variant}: {kind} is no kind");
        variants.insert(variant);
        kinds.insert(kind);
        let record = record(example);
        let event = passed(&record, &[]).expect("a reader of all namespaces gets everything");
        let seen_by = match (passed(&record, &["team"]), passed(&record, &["other"])) {
            (Some(_), Some(_)) => "readers of any namespace",
            (Some(_), None) => "readers of its namespace",
            (None, _) => "readers of all namespaces",
        };
        // invariant: writing to a string does not fail.
        let _ = writeln!(text, "{variant}, for {seen_by}\n{}", shown(&event).trim_end());
        let _ = writeln!(text, "  bytes: {}\n", hex(&event.encode_to_vec()));
    }
    let missing: Vec<_> = VARIANTS.iter().filter(|name| !variants.contains(*name)).collect();
    assert!(missing.is_empty(), "no example of {missing:?}");
    let missing: Vec<_> = EVENT_KINDS.iter().filter(|kind| !kinds.contains(*kind)).collect();
    assert!(missing.is_empty(), "no example of the kinds {missing:?}");
    assert!(CLASSES.into_iter().all(is_listed));
    check(concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/events.txt"), &text);
}

/// Events of workers and runs that no member knows by name any more.
#[test]
fn an_event_without_names_is_kept() {
    let mut text = String::new();
    for example in [of_workers().remove(2), of_runs().remove(0), of_rows().remove(0)] {
        let record = EventRecord { worker: None, run: None, ..record(example) };
        assert_eq!(passed(&record, &["team"]), None, "its namespace is not known");
        let event = passed(&record, &[]).expect("a reader of all namespaces gets everything");
        let name = variant(&record.event.kind);
        // invariant: writing to a string does not fail.
        let _ = writeln!(text, "{name}\n{}", shown(&event).trim_end());
        let _ = writeln!(text, "  bytes: {}\n", hex(&event.encode_to_vec()));
    }
    check(concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/events-without-names.txt"), &text);
}
