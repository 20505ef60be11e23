//! The problems that the members report, and the command that fixes each.
//!
//! Invariant: an alarm is a present condition: it ends with the condition, so there is nothing to clear. Each has a
//! remedy, as a command with the addresses that the cluster knows if one exists. Absent: how it is shown.

use rollout_batch::hint::namespace_flag;
use serde::Serialize;

use super::{AWAITING_REPLACE, DISTRUSTED, StuckRun, Survey, certificate_alarms, distrust, fix};
use crate::output::counted;

/// What to do if a disk has little room.
const DISK_FIX: &str = "free space there, or: rolloutctl errors explain RO-4005";
/// How many entries a member may lag.
const BEHIND_MAX: u64 = 100_000;

/// A condition that needs an operator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Alarm {
    /// The kind of condition, for programs.
    pub kind: &'static str,
    /// The affected member; `None` for the cluster.
    pub member: Option<String>,
    /// The observed condition.
    pub what: String,
    pub fix: String,
}

/// The problems that the members report.
pub(in crate::rolloutctl) fn of(survey: &Survey) -> Vec<Alarm> {
    let mut all: Vec<Alarm> = no_leader(survey).into_iter().collect();
    all.extend(stuck_runs(survey));
    let versions: Vec<&str> = survey
        .members
        .iter()
        .filter_map(|member| member.report.as_ref())
        .map(|report| report.version.as_str())
        .collect();
    for member in &survey.members {
        let name = member.name.clone();
        let mut alarm = |kind, what: String, fix: String| {
            all.push(Alarm { kind, member: Some(name.clone()), what, fix });
        };
        let Some(report) = &member.report else {
            match member.distrusted {
                true => alarm("MEMBER_DISTRUSTED", member.silence(), distrust::fix(member).into()),
                false => alarm("MEMBER_UNREACHABLE", member.silence(), fix::silent(member)),
            }
            continue;
        };
        certificate_alarms::of(member, report, &mut alarm);
        if report.role == AWAITING_REPLACE {
            let what = "it waits with an empty disk and does not vote".into();
            alarm("AWAITING_REPLACE", what, fix::replace(member));
        } else if member.is_replacement {
            let what = "the voter of that name does not answer; its replacement has no vote yet";
            alarm("BEING_REPLACED", what.into(), "let it catch up: rolloutctl member list".into());
        } else if report.behind > BEHIND_MAX {
            let what = format!("it is {} behind", counted(report.behind, "entry"));
            let fix = format!("check its disk and network: rolloutctl member describe {name}");
            alarm("MEMBER_BEHIND", what, fix);
        }
        let free = report.disk_free_bytes.as_deref().unwrap_or("an unknown number of");
        match report.disk_room.as_str() {
            "full" => {
                let what = format!(
                    "its disk has {free} bytes left: it refuses writes that make the ledger larger"
                );
                alarm("DISK_FULL", what, DISK_FIX.into());
            }
            "low" => {
                let what = format!("its disk has {free} bytes left");
                alarm("DISK_LOW", what, DISK_FIX.into());
            }
            _ => {}
        }
        if versions.iter().any(|version| *version != report.version) {
            let what =
                format!("it runs version {}, and another member runs another one", report.version);
            alarm(
                "VERSIONS_DIFFER",
                what,
                "finish the upgrade, one member at a time; see their versions: rolloutctl status"
                    .into(),
            );
        }
    }
    all
}

/// Runs that no worker can work on. A paused run is not an alarm, because a user or a user's rule paused it, unless a
/// slot is to blame that the leader may not cordon.
fn stuck_runs(survey: &Survey) -> Vec<Alarm> {
    let stuck = survey.stuck_runs.iter().filter(|run| !run.paused || run.at_cordon_limit);
    let workers = |run: &StuckRun| {
        format!("check the workers: rolloutctl worker list{}", namespace_flag(&run.namespace))
    };
    let alarm = |run: &StuckRun| {
        let (kind, fix) = match run.at_cordon_limit {
            true => ("CORDON_LIMIT", run.fix_at_cordon_limit()),
            false => ("RUN_STUCK", workers(run)),
        };
        Alarm {
            kind,
            member: None,
            what: format!("run {}: {}", run.display_name(), run.problem()),
            fix,
        }
    };
    // Only a leader's state is current; another member may have applied it long ago.
    if survey.leader.is_some() { stuck.map(alarm).collect() } else { Vec::new() }
}

