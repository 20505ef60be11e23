//! Converts the ledger's events to the wire, and selects those that a caller gets.
//!
//! *Invariant:* an event of a namespace that the caller's certificate does not name never leaves. [`EVENT_KINDS`] lists
//! all kinds; a filter that names another one is refused.

use crate::grpc::convert::{self, Checked};
use rollout_ledger::id::SlotRef;
use rollout_ledger::{EventKind, HeldRows, LeaderCause};
use rollout_proto::{EVENT_KINDS, Identity, v1};
use rollout_raft::{EventName, EventRecord};
use std::sync::Arc;

#[cfg(test)]
mod golden;

fn kind_of(kind: &EventKind) -> &'static str {
    match kind {
        EventKind::EpochOpened { .. } => "epoch_opened",
        EventKind::LeaderChanged { .. } => "leader_changed",
        EventKind::MemberChanged { to, .. } => {
            let is_kind = |kind: &&&str| kind.strip_prefix("member_") == Some(to);
            EVENT_KINDS.iter().find(is_kind).copied().unwrap_or("member_changed")
        }
        EventKind::SettingChanged { .. } => "setting_changed",
        EventKind::WorkerRegistered { .. } => "worker_registered",
        EventKind::WorkerSuspect { .. } => "worker_suspect",
        EventKind::WorkerBack { .. } => "worker_back",
        EventKind::WorkerDraining { .. } => "worker_draining",
        EventKind::WorkerDrained { .. } => "worker_drained",
        EventKind::WorkerLost { .. } => "worker_lost",
        EventKind::WorkerCordoned { cordoned: true, .. } => "worker_cordoned",
        EventKind::WorkerCordoned { .. } => "worker_uncordoned",
        EventKind::RunCreated { .. } => "run_created",
        EventKind::RunChanged { to, .. } => {
            let is_kind = |kind: &&&str| kind.strip_prefix("run_") == Some(to);
            EVENT_KINDS.iter().find(is_kind).copied().unwrap_or("run_changed")
        }
        EventKind::Granted { .. } => "granted",
        EventKind::Stolen { .. } => "stolen",
        EventKind::Completed { .. } => "completed",
        EventKind::Failed { .. } => "failed",
        EventKind::Returned { .. } => "returned",
        EventKind::Retried { .. } => "retried",
        EventKind::Job { what, .. } => what,
        EventKind::TrainingChanged { to, .. } => {
            let is_kind = |kind: &&&str| kind.strip_prefix("training_") == Some(to);
            EVENT_KINDS.iter().find(is_kind).copied().unwrap_or("training_changed")
        }
    }
}

/// The events that a reader requests and may see.
pub(crate) struct Filter {
    /// The namespaces of the certificate; empty for all.
    namespaces: Vec<String>,
    wanted: v1::EventFilter,
}

impl Filter {
    /// Checks the requested filter. The namespace was already checked against the certificate.
    pub(crate) fn new(identity: &Identity, wanted: v1::EventFilter) -> Checked<Self> {
        if let Some(kind) = wanted.kinds.iter().find(|k| !EVENT_KINDS.contains(&k.as_str())) {
            let all = EVENT_KINDS.join(", ");
            return Err(convert::invalid(format!("no kind of event {kind}; there are {all}")));
        }
        if wanted.namespace.is_empty() && !(wanted.run.is_empty() && wanted.worker.is_empty()) {
            return Err(convert::invalid("the name of a run or worker needs its namespace"));
        }
        if wanted.row.is_some() && wanted.run.is_empty() {
            return Err(convert::invalid("a row needs its run"));
        }
        Ok(Self { namespaces: identity.namespaces.clone(), wanted })
    }

