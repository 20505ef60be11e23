//! Findings about a running cluster; every printed fix is a command that can be run as printed.

use clap::Parser as _;
use clap::error::ErrorKind;

use super::super::finding::Level;
use super::super::tests::args;
use super::*;
use crate::rolloutctl::cli::Cli;
use crate::rolloutctl::distrust::COMPARE;
use crate::rolloutctl::status::{AWAITING_REPLACE, MemberReport, StuckRun};

#[test]
fn fsyncs_beyond_the_limit_of_the_member_s_profile_are_a_warning_whatever_the_flag_allows() {
    let judged = |p99_us: u64, profile| {
        let answer = v1::CountersResponse {
            member: "c1".into(),
            fsync_us_p50: 1_000,
            fsync_us_p99: p99_us,
            ..Default::default()
        };
        let found = disk(&answer, 1_000_000, profile);
        (found.level, found.found)
    };
    assert_eq!(judged(40_000, Some(Profile::Near)).0, Level::Ok);
    let (level, found) = judged(41_000, Some(Profile::Near));
    assert_eq!(level, Level::Warn);
    assert!(found.ends_with("near allows at most 40ms"), "{found}");
    assert_eq!(judged(200_000, Some(Profile::FarZones)).0, Level::Ok);
    assert_eq!(judged(201_000, Some(Profile::FarZones)).0, Level::Warn);
    assert_eq!(judged(201_000, None).0, Level::Ok, "an earlier version does not say");
    assert_eq!(judged(1_000_001, None).0, Level::Warn);
}

fn survey(reachable: u32, voters: u32, zones: &[&str]) -> Survey {
    let member = |(at, zone): (usize, &&str)| MemberLine {
        name: format!("c{}", at + 1),
        report: Some(MemberReport {
            zone: (*zone).into(),
            role: "follower".into(),
            ..MemberReport::default()
        }),
        ..MemberLine::default()
    };
    let members = zones.iter().enumerate().map(member).collect();
    Survey { voters_reachable: reachable, voters, members, ..Survey::default() }
}

#[test]
fn the_margin_of_the_quorum_is_reported() {
    let level = |reachable, voters| quorum(&survey(reachable, voters, &[])).level;
    assert_eq!(level(3, 3), Level::Ok);
    assert_eq!(level(2, 3), Level::Warn);
    assert_eq!(level(1, 3), Level::Fail);
    assert_eq!(level(4, 4), Level::Warn);
    assert_eq!(level(1, 1), Level::Warn);
    assert_eq!(level(5, 5), Level::Ok);
    let one = quorum(&survey(1, 1, &[])).found;
    assert_eq!(one, "1 of 1 voters answer, 1 is needed");
}

#[test]
fn a_zone_whose_loss_stops_the_cluster_is_named() {
    let found = zones(&survey(3, 3, &["a", "a", "b"])).unwrap();
    assert_eq!((found.level, found.found.as_str()), (Level::Warn, "c1, c2 are all in zone a"));
    assert!(!found.todo.unwrap().contains("replace"), "they live");
    assert_eq!(zones(&survey(3, 3, &["a", "b", "c"])).unwrap().level, Level::Ok);
}

#[test]
fn a_voter_in_an_unknown_zone_makes_no_zone_safe() {
    for (told, unknown) in [(["a", "", ""], "c2, c3"), (["", "", ""], "c1, c2, c3")] {
        let found = zones(&survey(3, 3, &told)).unwrap();
        assert_eq!(found.level, Level::Warn);
        assert!(found.found.contains(unknown), "{}", found.found);
    }
    assert!(zones(&survey(1, 1, &[""])).is_none(), "one member is in one zone");
}

/// The cluster's record of a member.
fn member_info(name: &str, voter: bool) -> Option<v1::MemberInfo> {
    Some(v1::MemberInfo {
        name: name.into(),
        peer_addr: format!("{name}.example:7421"),
        client_addr: format!("{name}.example:7420"),
        zone: "b".into(),
        voter,
        ..v1::MemberInfo::default()
    })
}

/// A member that answers neither here nor any other member.
fn lost(name: &str, voter: bool) -> MemberLine {
    MemberLine {
        name: name.into(),
        voter: Some(voter),
        info: member_info(name, voter),
        silent_to_all: true,
        ..MemberLine::default()
    }
}

fn todo(member: MemberLine) -> String {
    let survey = Survey { members: vec![member], ..Survey::default() };
    let found = of_survey(&survey, &args());
    found.into_iter().find(|finding| finding.check == "member").unwrap().todo.unwrap()
}

