//! Events about members: which member started, stopped or was unreachable, and which one leads, with the cause of
//! each change.

use anyhow::{Result, ensure};
use rollout_tests::{Fleet, FleetOptions, check_order, eventually, logged_events, place};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(120);

/// A reader's log, and how far it was checked: expected events must come after that.
struct ReaderLog {
    log: PathBuf,
    after: (u64, u64),
}

impl ReaderLog {
    /// Waits for an event of that kind about that member with that cause. It may come before others awaited since the
    /// last [`ReaderLog::go_on`].
    fn until(&self, kind: &str, member: &str, code: &str) -> Value {
        eventually(&format!("{kind} of {member}: {code}"), PATIENCE, || {
            logged_events(&self.log).into_iter().find(|event| {
                place(event) > self.after
                    && event["kind"] == kind
                    && event["subject"] == member
                    && event["code"] == code
            })
        })
    }

    /// Ignores the events so far from now on.
    fn go_on(&mut self) {
        let last = logged_events(&self.log).last().map(place);
        self.after = last.unwrap_or(self.after);
    }

    fn all(log: &Path, kind: &str) -> Vec<Value> {
        logged_events(log).into_iter().filter(|event| event["kind"] == kind).collect()
    }
}

fn follower(fleet: &Fleet, leader: &str) -> String {
    fleet.member_names().into_iter().find(|name| name != leader).unwrap_or_default()
}

#[test]
fn each_change_of_a_member_and_of_the_leader_is_an_event_with_its_cause() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let _reader = fleet.follow_events("members.out", &["--since", "0"])?;
    let mut heard = ReaderLog { log: fleet.path("members.out"), after: (0, 0) };
    let first = fleet.leader();
    heard.until("leader_changed", &first, "first");
    for member in fleet.member_names() {
        heard.until("member_started", &member, "first");
    }

    heard.go_on();
    let stopped = follower(&fleet, &first);
    let end = fleet.member_process(&stopped).terminate(PATIENCE)?;
    ensure!(end.success(), "{stopped}: {end}");
    heard.until("member_stopped", &stopped, "");
    fleet.start_member(&stopped)?;
    heard.until("member_started", &stopped, "after_stop");

    heard.go_on();
    eventually("leadership moves", PATIENCE, || {
        let out = fleet.ctl(&["leader", "transfer", &stopped]).ok()?;
        out.status.success().then_some(())
    });
    let asked = heard.until("leader_changed", &stopped, "requested");
    let reason = asked["reason"].as_str().unwrap_or_default();
    ensure!(reason.starts_with(&format!("{first} transferred leadership")), "{asked}");

    heard.go_on();
    let killed = stopped;
    fleet.member_process(&killed).kill();
    let next = fleet.leader_other_than(&killed);
    let lost = heard.until("leader_changed", &next, "connections_lost");
    let reason = lost["reason"].as_str().unwrap_or_default();
    ensure!(reason.contains(&killed), "{lost}");
    heard.until("member_unreachable", &killed, "");
    fleet.start_member(&killed)?;
    heard.until("member_started", &killed, "without_notice");

    heard.go_on();
    let end = fleet.member_process(&next).terminate(PATIENCE)?;
    ensure!(end.success(), "{next}: {end}");
    let last = fleet.leader_other_than(&next);
    heard.until("leader_changed", &last, "stopping");
    heard.until("member_stopped", &next, "");
    fleet.start_member(&next)?;
    heard.until("member_started", &next, "after_stop");

    check_order(&logged_events(&heard.log))?;
    let changes = ReaderLog::all(&heard.log, "leader_changed");
    let epochs: BTreeSet<&str> = changes.iter().filter_map(|e| e["coordEpoch"].as_str()).collect();
    ensure!(epochs.len() == changes.len(), "one event for each epoch: {changes:?}");
    let starts = ReaderLog::all(&heard.log, "member_started");
    ensure!(starts.len() == 6, "three first starts and three more: {starts:?}");
    let stops = ReaderLog::all(&heard.log, "member_stopped");
    ensure!(stops.len() == 2, "each stop once, though two leaders knew of it: {stops:?}");
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn a_member_that_is_cut_off_is_unreachable_and_then_reachable_again() -> Result<()> {
    let fleet = Fleet::start(FleetOptions { cuttable: true, ..FleetOptions::default() })?;
    let _reader = fleet.follow_events("members.out", &["--since", "0"])?;
    let mut heard = ReaderLog { log: fleet.path("members.out"), after: (0, 0) };
    let leader = fleet.leader();
    let away = follower(&fleet, &leader);
    heard.until("member_started", &away, "first");
    heard.go_on();
    let cut = |is| {
        let others = fleet.member_names().into_iter().filter(|name| *name != away);
        others.for_each(|other| fleet.set_cut(&other, &away, is));
    };
    cut(true);
    heard.until("member_unreachable", &away, "");
    cut(false);
    heard.until("member_reachable", &away, "");
    let starts = ReaderLog::all(&heard.log, "member_started");
    ensure!(starts.len() == 3, "it was the same process all the time: {starts:?}");
    fleet.passed()
}