    /// Converts the event if this reader gets it.
    pub(crate) fn pass(&self, record: &EventRecord) -> Option<v1::Event> {
        let (wanted, kind) = (&self.wanted, kind_of(&record.event.kind));
        let named = |name: &Option<Arc<EventName>>, want: &str| {
            name.as_ref().is_some_and(|name| name.1 == want)
        };
        let about_all = record.run.is_none() && record.worker.is_none();
        if let Some(namespace) = namespace_of(record) {
            let mine = self.namespaces.is_empty() || self.namespaces.iter().any(|n| n == namespace);
            if !mine || !(wanted.namespace.is_empty() || wanted.namespace == namespace) {
                return None;
            }
        } else if !is_of_cluster(&record.event.kind) {
            return self.anonymous(record, kind);
        }
        let kinds = wanted.kinds.is_empty() || wanted.kinds.iter().any(|k| k == kind);
        let run = wanted.run.is_empty() || named(&record.run, &wanted.run);
        let worker = wanted.worker.is_empty()
            || named(&record.worker, &wanted.worker)
            || named(&record.victim, &wanted.worker);
        let named_nothing = wanted.run.is_empty() && wanted.worker.is_empty();
        let row = wanted.row.is_none_or(|row| rows_of(&record.event.kind).is_some_and(|r| r(row)));
        let passes = kinds && row && run && worker && (named_nothing || !about_all);
        passes.then(|| event_out(record, kind))
    }

    /// An event whose names are no longer known: only for readers that may see everything and filter nothing.
    fn anonymous(&self, record: &EventRecord, kind: &str) -> Option<v1::Event> {
        let wanted = &self.wanted;
        let all = self.namespaces.is_empty()
            && wanted.namespace.is_empty()
            && (wanted.kinds.is_empty() || wanted.kinds.iter().any(|k| k == kind));
        all.then(|| event_out(record, kind))
    }
}

/// Whether an event is about the cluster rather than a namespace.
fn is_of_cluster(kind: &EventKind) -> bool {
    matches!(
        kind,
        EventKind::EpochOpened { .. }
            | EventKind::LeaderChanged { .. }
            | EventKind::MemberChanged { .. }
            | EventKind::SettingChanged { .. }
    )
}

/// Why a member leads, as a text. `former` is the previous leader; empty if unknown.
fn leader_reason(former: &str, cause: LeaderCause) -> String {
    let former = if former.is_empty() { "the former leader" } else { former };
    match cause {
        LeaderCause::First => "no earlier leader is known".to_owned(),
        LeaderCause::Requested => {
            format!("{former} transferred leadership: an administrator asked for it")
        }
        LeaderCause::Stopping => format!("{former} transferred leadership: it was stopping"),
        LeaderCause::SlowDisk => format!("{former} transferred leadership: its disk was slow"),
        LeaderCause::FullDisk => format!("{former} transferred leadership: its disk was full"),
        LeaderCause::Removal => {
            format!("{former} transferred leadership: it was being removed or replaced")
        }
        LeaderCause::ConnectionsLost => {
            format!("the connections of {former} broke: its process ended, or it was cut off")
        }
        LeaderCause::ElectionTimeout => {
            format!("{former} sent nothing for the election timeout")
        }
        LeaderCause::Again => {
            format!("{former} restarted or lost its majority, and was elected again")
        }
    }
}

/// The same for a change of a member's process.
fn member_reason(to: &str, cause: &str) -> &'static str {
    match (to, cause) {
        ("started", "first") => "first start",
        ("started", "after_stop") => "after a clean stop",
        ("started", _) => {
            "its former process ended without notice: it was killed, it crashed or its machine failed"
        }
        ("stopped", _) => "clean shutdown",
        ("unreachable", _) => "it has not answered the leader for 5 s",
        ("reachable", _) => "it has answered the leader for 5 s",
        _ => "",
    }
}

/// The namespace of an event, if it is known.
fn namespace_of(record: &EventRecord) -> Option<&str> {
    match &record.event.kind {
        EventKind::Job { job, .. } => Some(&job.namespace),
        EventKind::TrainingChanged { job, .. } => Some(&job.namespace),
        _ => Some(&record.run.as_ref().or(record.worker.as_ref())?.0),
    }
}

/// Whether a row is among those of an event, if the event has rows.
fn rows_of(kind: &EventKind) -> Option<impl Fn(u64) -> bool + '_> {
    let rows = match kind {
        EventKind::Retried { rows, .. } => rows,
        kind => &held_of(kind)?.rows,
    };
    Some(|row| rows.contains(row))
}

/// The attempt of an event, with its rows.
fn held_of(kind: &EventKind) -> Option<&HeldRows> {
    match kind {
        EventKind::Granted { held, .. }
        | EventKind::Stolen { held, .. }
        | EventKind::Completed { held, .. }
        | EventKind::Failed { held, .. }
        | EventKind::Returned { held, .. } => Some(held),
        _ => None,
    }
}