#[test]
fn replacing_a_voter_is_advised_only_if_no_member_hears_it_and_a_learner_never() {
    let replace = "rolloutctl member replace c4 --peer-addr c4.example:7421 --client-addr c4.example:7420 --zone b";
    assert!(todo(lost("c4", true)).ends_with(replace));
    assert!(todo(lost("c4", false)).contains("rolloutctl member remove c4"));
    for member in [
        MemberLine { silent_to_all: false, ..lost("c4", true) },
        MemberLine { silent_to_all: false, ..lost("c4", false) },
    ] {
        assert_eq!(todo(member), "start it, or open its client port c4.example:7420");
    }
}

#[test]
fn if_no_member_trusts_the_caller_that_is_the_only_finding() {
    let distrusted = MemberLine {
        name: "c1".into(),
        address: "c1:7420".into(),
        problem: Some("tls: it refuses your certificate".into()),
        distrusted: true,
        ..MemberLine::default()
    };
    let members = vec![distrusted];
    let survey = Survey { health: DISTRUSTED, members, voters: 1, ..Survey::default() };
    let found = of_survey(&survey, &args());
    let checks: Vec<&str> = found.iter().map(|finding| finding.check).collect();
    assert_eq!(checks, ["trust", "member"]);
    assert!(found.iter().all(|finding| finding.todo.as_deref() == Some(COMPARE)), "{found:?}");
    assert_eq!(found[1].found, "c1 at c1:7420 and you do not trust each other");
}

/// The commands in a text: each ends where the sentence continues.
fn commands(text: &str) -> Vec<String> {
    let each = text.split("rolloutctl ").skip(1);
    let command = |rest: &str| rest.split([',', ';']).next().unwrap_or_default().trim().to_owned();
    each.map(command).collect()
}

/// A member that answers, with every problem that a member can have.
fn troubled(name: &str, role: &str) -> MemberLine {
    let report = MemberReport {
        role: role.into(),
        zone: "b".into(),
        behind: 200_000,
        version: name.into(),
        cert_seconds: Some(60),
        cert_renewal_seconds: Some(-60),
        issuer_seconds: Some(0),
        issuer_renewal_seconds: Some(-60),
        cert_refused: Some("half a file".into()),
        disk_free_bytes: Some("1".into()),
        disk_room: "full".into(),
        ..MemberReport::default()
    };
    let voter = role != "waiting";
    let info = member_info(name, voter);
    MemberLine {
        name: name.into(),
        address: format!("{name}.example:7420"),
        report: Some(report),
        voter: Some(voter),
        info,
        ..MemberLine::default()
    }
}

/// A run paused because a slot is to blame and may not be cordoned.
fn paused_at_the_limit() -> StuckRun {
    StuckRun {
        namespace: "team-a".into(),
        name: "halted".into(),
        paused: true,
        at_cordon_limit: true,
        why: "w1 slot 2: its engine died three times".into(),
        pending: 9,
    }
}

#[test]
fn a_run_that_is_paused_at_the_limit_of_cordons_is_a_warning_that_names_the_slot() {
    let stuck_runs = vec![paused_at_the_limit()];
    let mut all = Survey { leader: Some("c1".into()), stuck_runs, ..survey(1, 1, &["a"]) };
    let of = |survey: &Survey, check: &str| {
        let found = of_survey(survey, &args()).into_iter().find(|found| found.check == check);
        found.map(|found| (found.level, found.found))
    };
    let told = "run halted --namespace team-a is paused: w1 slot 2: its engine died three times";
    assert_eq!(of(&all, "cordons"), Some((Level::Warn, told.to_owned())));
    assert_eq!(of(&all, "runs").map(|found| found.0), Some(Level::Ok));
    all.stuck_runs[0].at_cordon_limit = false;
    assert_eq!(of(&all, "cordons"), None, "its user paused it");
}

