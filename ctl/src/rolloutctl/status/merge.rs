//! Combines the members' answers into one view.
//!
//! Invariant: what only a leader knows is taken from the member that leads. A member counts as silent to all only if a
//! leader that has listened for long enough has not heard of it either. Absent: asking (`ask`), and fixes
//! (`fix`).

use std::collections::BTreeSet;
use std::time::{SystemTime, UNIX_EPOCH};

use rollout_proto::{MemberRef, Security, v1};

use super::ask::MemberAnswer;
use super::{
    AWAITING_REPLACE, DISTRUSTED, MemberLine, MemberReport, RemainingValidity, StuckRun, Survey,
    alarms,
};
use crate::output::rfc3339;
use crate::rolloutctl::distrust::NoAnswer;

/// How long a leader must have run before its silence about a member counts: members keep a minute of round trips.
const LISTENED_MS: u64 = 120_000;

/// Combines the members' answers.
pub(in crate::rolloutctl) fn merge(
    answers: Vec<MemberAnswer>,
    security: &Security,
    now: SystemTime,
) -> Survey {
    let mut survey = Survey { as_of: rfc3339(now), ..Survey::default() };
    let good = || answers.iter().filter_map(|(_, answer)| answer.as_ref().ok());
    let header = |answer: &v1::StatusResponse| answer.header.clone().unwrap_or_default();
    let applied = good()
        .filter_map(|answer| answer.self_.as_ref())
        .map(|own| own.applied_index.max(own.committed_index))
        .max()
        .unwrap_or(0);
    let newest = good().max_by_key(|answer| header(answer).applied_index);
    survey.cluster_id = good().map(|answer| header(answer).cluster_id).find(|id| !id.is_empty());
    survey.coord_epoch = good().map(|answer| header(answer).coord_epoch).max().unwrap_or(0);
    let leading = good()
        .filter(|answer| answer.has_quorum && header(answer).coord_epoch > 0)
        .filter(|answer| answer.self_.as_ref().is_some_and(|own| own.role == "leader"))
        .max_by_key(|answer| answer.self_.as_ref().map_or(0, |own| own.term));
    survey.leader = leading.and_then(|answer| answer.self_.as_ref()).map(|own| own.name.clone());
    if let Some(report) = leading.or(newest) {
        survey.workers_ready = report.workers_ready;
        survey.workers_suspect = report.workers_suspect;
        survey.workers_draining = report.workers_draining;
        survey.runs_running = report.runs_running;
        survey.runs_paused = report.runs_paused;
        survey.runs_ended = report.runs_ended;
        survey.stuck_runs = report.stuck_runs.iter().cloned().map(StuckRun::from).collect();
        survey.stuck_runs_more = report.stuck_runs_more;
    }
    let list = good().filter_map(|answer| header(answer).members).max_by_key(|list| list.version);
    let reachable = leading.and_then(|leading| reachable_members(leading, good()));
    let to_line = |(member, answer)| match answer {
        Ok(answer) => line(member, answer, applied, now),
        Err(error) => silent(member, NoAnswer::of(&error, security)),
    };
    survey.members = answers.into_iter().map(to_line).collect();
    let votes = |line: &MemberLine| {
        let id = line.report.as_ref().map(|report| report.id);
        list.iter().flat_map(|list| &list.members).any(|m| m.voter && Some(m.id) == id)
    };
    // A member that answers at a seed's address and at its own counts once. For a voter and its replacement of the
    // same name, the voter's answer counts.
    survey.members.sort_by(|a, b| {
        let by_name = a.name.cmp(&b.name).then(a.problem.cmp(&b.problem));
        by_name.then(votes(b).cmp(&votes(a)))
    });
    survey.members.dedup_by(|again, first| again.name == first.name);
    (survey.voters, survey.voters_reachable) = match &list {
        Some(list) => {
            look_up(&mut survey, list, reachable.as_ref());
            of_voters(&mut survey, list)
        }
        None => {
            let answered = survey.members.iter().filter(|member| member.report.is_some()).count();
            (survey.members.len() as u32, answered as u32)
        }
    };
    survey.health = health(&survey);
    survey.unknown = unknown(&survey);
    survey.alarms = alarms::of(&survey);
    survey
}

/// The IDs of the members that the answering members heard from within about a minute. `None` if that proves nothing
/// about the others: the leader has run for too short a time, or keeps no round trips.
fn reachable_members<'a>(
    leading: &v1::StatusResponse,
    good: impl Iterator<Item = &'a v1::StatusResponse>,
) -> Option<BTreeSet<u64>> {
    let leader = leading.self_.as_ref()?;
    if leader.uptime_ms < LISTENED_MS || leader.round_trips.is_empty() {
        return None;
    }
    let each = good.filter_map(|answer| answer.self_.as_ref());
    Some(each.flat_map(|own| own.round_trips.iter().map(|trips| trips.id)).collect())
}

/// Adds the cluster's record of each member, and marks the silent members that no other member has heard from.
fn look_up(survey: &mut Survey, list: &v1::MemberList, reachable: Option<&BTreeSet<u64>>) {
    for member in &mut survey.members {
        let id = member.report.as_ref().map(|report| report.id);
        let of_name: Vec<&v1::MemberInfo> =
            list.members.iter().filter(|listed| listed.name == member.name).collect();
        let listing = of_name.iter().max_by_key(|listed| (Some(listed.id) == id, listed.voter));
        member.info = listing.map(|listed| (*listed).clone());
        let silent = member.report.is_none() && !member.distrusted && member.info.is_some();
        let unheard = |reachable: &BTreeSet<u64>| {
            of_name.iter().all(|listed| !reachable.contains(&listed.id))
        };
        member.silent_to_all = silent && reachable.is_some_and(unheard);
    }
}

