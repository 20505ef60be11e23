//! The view that the members' answers combine into.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rollout_proto::{
    ClientError, ConnectError, ErrorCode, MemberRef, Phase, RpcError, Security, TlsFiles,
};

use super::*;
use crate::output::Report as _;
use crate::rolloutctl::distrust::{COMPARE, REVOKED_FIX};
use crate::rolloutctl::exit;

fn merge(answers: Vec<MemberAnswer>, now: SystemTime) -> Survey {
    let files =
        TlsFiles { ca: "tls/ca.pem".into(), cert: "tls/a.pem".into(), key: "tls/a.key".into() };
    super::merge(answers, &Security::Mtls(files), now)
}

/// The fix of the alarm about a member.
fn fix_of(survey: &Survey, name: &str) -> String {
    let alarm = survey.alarms.iter().find(|alarm| alarm.member.as_deref() == Some(name));
    alarm.unwrap_or_else(|| panic!("no alarm of {name}: {:?}", survey.alarms)).fix.clone()
}

fn answer(name: &str, role: &str, term: u64, applied: u64) -> MemberAnswer {
    let member = |name: &str| v1::MemberInfo {
        name: name.into(),
        voter: true,
        peer_addr: format!("{name}:7421"),
        client_addr: format!("{name}:7420"),
        zone: "z".into(),
        ..v1::MemberInfo::default()
    };
    let list = v1::MemberList {
        version: 1,
        members: ["c1", "c2", "c3"].map(member).to_vec(),
        leader: "c2".into(),
    };
    let response = v1::StatusResponse {
        header: Some(v1::ClusterHeader {
            cluster_id: "0123456789abcdef0123456789abcdef".into(),
            coord_epoch: 3,
            applied_index: applied,
            members: Some(list),
            restored_from: Vec::new(),
        }),
        self_: Some(v1::MemberStatus {
            name: name.into(),
            role: role.into(),
            term,
            applied_index: applied,
            committed_index: applied,
            ..v1::MemberStatus::default()
        }),
        has_quorum: true,
        workers_ready: 4,
        ..v1::StatusResponse::default()
    };
    (MemberRef { name: name.into(), addr: format!("{name}:7420") }, Ok(response))
}

fn failed(name: &str, phase: Phase, cause: &str) -> MemberAnswer {
    let error = ClientError::Connect(ConnectError {
        endpoint: format!("{name}:7420"),
        phase,
        cause: cause.into(),
        permanent: phase == Phase::Tls,
    });
    (MemberRef { name: name.into(), addr: format!("{name}:7420") }, Err(error))
}

fn unreachable(name: &str) -> MemberAnswer {
    failed(name, Phase::Tcp, "connection refused")
}

/// It presents a certificate of another authority.
fn foreign(name: &str) -> MemberAnswer {
    failed(name, Phase::Tls, "invalid peer certificate: UnknownIssuer")
}

/// IDs 1, 2 and 3 are c1, c2 and c3. A leader with this uptime that has recently heard from these members.
fn hearing(mut answer: MemberAnswer, uptime_s: u64, of: &[u64]) -> MemberAnswer {
    if let Ok(response) = &mut answer.1 {
        let list = response.header.as_mut().and_then(|header| header.members.as_mut()).unwrap();
        for (member, id) in list.members.iter_mut().zip(1..) {
            member.id = id;
        }
        let own = response.self_.as_mut().unwrap();
        own.id = own.name[1..].parse().unwrap();
        own.uptime_ms = uptime_s * 1_000;
        let heard = |id: &u64| v1::RoundTrips { id: *id, samples: 60, ..Default::default() };
        own.round_trips = of.iter().map(heard).collect();
    }
    answer
}

#[test]
fn a_replacement_is_advised_only_if_no_member_has_heard_of_a_member_for_a_minute() {
    let fix = |leader_up_s, leader_heard: &[u64], follower_heard: &[u64], third: MemberAnswer| {
        let leader = hearing(answer("c2", "leader", 3, 100), leader_up_s, leader_heard);
        let follower = hearing(answer("c1", "follower", 3, 100), 900, follower_heard);
        fix_of(&merge(vec![leader, follower, third], UNIX_EPOCH), "c3")
    };
    let replace = "start it, or, if it is lost for good: rolloutctl member replace c3 \
                   --peer-addr c3:7421 --client-addr c3:7420 --zone z";
    assert_eq!(fix(121, &[1], &[2], unreachable("c3")), replace);
    let open = "start it, or open its client port c3:7420";
    assert_eq!(fix(121, &[1, 3], &[2], unreachable("c3")), open, "the leader has heard of it");
    assert_eq!(fix(121, &[1], &[2, 3], unreachable("c3")), open, "a follower has");
    assert_eq!(fix(119, &[1], &[2], unreachable("c3")), open, "it has not listened for long");
    assert_eq!(fix(900, &[], &[2], unreachable("c3")), open, "the leader keeps no round trips");
    assert_eq!(fix(900, &[1], &[2], foreign("c3")), COMPARE, "it is there");
    // There is no leader: the member that answers may be the one that is cut off.
    let alone = hearing(answer("c1", "follower", 3, 100), 900, &[]);
    let survey = merge(vec![alone, unreachable("c2"), unreachable("c3")], UNIX_EPOCH);
    assert!(survey.alarms.iter().all(|alarm| !alarm.fix.contains("replace")), "{survey:?}");
}