#[test]
fn every_fix_is_a_command_that_can_be_given_as_it_is_printed() {
    let stranger = MemberLine { voter: None, info: None, ..troubled("c9", "waiting") };
    let members = vec![
        troubled("c1", "follower"),
        troubled("c2", AWAITING_REPLACE),
        troubled("c3", "waiting"),
        stranger,
        lost("c4", true),
        lost("c5", false),
        MemberLine { silent_to_all: false, ..lost("c6", true) },
        MemberLine { silent_to_all: false, distrusted: true, ..lost("c7", true) },
    ];
    let stuck_runs = vec![paused_at_the_limit()];
    let leader = Some("c1".into());
    let all = Survey { members, runs_running: 1, leader, stuck_runs, ..Survey::default() };
    let mut surveys = vec![all, Survey { health: "not formed", ..Survey::default() }];
    surveys.push(Survey { health: DISTRUSTED, ..Survey::default() });
    for (reachable, voters) in [(1, 3), (2, 3), (1, 1), (4, 4), (3, 3)] {
        surveys.push(survey(reachable, voters, &["a", "a", "b"]));
    }
    let fixes = |survey: &Survey| {
        let todos = of_survey(survey, &args()).into_iter().filter_map(|found| found.todo);
        let alarms =
            crate::rolloutctl::status::alarms::of(survey).into_iter().map(|alarm| alarm.fix);
        todos.chain(alarms).collect::<Vec<String>>()
    };
    let named = |role, namespaces: &[&str]| pki::CertInfo {
        identity: rollout_proto::Identity::new(
            role,
            "alice",
            namespaces.iter().map(|&ns| ns.to_owned()).collect(),
        )
        .ok(),
        issuer: String::new(),
        validity: pki::Validity::default(),
        sans: Vec::new(),
    };
    let own = [named(rollout_proto::Role::Admin, &[]), named(rollout_proto::Role::Client, &["a"])];
    let own = own.iter().map(another_of_yours);
    let fixes: Vec<String> = surveys.iter().flat_map(fixes).chain(own).collect();
    let all: Vec<String> = fixes.iter().flat_map(|fix| commands(fix)).collect();
    assert!(all.len() > 30, "{all:?}");
    for command in all {
        assert!(!command.contains("HOST:PORT"), "the cluster knows the address: {command}");
        let words = std::iter::once("rolloutctl").chain(command.split_whitespace());
        if let Err(error) = Cli::try_parse_from(words) {
            assert_eq!(error.kind(), ErrorKind::DisplayHelp, "{command}: {error}");
        }
    }
}

#[test]
fn a_certificate_is_worth_a_warning_in_its_last_third_and_so_is_the_intermediate_cas() {
    let found = |cert: [i64; 2], issuer: [i64; 2]| {
        let mut survey = survey(1, 1, &["a"]);
        let report = survey.members[0].report.as_mut().unwrap();
        [report.cert_seconds, report.cert_renewal_seconds] = cert.map(Some);
        [report.issuer_seconds, report.issuer_renewal_seconds] = issuer.map(Some);
        of_survey(&survey, &args())
            .into_iter()
            .filter(|finding| finding.check == "certificate")
            .collect::<Vec<_>>()
    };
    // With a lifetime of a day: 20 hours left, and 7.
    let (young, old) = ([72_000, 43_200], [25_200, -3_600]);
    let levels = |cert, issuer| found(cert, issuer).iter().map(|f| f.level).collect::<Vec<_>>();
    assert_eq!(levels(young, young), [Level::Ok, Level::Ok]);
    assert_eq!(levels(old, young), [Level::Warn, Level::Ok]);
    assert_eq!(levels(young, old), [Level::Ok, Level::Warn]);
    assert_eq!(levels(young, [0, -28_800]), [Level::Ok, Level::Fail]);
    let found = found(old, old);
    assert_eq!(found[0].found, "that of c1 expires in 7h 0m");
    assert_eq!(found[1].found, "that of the intermediate CA of c1 expires in 7h 0m");
    assert!(found[1].todo.as_ref().unwrap().contains("rolloutctl cert init-issuer"));
}

#[test]
fn strangers_at_the_addresses_of_a_cluster_are_named() {
    let answer = |name: &str, cluster: &str| {
        let header = v1::ClusterHeader { cluster_id: cluster.into(), ..Default::default() };
        let own = v1::MemberStatus { name: name.into(), ..Default::default() };
        let answer =
            v1::StatusResponse { header: Some(header), self_: Some(own), ..Default::default() };
        let member = rollout_proto::MemberRef { name: name.into(), addr: String::new() };
        (member, Ok(answer))
    };
    let found = identities(&[answer("c1", "aa"), answer("c2", "bb"), answer("c3", "aa")]);
    assert_eq!(found[0].level, Level::Fail);
    assert_eq!(found[0].found, "c1, c3 in cluster aa; c2 in cluster bb");
    let found = identities(&[answer("c1", "aa"), answer("c2", "aa")]);
    assert_eq!(found[0].level, Level::Ok);
}