/// The number of voters, and the number of them that take part. Marks those that wait with an empty disk. If a voter
/// and the learner that replaces it have the same name, the name counts as the voter's.
fn of_voters(survey: &mut Survey, list: &v1::MemberList) -> (u32, u32) {
    let voters: Vec<(&str, u64)> = list
        .members
        .iter()
        .filter(|member| member.voter)
        .map(|member| (member.name.as_str(), member.id))
        .collect();
    for member in &mut survey.members {
        let is_voter = voters.iter().any(|(name, _)| *name == member.name);
        let another =
            |report: &MemberReport| report.id != 0 && voters.iter().all(|(_, id)| *id != report.id);
        member.is_replacement = is_voter && member.report.as_ref().is_some_and(another);
        let is_listed = list.members.iter().any(|listed| listed.name == member.name);
        member.voter = is_listed.then_some(is_voter);
        if let Some(report) =
            member.report.as_mut().filter(|report| is_voter && report.role == "waiting")
        {
            report.role = AWAITING_REPLACE.into();
        }
    }
    let answering = voters.iter().filter(|(name, _)| survey.takes_part(name)).count();
    (voters.len() as u32, answering as u32)
}

/// Without a leader, what only a leader knows is listed as unknown.
fn unknown(survey: &Survey) -> Vec<String> {
    let mut unknown = Vec::new();
    if survey.leader.is_none() && survey.cluster_id.is_some() {
        let needed = survey.voters / 2 + 1;
        let are = if needed == 1 { "is" } else { "are" };
        unknown.push(format!(
            "what happens now: {} of {} voters answer and {needed} {are} needed to decide anything; workers and runs \
             are as of the member that has applied most",
            survey.voters_reachable, survey.voters
        ));
    }
    let silent: Vec<&str> = survey
        .members
        .iter()
        .filter(|member| member.report.is_none())
        .map(|member| member.name.as_str())
        .collect();
    if !silent.is_empty() && survey.cluster_id.is_some() {
        let silent = silent.join(", ");
        unknown.push(format!(
            "state of {silent}: no answer from here, which does not mean that it is down"
        ));
    }
    unknown
}

fn health(survey: &Survey) -> &'static str {
    let answered = survey.members.iter().any(|member| member.report.is_some());
    let revoked = survey.members.iter().any(|member| member.revoked);
    match (&survey.leader, survey.voters_reachable, survey.cluster_id.is_some()) {
        // A member that still answers has not learned of the revocation.
        _ if revoked => DISTRUSTED,
        _ if !answered && survey.members.iter().any(|member| member.distrusted) => DISTRUSTED,
        (_, 0, _) => "unreachable",
        (None, _, false) => "not formed",
        (None, _, true) => "no leader",
        (Some(_), reachable, _) if reachable < survey.voters => "degraded",
        (Some(_), _, _) => "healthy",
    }
}

/// A member's name, and the address that was asked.
fn place(member: MemberRef) -> (String, String) {
    let named = if member.name.is_empty() { member.addr.clone() } else { member.name };
    (named, member.addr)
}

fn silent(member: MemberRef, why: NoAnswer) -> MemberLine {
    let (name, address) = place(member);
    let NoAnswer { problem, distrusted, revoked, wants_tls } = why;
    let problem = Some(problem);
    MemberLine { name, address, problem, distrusted, revoked, wants_tls, ..MemberLine::default() }
}

fn line(
    member: MemberRef,
    answer: v1::StatusResponse,
    applied: u64,
    now: SystemTime,
) -> MemberLine {
    let (named, address) = place(member);
    let own = answer.self_.unwrap_or_default();
    let now_unix = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let cert = RemainingValidity::of(own.cert_expires_unix, own.cert_renewal_unix, now_unix);
    let issuer = RemainingValidity::of(own.issuer_expires_unix, own.issuer_renewal_unix, now_unix);
    let report = MemberReport {
        id: own.id,
        zone: own.zone,
        role: own.role,
        term: own.term,
        applied_index: own.applied_index,
        behind: applied.saturating_sub(own.applied_index),
        image_index: own.image_index,
        image_bytes: own.image_bytes,
        log_bytes: own.log_bytes,
        resident_bytes: own.resident_bytes,
        uptime_seconds: own.uptime_ms as f64 / 1000.0,
        cert_seconds: cert.map(|left| left.seconds),
        cert_renewal_seconds: cert.map(|left| left.renewal_seconds),
        issuer_seconds: issuer.map(|left| left.seconds),
        issuer_renewal_seconds: issuer.map(|left| left.renewal_seconds),
        cert_refused: Some(own.cert_refused).filter(|why| !why.is_empty()),
        version: own.version,
        disk_free_bytes: (own.disk_bytes > 0).then(|| own.disk_free_bytes.to_string()),
        disk_room: own.disk_room,
        has_quorum: answer.has_quorum,
    };
    let name = if own.name.is_empty() { named } else { own.name };
    MemberLine { name, address, report: Some(report), ..MemberLine::default() }
}
