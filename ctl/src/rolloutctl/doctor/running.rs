//! A running cluster, as far as it is visible from here.
//!
//! Invariant: each member is asked directly, by its own name. Without a quorum it reads what it can, and prints a line
//! for what it cannot. Absent: what `cluster verify` compares; that takes a leader and time.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use rollout_batch::hint::namespace_flag;
use rollout_config::coordinator::Profile;
use rollout_proto::{Client, Security, pki, services, v1};

use super::finding::{Finding, Findings};
use super::round_trips::{self, RoundTrips};
use super::{DoctorArgs, REFUSED, expiry, life, space};
use crate::connect::ConnectArgs;
use crate::output::{counted, duration};
use crate::rolloutctl::Failure;
use crate::rolloutctl::distrust::{REVOKED_FIX, USE_TLS};
use crate::rolloutctl::status::certificate_alarms::ANOTHER_ISSUER;
use crate::rolloutctl::status::{
    self, DISTRUSTED, MemberAnswer, MemberLine, Survey, distrust, fix,
};

/// A member that lacks more entries than this lags by more than a heartbeat.
const BEHIND_MAX: u64 = 10_000;

/// All checks, and the reason if no leader is found.
pub(super) async fn check(
    connect: &ConnectArgs,
    args: &DoctorArgs,
) -> anyhow::Result<(Findings, Option<Failure>)> {
    let settings = connect.settings()?;
    let client = settings.client(None)?;
    let answers = status::ask_each(&client).await;
    let mut findings = identities(&answers);
    let round_trips = round_trips::of(&answers);
    findings.extend(round_trips.iter().flat_map(RoundTrips::findings));
    let profiles = profiles(&answers);
    let survey = status::merge(answers, &settings.security, SystemTime::now());
    findings.extend(of_survey(&survey, args));
    if let Security::Mtls(files) = &settings.security
        && let Ok(info) = pki::inspect(&files.cert)
    {
        findings.push(life("your own", &info, args, &another_of_yours(&info)));
    }
    findings.extend(disks(&client, args, &profiles).await);
    Ok((Findings::new(findings).with_round_trips(round_trips), survey.leaderless()))
}

/// How to replace the caller's certificate.
fn another_of_yours(info: &pki::CertInfo) -> String {
    let renew = "rolloutctl cert renew, if a join token issued it";
    let Some(id) = &info.identity else { return renew.to_owned() };
    let issue = fix::issue(id.role.as_str(), &id.name, &[]);
    let of: String = id.namespaces.iter().map(|ns| format!(" --for-namespace {ns}")).collect();
    format!("{renew}; else: {issue}{of}, with the CA in DIR")
}

/// All members report the same cluster and epoch.
fn identities(answers: &[MemberAnswer]) -> Vec<Finding> {
    let mut clusters: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    let mut epochs: BTreeMap<u64, Vec<&str>> = BTreeMap::new();
    for (member, answer) in answers {
        let Ok(answer) = answer else { continue };
        let name = answer.self_.as_ref().map_or(member.name.as_str(), |own| own.name.as_str());
        let header = answer.header.clone().unwrap_or_default();
        clusters.entry(header.cluster_id).or_default().push(name);
        epochs.entry(header.coord_epoch).or_default().push(name);
    }
    let shown = |id: &str| match id {
        "" => "no cluster".to_owned(),
        id => format!("cluster {}", &id[..id.len().min(8)]),
    };
    let list = |of: &BTreeMap<String, Vec<&str>>| {
        of.iter()
            .map(|(id, names)| format!("{} in {}", names.join(", "), shown(id)))
            .collect::<Vec<_>>()
            .join("; ")
    };
    let mut findings = Vec::new();
    match clusters.len() {
        0 => {}
        1 => findings.push(Finding::ok("cluster", list(&clusters))),
        _ => findings.push(Finding::fail(
            "cluster",
            list(&clusters),
            "members of several clusters answer at the addresses of one cluster",
            "stop the member of the other cluster; for a member with an empty disk: rolloutctl alarm list",
        )),
    }
    if epochs.len() > 1 {
        let all: Vec<String> = epochs
            .iter()
            .map(|(epoch, names)| format!("{} in {epoch}", names.join(", ")))
            .collect();
        findings.push(Finding::warn(
            "epoch",
            all.join("; "),
            "a member with an older epoch lags or is partitioned",
            "repeat the check; if it persists, read the log of the member that is behind",
        ));
    } else if let Some(epoch) = epochs.keys().next() {
        findings.push(Finding::ok("epoch", format!("all are in epoch {epoch}")));
    }
    findings
}