#[test]
fn members_of_another_authority_are_distrusted_and_none_is_called_down() {
    let survey = merge(["c1", "c2", "c3"].map(foreign).into(), UNIX_EPOCH);
    assert_eq!((survey.health, survey.leader.as_deref()), (DISTRUSTED, None));
    let kinds: Vec<&str> = survey.alarms.iter().map(|alarm| alarm.kind).collect();
    assert_eq!(kinds, ["MEMBER_DISTRUSTED"; 3]);
    for shown in [survey.table(), survey.problems()] {
        assert!(!shown.contains("replace") && !shown.contains("unreachable"), "{shown}");
        assert!(
            shown.contains("tls: its certificate is signed by another authority than tls/ca.pem")
        );
    }
    let failure = survey.leaderless().unwrap();
    let said = "the members and you do not trust each other: c1, c2, c3: tls: its certificate is signed by another authority \
                than tls/ca.pem; compare the issuers: rolloutctl cert status";
    assert_eq!(failure.to_string(), said);
    assert_eq!(exit::code(&failure.into()), 7);

    // Another member that is down says nothing about the others.
    let refused = failed("c2", Phase::Tls, "received fatal alert: UnknownCA");
    let mixed = merge(vec![unreachable("c1"), refused], UNIX_EPOCH);
    assert_eq!(mixed.health, DISTRUSTED);
    assert_eq!(fix_of(&mixed, "c1"), "start it, or open its client port c1:7420");
    let said = mixed.leaderless().unwrap().to_string();
    let refused = "it refuses your certificate tls/a.pem: it trusts another authority";
    assert!(said.contains(refused), "{said}");
    crate::golden::report("status-distrusted.txt", &mixed);
}

#[test]
fn a_revoked_certificate_is_the_answer_though_a_member_that_has_not_heard_of_it_answers() {
    let at_handshake = failed("c1", Phase::Tls, "received fatal alert: CertificateRevoked");
    let error = RpcError::new(ErrorCode::CertificateRevoked, "client/ann's is revoked");
    let (member, _) = unreachable("c1");
    let at_request = (member, Err(ClientError::Rpc(error)));
    for refused in [at_handshake, at_request] {
        for third in [answer("c3", "follower", 3, 90), unreachable("c3")] {
            let survey = merge(vec![refused.clone(), third], UNIX_EPOCH);
            assert_eq!(survey.health, DISTRUSTED);
            let alarm = survey.alarms.iter().find(|alarm| alarm.kind == "MEMBER_DISTRUSTED");
            assert_eq!(alarm.unwrap().fix, REVOKED_FIX);
            let failure = survey.leaderless().unwrap();
            let text = failure.to_string();
            assert!(text.starts_with("your certificate is revoked: "), "{text}");
            assert!(text.contains("c1: "), "{text}");
            assert!(text.ends_with(REVOKED_FIX), "{text}");
            assert_eq!(exit::code(&failure.into()), 7);
        }
    }
    // A leader that applied the revocation a moment ago still answers on this connection.
    let leads = answer("c2", "leader", 3, 100);
    let refused = failed("c1", Phase::Tls, "received fatal alert: CertificateRevoked");
    assert!(merge(vec![refused, leads], UNIX_EPOCH).leaderless().is_some());
}

#[test]
fn one_member_that_is_distrusted_is_an_alarm_of_a_cluster_that_is_seen() {
    let members = vec![answer("c1", "follower", 3, 100), answer("c2", "leader", 3, 100)];
    let survey = merge(members.into_iter().chain([foreign("c3")]).collect(), UNIX_EPOCH);
    assert_eq!((survey.health, survey.voters_reachable), ("degraded", 2));
    assert!(survey.leaderless().is_none());
    let kinds: Vec<&str> = survey.alarms.iter().map(|alarm| alarm.kind).collect();
    assert_eq!(kinds, ["MEMBER_DISTRUSTED"]);
    assert!(survey.members[2].distrusted && survey.table().contains("distrusted"));
}