/// The alarm for a missing leader. If the members are not trusted, or do not trust the caller, it is unknown whether
/// there is a leader.
fn no_leader(survey: &Survey) -> Option<Alarm> {
    if survey.leader.is_some() || survey.health == DISTRUSTED {
        return None;
    }
    let fix = match survey.health {
        "not formed" => "form the cluster: rolloutctl cluster bootstrap --help",
        // The leader may be one of them.
        _ if survey.members.iter().any(|member| member.distrusted) => distrust::fix_of_all(survey),
        _ => "start the members that are down: rolloutctl status",
    };
    let what = format!("{} of {} voters answer", survey.voters_reachable, survey.voters);
    Some(Alarm { kind: "NO_LEADER", member: None, what, fix: fix.into() })
}

#[cfg(test)]
mod tests {
    use rollout_proto::v1;

    use super::*;
    use crate::rolloutctl::distrust::COMPARE;
    use crate::rolloutctl::status::{MemberLine, MemberReport};

    /// The cluster's record of a member.
    fn member_info(name: &str) -> Option<v1::MemberInfo> {
        Some(v1::MemberInfo {
            name: name.into(),
            peer_addr: format!("{name}.example:7421"),
            client_addr: format!("{name}.example:7420"),
            zone: "b".into(),
            ..v1::MemberInfo::default()
        })
    }

    fn line(name: &str, cert_days: i64, behind: u64) -> MemberLine {
        with_room(name, cert_days, behind, "enough")
    }

    fn with_room(name: &str, cert_days: i64, behind: u64, room: &str) -> MemberLine {
        let seconds = cert_days * 86_400;
        let report = MemberReport {
            role: "follower".into(),
            behind,
            cert_seconds: Some(seconds),
            cert_renewal_seconds: Some(seconds - 14 * 86_400),
            version: "0.1.0".into(),
            disk_room: room.into(),
            has_quorum: true,
            ..MemberReport::default()
        };
        let address = "h:1".into();
        MemberLine { name: name.into(), address, report: Some(report), ..MemberLine::default() }
    }

    #[test]
    fn each_condition_is_an_alarm_with_its_remedy_and_a_healthy_cluster_has_none() {
        let mut survey = Survey { leader: Some("c1".into()), ..Survey::default() };
        survey.members = vec![line("c1", 90, 0), line("c2", 30, 500)];
        assert_eq!(of(&survey), []);
        let silent = MemberLine {
            name: "c4".into(),
            address: "h:4".into(),
            problem: Some("refused at tcp".into()),
            ..MemberLine::default()
        };
        survey.members = vec![line("c1", 6, 0), line("c2", -1, 0), line("c3", 90, 200_000), silent];
        survey.leader = None;
        let kinds: Vec<_> = of(&survey).iter().map(|alarm| alarm.kind).collect();
        let expected =
            ["NO_LEADER", "CERT_EXPIRING", "CERT_EXPIRED", "MEMBER_BEHIND", "MEMBER_UNREACHABLE"];
        assert_eq!(kinds, expected);
        assert!(of(&survey).iter().all(|alarm| !alarm.fix.is_empty()));
        let mut wiped = MemberLine { info: member_info("c3"), ..line("c3", 90, 200_000) };
        if let Some(report) = &mut wiped.report {
            report.role = AWAITING_REPLACE.into();
        }
        survey = Survey { leader: Some("c1".into()), members: vec![wiped], ..Survey::default() };
        let raised = of(&survey);
        assert_eq!(raised.iter().map(|a| a.kind).collect::<Vec<_>>(), ["AWAITING_REPLACE"]);
        let replace = "rolloutctl member replace c3 --peer-addr c3.example:7421 --client-addr c3.example:7420 --zone b";
        assert_eq!(raised[0].fix, replace);
        let rooms =
            [with_room("c1", 90, 0, "low"), with_room("c2", 90, 0, "full"), line("c3", 90, 0)];
        survey = Survey { leader: Some("c1".into()), members: rooms.into(), ..Survey::default() };
        let seen: Vec<_> = of(&survey).into_iter().map(|a| (a.kind, a.member)).collect();
        let named = |member: &str| Some(member.to_owned());
        assert_eq!(seen, [("DISK_LOW", named("c1")), ("DISK_FULL", named("c2"))]);
    }