fn of_survey(survey: &Survey, args: &DoctorArgs) -> Vec<Finding> {
    let mut findings = match survey.health {
        DISTRUSTED => vec![trust(survey)],
        _ => vec![quorum(survey), leader(survey)],
    };
    findings.extend(zones(survey));
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for member in &survey.members {
        let name = member.name.as_str();
        let Some(report) = &member.report else {
            findings.push(of_silent(member));
            continue;
        };
        versions.entry(report.version.as_str()).or_default().push(name);
        let up = duration(report.uptime_seconds);
        findings.push(Finding::ok("member", format!("{name} is a {}, up for {up}", report.role)));
        findings.extend(of_member(member, report));
        if let Some(left) = report.cert() {
            let todo =
                format!("{}, into the same files; no restart needed", fix::certificate(member));
            findings.push(expiry(&format!("that of {name}"), left, args, (REFUSED, &todo)));
        }
        if let Some(left) = report.issuer() {
            let what = format!("that of the intermediate CA of {name}");
            let why =
                "then no certificate is issued or renewed, and all that it signed have expired";
            findings.push(expiry(&what, left, args, (why, ANOTHER_ISSUER)));
        }
        if let Some(free) = report.disk_free_bytes.as_ref().and_then(|text| text.parse().ok()) {
            findings.push(space(&format!("the disk of {name}"), free, args));
        }
    }
    let of = |(version, names): (&&str, &Vec<&str>)| format!("{} on {version}", names.join(", "));
    match versions.len() {
        0 => {}
        1 => findings.push(Finding::ok("version", versions.iter().map(of).collect::<String>())),
        _ => findings.push(Finding::warn(
            "version",
            versions.iter().map(of).collect::<Vec<_>>().join("; "),
            "expected only during a rolling upgrade",
            "finish the rolling upgrade",
        )),
    }
    findings.extend(workers(survey));
    findings.extend(stuck_runs(survey));
    findings.extend(at_cordon_limit(survey));
    findings
}

/// Replaces the findings about voters and leader.
fn trust(survey: &Survey) -> Finding {
    let unseen = "the cluster's state is unknown: no member answers you";
    let fix = distrust::fix_of_all(survey);
    let (found, why) = match fix {
        REVOKED_FIX => {
            ("your certificate is revoked", "members that know of the revocation refuse it")
        }
        USE_TLS => ("the members use TLS, but you connect without it", unseen),
        _ => ("the members and you do not trust each other", unseen),
    };
    Finding::fail("trust", found, why, fix)
}

fn of_silent(member: &MemberLine) -> Finding {
    let MemberLine { name, address, .. } = member;
    let (found, todo) = match member.distrusted {
        true => (
            format!("{name} at {address} and you do not trust each other"),
            distrust::fix(member).to_owned(),
        ),
        false => (format!("{name} does not answer at {address}"), fix::silent(member)),
    };
    Finding::fail("member", found, member.silence(), todo)
}

fn quorum(survey: &Survey) -> Finding {
    let (reachable, voters) = (survey.voters_reachable, survey.voters);
    let needed = voters / 2 + 1;
    let are = if needed == 1 { "is" } else { "are" };
    let found = format!("{reachable} of {voters} voters answer, {needed} {are} needed");
    let todo = "restore the members that do not answer, as their lines describe";
    match reachable.checked_sub(needed) {
        None => Finding::fail(
            "quorum",
            found,
            "the cluster accepts no claims, results or changes",
            todo,
        ),
        Some(0) if voters > 1 => {
            Finding::warn("quorum", found, "one more failure stops the cluster", todo)
        }
        Some(0) => Finding::warn(
            "quorum",
            found,
            "a cluster with one member stops with that member",
            "add two members: rolloutctl member add --help",
        ),
        Some(_) if voters.is_multiple_of(2) => Finding::warn(
            "quorum",
            found,
            "an even number of voters tolerates no more failures than one voter fewer",
            "add one: rolloutctl member add --help",
        ),
        Some(margin) => Finding::ok("quorum", format!("{found}: {margin} may fail")),
    }
}