#[test]
fn an_unreachable_member_is_a_line_with_the_phase_that_failed() {
    let survey = merge(
        vec![answer("c2", "leader", 3, 100), answer("c1", "follower", 3, 86), unreachable("c3")],
        UNIX_EPOCH,
    );
    assert_eq!(survey.health, "degraded");
    crate::golden::report("status.txt", &survey);
    assert_eq!(survey.leader.as_deref(), Some("c2"));
    assert_eq!((survey.voters_reachable, survey.voters), (2, 3));
    assert_eq!(survey.members[0].report.as_ref().unwrap().behind, 14);
    let table = survey.table();
    assert!(table.contains("quorum 2/3"), "{table}");
    assert!(table.contains("tcp: connection refused at c3:7420"), "{table}");
}

#[test]
fn a_learner_is_distinguished_from_a_voter_whether_it_answers_or_not() {
    let mut first = answer("c2", "leader", 3, 100);
    if let Ok(answer) = &mut first.1
        && let Some(list) = answer.header.as_mut().and_then(|header| header.members.as_mut())
    {
        let learner = v1::MemberInfo { name: "c4".into(), ..v1::MemberInfo::default() };
        list.members.push(learner);
        list.version = 2;
    }
    let answers =
        vec![first, answer("c1", "follower", 3, 86), unreachable("c3"), unreachable("c4")];
    let survey = merge(answers, UNIX_EPOCH);
    let voters: Vec<_> = survey.members.iter().map(|member| member.voter).collect();
    assert_eq!(voters, [Some(true), Some(true), Some(true), Some(false)]);
    assert_eq!((survey.health, survey.voters), ("degraded", 3));
    assert_eq!(fix_of(&survey, "c3"), "start it, or open its client port c3:7420");
    assert_eq!(fix_of(&survey, "c4"), "start it, or open its client port c4:7420");
}

/// `member replace c3` under its own name, while the new one catches up.
#[test]
fn a_voter_is_not_taken_for_the_learner_of_its_name_that_comes_in_its_place() {
    let with = |name: &str, role: &str, id: u64| {
        let mut answer = answer(name, role, 3, 100);
        if let Ok(response) = &mut answer.1 {
            response.self_.as_mut().unwrap().id = id;
            let list = response.header.as_mut().and_then(|header| header.members.as_mut()).unwrap();
            for (member, id) in list.members.iter_mut().zip(1..) {
                member.id = id;
            }
            let learner = v1::MemberInfo { name: "c3".into(), id: 77, ..Default::default() };
            list.members.push(learner);
        }
        answer
    };
    let others = || vec![with("c2", "leader", 2), with("c1", "follower", 1)];
    let and = |more: Vec<MemberAnswer>| others().into_iter().chain(more).collect();
    let dead = merge(and(vec![with("c3", "learner", 77)]), UNIX_EPOCH);
    assert_eq!((dead.health, dead.voters_reachable, dead.voters), ("degraded", 2, 3));
    assert!(!dead.takes_part("c3"));
    let kinds: Vec<_> = dead.alarms.iter().map(|alarm| (alarm.kind, &alarm.member)).collect();
    assert_eq!(kinds, [("BEING_REPLACED", &Some("c3".to_owned()))]);

    // It is alive, and both answer, in either order.
    for learner_first in [true, false] {
        let mut both = vec![with("c3", "follower", 3), with("c3", "learner", 77)];
        if learner_first {
            both.reverse();
        }
        let lives = merge(and(both), UNIX_EPOCH);
        assert_eq!((lives.health, lives.voters_reachable), ("healthy", 3));
        assert!(lives.alarms.is_empty());
    }
}

#[test]
fn a_leader_without_room_is_on_the_screen_though_every_voter_answers() {
    let mut full = answer("c2", "leader", 3, 100);
    if let Ok(answer) = &mut full.1
        && let Some(own) = &mut answer.self_
    {
        own.disk_room = "full".into();
        (own.disk_bytes, own.disk_free_bytes) = (1 << 30, 4096);
    }
    let others = [answer("c1", "follower", 3, 100), answer("c3", "follower", 3, 100)];
    let survey = merge([full].into_iter().chain(others).collect(), UNIX_EPOCH);
    assert_eq!(survey.health, "healthy");
    for shown in [survey.table(), survey.wide()] {
        assert!(shown.contains("alarm    DISK_FULL c2: its disk has 4096 bytes left"), "{shown}");
        assert!(shown.contains("fix: free space there"), "{shown}");
    }
    let json = serde_json::to_value(&survey).unwrap();
    assert_eq!(json["alarms"][0]["kind"], "DISK_FULL");
    let well = merge(vec![answer("c2", "leader", 3, 100)], UNIX_EPOCH);
    assert!(!well.table().contains("DISK_FULL"), "{}", well.table());
}