    #[test]
    fn a_lost_learner_is_removed_and_added_again_because_it_has_no_replacement() {
        let lost = |voter| MemberLine {
            name: "c4".into(),
            problem: Some("refused at tcp".into()),
            info: member_info("c4"),
            silent_to_all: true,
            voter,
            ..MemberLine::default()
        };
        let fix = |voter| {
            let members = vec![lost(voter)];
            let survey = Survey { leader: Some("c1".into()), members, ..Survey::default() };
            of(&survey).remove(0).fix
        };
        assert!(
            fix(Some(true)).contains("rolloutctl member replace c4 --peer-addr c4.example:7421 ")
        );
        let learner = fix(Some(false));
        assert!(!learner.contains("replace"), "{learner}");
        assert!(learner.contains("rolloutctl member remove c4"), "{learner}");
        assert!(
            learner.contains("rolloutctl member add c4 --peer-addr c4.example:7421 "),
            "{learner}"
        );
    }

    #[test]
    fn no_advice_to_start_members_if_the_leader_may_be_a_distrusted_one() {
        let distrusted = MemberLine {
            name: "c3".into(),
            problem: Some("tls: it refuses your certificate".into()),
            distrusted: true,
            ..MemberLine::default()
        };
        let members = vec![line("c1", 90, 0), distrusted];
        let mut survey = Survey { health: "no leader", members, ..Survey::default() };
        let raised = of(&survey);
        assert_eq!([raised[0].kind, raised[1].kind], ["NO_LEADER", "MEMBER_DISTRUSTED"]);
        assert!(raised.iter().all(|alarm| alarm.fix == COMPARE), "{raised:?}");
        survey.members.remove(0);
        survey.health = DISTRUSTED;
        let raised = of(&survey);
        assert_eq!(raised.iter().map(|a| a.kind).collect::<Vec<_>>(), ["MEMBER_DISTRUSTED"]);
    }

    #[test]
    fn a_run_that_is_paused_at_the_limit_of_cordons_is_an_alarm_and_one_that_its_user_paused_is_none()
     {
        let run = |name: &str, at_cordon_limit| StuckRun {
            namespace: "team-a".into(),
            name: name.into(),
            paused: true,
            at_cordon_limit,
            why: "w1 slot 2: its engine died three times".into(),
            pending: 9,
        };
        let stuck_runs = vec![run("halted", true), run("by-a-user", false)];
        let mut survey = Survey { leader: Some("c1".into()), stuck_runs, ..Survey::default() };
        let raised = of(&survey);
        assert_eq!(raised.iter().map(|alarm| alarm.kind).collect::<Vec<_>>(), ["CORDON_LIMIT"]);
        let what = "run halted --namespace team-a: 9 rows wait: it is paused: w1 slot 2: ";
        assert!(raised[0].what.starts_with(what), "{}", raised[0].what);
        let fix = "then: rolloutctl run resume halted --namespace team-a";
        assert!(raised[0].fix.ends_with(fix), "{}", raised[0].fix);
        survey.leader = None;
        let kinds: Vec<_> = of(&survey).iter().map(|alarm| alarm.kind).collect();
        assert_eq!(kinds, ["NO_LEADER"], "what a follower has applied may be long ago");
    }

    #[test]
    fn before_there_is_a_cluster_the_remedy_is_to_form_one() {
        let survey = Survey { health: "not formed", ..Survey::default() };
        assert!(of(&survey)[0].fix.contains("rolloutctl cluster bootstrap"));
    }
}