fn leader(survey: &Survey) -> Finding {
    match &survey.leader {
        Some(leader) => {
            Finding::ok("leader", format!("{leader} leads in epoch {}", survey.coord_epoch))
        }
        None => Finding::fail(
            "leader",
            "there is no leader",
            "not checked without a leader: workers, runs, fsyncs",
            "an election takes a second: repeat the check; then see quorum",
        ),
    }
}

/// Whether the loss of one zone would lose the majority.
fn zones(survey: &Survey) -> Option<Finding> {
    // The zone of a member that does not answer is unknown here.
    if survey.voters_reachable < survey.voters {
        return None;
    }
    let mut zones: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for member in &survey.members {
        let Some(report) = &member.report else { continue };
        if report.role != "learner" && report.takes_part() {
            zones.entry(report.zone.as_str()).or_default().push(member.name.as_str());
        }
    }
    let voters = survey.voters as usize;
    if let Some(unknown) = zones.remove("").filter(|_| voters > 1) {
        return Some(Finding::warn(
            "zones",
            format!("the zone of {} is unknown", unknown.join(", ")),
            "the failure of one zone may stop the cluster",
            "set zone in the configuration of each member",
        ));
    }
    let most = zones.iter().max_by_key(|(_, names)| names.len())?;
    let left = voters.saturating_sub(most.1.len());
    if voters > 1 && left < voters / 2 + 1 {
        let found = format!("{} are all in zone {}", most.1.join(", "), most.0);
        let todo = format!(
            "add a member in another zone: rolloutctl member add --help; then: rolloutctl member remove {}",
            most.1.last().copied().unwrap_or_default()
        );
        return Some(Finding::warn(
            "zones",
            found,
            "the failure of that zone stops the cluster",
            todo,
        ));
    }
    let names: BTreeSet<&str> = zones.keys().copied().collect();
    let names = names.into_iter().collect::<Vec<_>>().join(", ");
    Some(Finding::ok("zones", format!("any one of {names} may fail")))
}

fn of_member(member: &MemberLine, report: &status::MemberReport) -> Vec<Finding> {
    let (name, mut findings) = (&member.name, Vec::new());
    if report.role == status::AWAITING_REPLACE {
        findings.push(Finding::fail(
            "member",
            format!("{name} waits with an empty disk"),
            "it lost its disk, so it has no vote",
            fix::replace(member),
        ));
        // The following checks apply to members that take part.
        return findings;
    }
    if report.role == "waiting" {
        findings.push(Finding::warn(
            "member",
            format!("{name} waits and belongs to no cluster"),
            "it has no vote",
            match member.voter {
                Some(false) => fix::add_again(member),
                _ => "stop it, or add it: rolloutctl member add --help; or form a cluster: rolloutctl cluster bootstrap --help"
                    .into(),
            },
        ));
        return findings;
    }
    if report.role == "stopped" || report.role == "candidate" {
        findings.push(Finding::warn(
            "member",
            format!("{name} is {}", report.role),
            "it neither leads nor follows",
            "repeat the check; if it persists, read its log",
        ));
    }
    if report.behind > BEHIND_MAX {
        findings.push(Finding::warn(
            "lag",
            format!("{name} is {} behind", counted(report.behind, "entry")),
            "it cannot take over soon, and it needs a snapshot if it falls further behind",
            "wait; if the lag grows, check its disk and network",
        ));
    }
    if !report.has_quorum {
        findings.push(Finding::warn(
            "quorum",
            format!("{name} reports that it reaches no majority"),
            "it redirects its clients",
            "open the peer ports between the members",
        ));
    }
    findings
}