/// Asked at `hours` of Unix time, a member whose day-long certificates expire at hour 30 and hour 100.
#[test]
fn a_certificate_of_a_day_is_marked_for_its_last_eight_hours_and_its_times_are_shown() {
    let hour = 3_600;
    let at = |hours: u64| {
        let mut alone = answer("c2", "leader", 3, 100);
        if let Ok(answer) = &mut alone.1
            && let Some(own) = &mut answer.self_
        {
            (own.cert_expires_unix, own.cert_renewal_unix) = (30 * hour, 22 * hour);
            (own.issuer_expires_unix, own.issuer_renewal_unix) = (100 * hour, 92 * hour);
        }
        merge(vec![alone], UNIX_EPOCH + Duration::from_secs(hours * hour))
    };
    let kinds = |survey: &Survey| -> Vec<&str> {
        let certificates = |alarm: &&Alarm| alarm.kind != "MEMBER_UNREACHABLE";
        survey.alarms.iter().filter(certificates).map(|alarm| alarm.kind).collect()
    };
    let young = at(20);
    assert!(young.table().contains(" 10h  ") && !young.table().contains("10h !"), "{young:?}");
    assert_eq!(kinds(&young), [""; 0]);
    let old = at(23);
    assert!(old.table().contains(" 7h !  "), "{}", old.table());
    assert_eq!(kinds(&old), ["CERT_EXPIRING"]);
    assert_eq!(kinds(&at(93)), ["CERT_EXPIRED", "ISSUER_EXPIRING"]);
    assert_eq!(kinds(&at(100)), ["CERT_EXPIRED", "ISSUER_EXPIRED"]);
    assert!(at(100).table().contains("expired !"));
    let report = serde_json::to_value(&old).unwrap()["members"][0]["says"].clone();
    assert_eq!(
        (&report["certSeconds"], &report["certRenewalSeconds"]),
        (&25_200.into(), &(-3_600).into())
    );
    let issuer = (&report["issuerSeconds"], &report["issuerRenewalSeconds"]);
    assert_eq!(issuer, (&277_200.into(), &248_400.into()));
}

#[test]
fn a_deposed_leader_that_still_talks_is_not_the_leader() {
    let survey =
        merge(vec![answer("c1", "leader", 2, 90), answer("c2", "leader", 3, 100)], UNIX_EPOCH);
    assert_eq!(survey.leader.as_deref(), Some("c2"));
}

#[test]
fn status_works_when_no_member_answers() {
    let survey = merge(vec![unreachable("c1"), unreachable("c2")], UNIX_EPOCH);
    assert_eq!(survey.health, "unreachable");
    assert_eq!(survey.leader, None);
    assert!(survey.problems().contains("c1 is unreachable"));
    assert!(survey.unknown.is_empty(), "there is no cluster to speak of");
}

#[test]
fn without_a_quorum_status_shows_what_it_can_and_says_what_it_cannot() {
    let mut alone = answer("c1", "follower", 3, 100);
    if let Ok(answer) = &mut alone.1 {
        answer.has_quorum = false;
    }
    let survey = merge(vec![alone, unreachable("c2"), unreachable("c3")], UNIX_EPOCH);
    assert_eq!((survey.health, survey.voters_reachable), ("no leader", 1));
    crate::golden::report("status-without-quorum.txt", &survey);
    let table = survey.table();
    assert!(table.contains("c1      ") && table.contains("workers  4 ready"), "{table}");
    assert!(
        table.contains("unknown  what happens now: 1 of 3 voters answer and 2 are needed"),
        "{table}"
    );
    assert!(table.contains("unknown  state of c2, c3: no answer from here"), "{table}");
}

#[test]
fn a_voter_that_waits_with_an_empty_disk_is_reported_and_does_not_count() {
    // It belongs to no cluster: no ID, no members, no term.
    let wiped = |name: &str| {
        let mut wiped = answer(name, "waiting", 0, 0);
        if let Ok(answer) = &mut wiped.1 {
            answer.header = Some(v1::ClusterHeader::default());
            answer.has_quorum = false;
        }
        wiped
    };
    let members =
        |third| vec![answer("c1", "follower", 3, 100), answer("c2", "leader", 3, 100), third];
    let survey = merge(members(wiped("c3")), UNIX_EPOCH);
    assert_eq!((survey.health, survey.voters_reachable, survey.voters), ("degraded", 2, 3));
    assert_eq!(survey.members[2].report.as_ref().unwrap().role, AWAITING_REPLACE);
    let table = survey.table();
    assert!(table.contains("quorum 2/3"), "{table}");
    assert!(table.contains("its disk is empty: it has no vote"), "{table}");
    // A fresh process, which is not a voter by name, merely waits.
    let survey = merge(members(wiped("c4")), UNIX_EPOCH);
    assert_eq!(survey.members[2].report.as_ref().unwrap().role, "waiting");
    let stopped = merge(members(answer("c3", "stopped", 3, 90)), UNIX_EPOCH);
    assert_eq!((stopped.health, stopped.voters_reachable), ("degraded", 2));
}