fn name(of: &Option<Arc<EventName>>) -> String {
    of.as_ref().map(|n| n.1.clone()).unwrap_or_default()
}

/// What events of all kinds have.
fn common_out(record: &EventRecord, kind: &str) -> v1::Event {
    let event = &record.event;
    let mut out = v1::Event {
        index: event.index,
        position: event.position,
        wall_ms: event.wall_ms,
        kind: kind.to_owned(),
        namespace: namespace_of(record).unwrap_or_default().to_owned(),
        run_name: name(&record.run),
        ..v1::Event::default()
    };
    if let Some(held) = held_of(&event.kind) {
        (out.run, out.attempt) = (held.run.0, held.attempt.0);
        out.rows = Some(convert::rows_out(&held.rows));
    }
    out
}

/// A slot of the event's worker, or the worker as a whole.
fn slot_out(record: &EventRecord, at: &SlotRef, whole: bool) -> v1::EventSlot {
    v1::EventSlot {
        worker: name(&record.worker),
        session: at.session.0,
        slot: (!whole).then_some(at.slot.0.into()),
    }
}

fn event_out(record: &EventRecord, kind: &str) -> v1::Event {
    let mut out = common_out(record, kind);
    let slot = |at: &SlotRef, whole: bool| slot_out(record, at, whole);
    match &record.event.kind {
        EventKind::EpochOpened { epoch } => out.coord_epoch = epoch.0,
        EventKind::LeaderChanged { epoch, leader, former, cause } => {
            (out.coord_epoch, out.subject) = (epoch.0, leader.clone());
            (out.code, out.reason) = (cause.word().into(), leader_reason(former, *cause));
        }
        EventKind::MemberChanged { member, to, cause } => {
            out.subject = member.clone();
            (out.code, out.reason) = ((*cause).into(), member_reason(to, cause).into());
        }
        EventKind::SettingChanged { setting, from, to } => {
            (out.subject, out.reason) = ((*setting).into(), format!("changed from {from} to {to}"));
        }
        EventKind::WorkerRegistered { session, .. }
        | EventKind::WorkerSuspect { session }
        | EventKind::WorkerBack { session }
        | EventKind::WorkerDraining { session }
        | EventKind::WorkerDrained { session, .. }
        | EventKind::WorkerLost { session, .. } => {
            let at = SlotRef { session: *session, slot: Default::default() };
            out.slot = Some(slot(&at, true));
            if let EventKind::WorkerRegistered { resumed: true, .. } = &record.event.kind {
                out.reason = "resumed".into();
            }
        }
        EventKind::WorkerCordoned { slot: at, whole, reason, .. } => {
            (out.slot, out.reason) = (Some(slot(at, *whole)), reason.clone());
        }
        EventKind::RunCreated { run } => out.run = run.0,
        EventKind::RunChanged { run, reason, .. } => {
            (out.run, out.reason) = (run.0, reason.clone());
        }
        EventKind::Granted { slot: at, how, .. } => {
            (out.slot, out.reason) = (Some(slot(at, false)), (*how).into());
        }
        EventKind::Stolen { victim, idle_slot, lost, .. } => {
            let victim = v1::EventSlot { worker: name(&record.victim), ..slot(victim, false) };
            (out.victim, out.slot) = (Some(victim), Some(slot(idle_slot, false)));
            out.lost_attempt = lost.0;
        }
        // No slot ran rows with a reused result.
        EventKind::Completed { slot: at, held } => match held.attempt.0 {
            0 => out.reason = "carried over".into(),
            _ => out.slot = Some(slot(at, false)),
        },
        EventKind::Failed { slot: at, class, code, for_good, .. } => {
            (out.slot, out.code) = (Some(slot(at, false)), code.clone());
            out.class = convert::class_name(*class).into();
            out.for_good = Some(convert::rows_out(for_good));
        }
        EventKind::Returned { slot: at, why, .. } => {
            (out.slot, out.reason) = (Some(slot(at, false)), (*why).into());
        }
        EventKind::TrainingChanged { job, detail, .. } => {
            (out.job, out.reason) = (job.job.clone(), detail.clone());
        }
        EventKind::Retried { run, rows } => {
            (out.run, out.rows) = (run.0, Some(convert::rows_out(rows)));
        }
        EventKind::Job { job, subject, round, reason, .. } => {
            (out.job, out.subject) = (job.job.clone(), subject.clone());
            (out.round, out.reason) = (*round, reason.clone());
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use rollout_ledger::id::{Attempt, CoordEpoch, RunNo, SessionId, SlotNo};
    use rollout_ledger::{Event, JobName, Rows};

    fn record(kind: EventKind, run: Option<&str>, worker: Option<&str>) -> EventRecord {
        let name = |n: &str| Arc::new(("team".to_owned(), n.to_owned()));
        let event = Event { index: 5, position: 1, wall_ms: 7, kind };
        EventRecord { event, worker: worker.map(name), victim: None, run: run.map(name) }
    }

    fn granted() -> EventRecord {
        let slot = SlotRef { session: SessionId(9), slot: SlotNo(2) };
        let held = HeldRows { run: RunNo(3), attempt: Attempt(40), rows: Rows::range(4, 3) };
        record(EventKind::Granted { slot, held, how: "claim" }, Some("r"), Some("w"))
    }

    fn who(namespaces: &[&str]) -> Identity {
        let namespaces = namespaces.iter().map(|n| (*n).to_owned()).collect();
        Identity { namespaces, ..Identity::insecure() }
    }

    fn wanted(text: &str) -> v1::EventFilter {
        let mut filter = v1::EventFilter::default();
        for (key, value) in text.split_whitespace().filter_map(|pair| pair.split_once('=')) {
            match key {
                "namespace" => filter.namespace = value.into(),
                "run" => filter.run = value.into(),
                "worker" => filter.worker = value.into(),
                "row" => filter.row = value.parse().ok(),
                _ => filter.kinds.push(value.into()),
            }
        }
        filter
    }

    /// The kinds that the guide lists; `_lost` after `worker_registered` stands for `worker_lost`.
    fn documented() -> Vec<String> {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/operating/events-and-audit.md");
        let text = std::fs::read_to_string(page).expect("the guide");
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let (_, text) = text.split_once("who, and what. The kinds: ").expect("its list of kinds");
        let (text, _) = text.split_once(" The reason of").expect("the list's end");
        let (mut kinds, mut of) = (Vec::new(), "");
        for word in text.split('`').skip(1).step_by(2) {
            match word.starts_with('_') {
                true => kinds.push(format!("{of}{word}")),
                false => {
                    of = word.split('_').next().unwrap_or(word);
                    kinds.push(word.to_owned());
                }
            }
        }
        kinds
    }

    #[test]
    fn the_guide_names_every_kind() {
        let mut documented = documented();
        let mut known = EVENT_KINDS.map(str::to_owned).to_vec();
        documented.sort();
        known.sort();
        assert_eq!(documented, known);
    }

    #[test]
    fn a_reader_sees_the_selected_events_of_its_namespaces() {
        let cases = [
            ("", "", true),
            ("team other", "", true),
            ("other", "", false),
            ("", "namespace=team run=r", true),
            ("", "namespace=other", false),
            ("", "namespace=team run=q", false),
            ("", "namespace=team worker=w kind=granted", true),
            ("", "namespace=team worker=v", false),
            ("", "kind=stolen", false),
            ("", "namespace=team run=r row=6", true),
            ("", "namespace=team run=r row=7", false),
        ];
        for (namespaces, filter, passes) in cases {
            let namespaces: Vec<&str> = namespaces.split_whitespace().collect();
            let filter_now = Filter::new(&who(&namespaces), wanted(filter)).expect("well formed");
            assert_eq!(filter_now.pass(&granted()).is_some(), passes, "{namespaces:?} {filter}");
        }
        let out = Filter::new(&who(&[]), wanted("")).expect("all").pass(&granted()).expect("all");
        assert_eq!((out.kind.as_str(), out.run_name.as_str(), out.attempt), ("granted", "r", 40));
        assert_eq!(out.slot.and_then(|s| s.slot), Some(2));
    }

    #[test]
    fn every_reader_without_a_named_filter_gets_the_clusters_own_events() {
        let epoch = || record(EventKind::EpochOpened { epoch: CoordEpoch(4) }, None, None);
        let pass = |namespaces: &[&str], text: &str| {
            Filter::new(&who(namespaces), wanted(text)).expect("fine").pass(&epoch()).is_some()
        };
        assert!(pass(&["team"], "") && pass(&[], "namespace=team kind=epoch_opened"));
        assert!(!pass(&[], "namespace=team worker=w") && !pass(&[], "kind=granted"));
    }

    #[test]
    fn a_change_of_leader_says_who_leads_and_why() {
        let (leader, former) = ("c2".to_owned(), "c1".to_owned());
        let (epoch, cause) = (CoordEpoch(4), LeaderCause::ConnectionsLost);
        let kind = EventKind::LeaderChanged { epoch, leader, former, cause };
        let filter = Filter::new(&who(&["team"]), wanted("kind=leader_changed")).expect("fine");
        let out = filter.pass(&record(kind, None, None)).expect("the cluster's own");
        assert_eq!((out.kind.as_str(), out.coord_epoch), ("leader_changed", 4));
        assert_eq!((out.subject.as_str(), out.code.as_str()), ("c2", "connections_lost"));
        assert!(out.reason.starts_with("the connections of c1 broke"), "{}", out.reason);
    }

    #[test]
    fn a_member_s_events_name_it_and_have_their_kinds() {
        for to in ["started", "stopped", "unreachable", "reachable"] {
            let cause = if to == "started" { "without_notice" } else { "" };
            let kind = EventKind::MemberChanged { member: "c3".into(), to, cause };
            let filter = Filter::new(&who(&["team"]), wanted("")).expect("fine");
            let out = filter.pass(&record(kind, None, None)).expect("the cluster's own");
            assert_eq!((out.kind, out.subject), (format!("member_{to}"), "c3".to_owned()));
            assert_eq!(out.code, cause);
            assert!(!out.reason.is_empty());
        }
    }

    #[test]
    fn a_change_of_a_setting_names_it_and_both_values() {
        let kind = EventKind::SettingChanged { setting: "cordon-after", from: 3, to: 5 };
        let filter = Filter::new(&who(&["team"]), wanted("kind=setting_changed")).expect("fine");
        let out = filter.pass(&record(kind, None, None)).expect("the cluster's own");
        assert_eq!((out.kind.as_str(), out.subject.as_str()), ("setting_changed", "cordon-after"));
        assert_eq!(out.reason, "changed from 3 to 5");
    }

    #[test]
    fn an_event_with_forgotten_names_does_not_bypass_namespaces() {
        let nameless = EventRecord { run: None, worker: None, ..granted() };
        let filter = |namespaces: &[&str]| Filter::new(&who(namespaces), wanted("")).expect("fine");
        assert!(filter(&["team"]).pass(&nameless).is_none());
        assert!(filter(&[]).pass(&nameless).is_some());
    }

    #[test]
    fn a_filter_that_means_nothing_is_refused() {
        for bad in ["kind=gifted", "run=r", "worker=w", "namespace=team row=4"] {
            assert!(Filter::new(&who(&[]), wanted(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_event_of_a_training_job_is_for_its_namespace_alone() {
        let job = JobName { namespace: "team".into(), job: "sft".into() };
        let kind = EventKind::TrainingChanged { job, to: "torn", detail: "t1".into() };
        let torn = record(kind, None, None);
        let pass = |namespaces: &[&str], text: &str| {
            Filter::new(&who(namespaces), wanted(text)).expect("fine").pass(&torn)
        };
        let out = pass(&["team"], "kind=training_torn").expect("its own");
        assert_eq!((out.namespace.as_str(), out.job.as_str()), ("team", "sft"));
        assert!(pass(&["other"], "").is_none() && pass(&[], "namespace=other").is_none());
        assert!(pass(&[], "namespace=team run=r").is_none());
    }

    #[test]
    fn every_change_of_a_run_has_its_kind() {
        for to in
            ["paused", "resumed", "cancelled", "finished", "sealed", "deleted", "canary_passed"]
        {
            let kind = EventKind::RunChanged { run: RunNo(1), to, reason: String::new() };
            assert_eq!(kind_of(&kind), format!("run_{to}"));
        }
    }
}