fn workers(survey: &Survey) -> Option<Finding> {
    survey.leader.as_ref()?;
    let (ready, suspect) = (survey.workers_ready, survey.workers_suspect);
    let found = format!("{ready} ready, {suspect} silent, {} leaving", survey.workers_draining);
    let todo = "find them: rolloutctl worker list";
    Some(match (ready, suspect) {
        (_, 1..) => Finding::warn(
            "workers",
            found,
            "other workers get the rows that the silent workers had not started",
            todo,
        ),
        (0, 0) if survey.runs_running > 0 => {
            Finding::warn("workers", found, "runs wait, and no worker runs their rows", todo)
        }
        _ => Finding::ok("workers", found),
    })
}

/// Runs that no worker can work on.
fn stuck_runs(survey: &Survey) -> Option<Finding> {
    survey.leader.as_ref()?;
    let stuck: Vec<_> = survey.stuck_runs.iter().filter(|run| !run.paused).collect();
    let Some(first) = stuck.first() else {
        return Some(Finding::ok("runs", "no visible run is stuck".to_owned()));
    };
    let found = match stuck.len() {
        1 => format!("run {} is stuck: {}", first.display_name(), first.problem()),
        many => format!("{many} runs are stuck; run {}: {}", first.display_name(), first.problem()),
    };
    let todo =
        format!("check the workers: rolloutctl worker list{}", namespace_flag(&first.namespace));
    Some(Finding::warn("runs", found, "rows wait, and no worker can run them", todo))
}

/// Runs paused because a slot is to blame and may not be cordoned.
fn at_cordon_limit(survey: &Survey) -> Option<Finding> {
    survey.leader.as_ref()?;
    let paused: Vec<_> = survey.stuck_runs.iter().filter(|run| run.at_cordon_limit).collect();
    let first = paused.first()?;
    let found = match paused.len() {
        1 => format!("run {} is paused: {}", first.display_name(), first.why),
        many => format!("{many} runs are paused; run {}: {}", first.display_name(), first.why),
    };
    let why = "too many slots of the model are already cordoned";
    Some(Finding::warn("cordons", found, why, first.fix_at_cordon_limit()))
}

/// The profile of each member that reports it.
fn profiles(answers: &[MemberAnswer]) -> BTreeMap<String, Profile> {
    let members = answers.iter().filter_map(|(_, answer)| answer.as_ref().ok()?.self_.as_ref());
    members
        .filter_map(|own| {
            Some((own.name.clone(), round_trips::profile_by_name(&own.raft_profile)?))
        })
        .collect()
}

/// The members' measurements of their own fsyncs. They need an admin's certificate.
async fn disks(
    client: &Client,
    args: &DoctorArgs,
    profiles: &BTreeMap<String, Profile>,
) -> Vec<Finding> {
    let answers = client
        .each_member(|_, channel| async move {
            services::cluster(channel).counters(v1::CountersRequest {}).await
        })
        .await;
    let max_us = args.fsync_max.as_micros() as u64;
    // A member that does not answer already has its line.
    let answers = answers.into_iter().filter_map(|(_, answer)| answer.ok());
    answers.map(|answer| disk(&answer, max_us, profiles.get(&answer.member).copied())).collect()
}

/// The profile's limit takes precedence: beyond it a leader may lose its lease, and `--fsync-max` may be longer.
fn disk(answer: &v1::CountersResponse, max_us: u64, profile: Option<Profile>) -> Finding {
    let time = |us: u64| duration(us as f64 / 1e6);
    let (p50, p99) = (time(answer.fsync_us_p50), time(answer.fsync_us_p99));
    let found = format!("fsyncs of {}: median {p50}, p99 {p99}", answer.member);
    let todo = "use a faster or a dedicated disk";
    let beyond =
        profile.filter(|profile| u128::from(answer.fsync_us_p99) > profile.fsync_max().as_micros());
    match (beyond, answer.fsync_us_p99) {
        (Some(profile), _) => {
            let (name, most) = (profile.name(), profile.fsync_max().as_millis());
            let found = format!("{found}; {name} allows at most {most}ms");
            Finding::warn("fsync", found, round_trips::LATE, todo)
        }
        (None, us) if us <= max_us => Finding::ok("fsync", found),
        (None, _) => {
            let why = "each acknowledgment waits for the fsyncs of a majority";
            Finding::warn("fsync", found, why, todo)
        }
    }
}
