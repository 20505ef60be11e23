//! What the plans of membership changes and of the bootstrap check.
//!
//! Invariant: a change that would leave the cluster without a majority that can continue at once is refused here too,
//! with exit status 6: a removal, and a transfer to a member that lags behind.

use rollout_proto::{Endpoint, LACKS_MAX};

use super::list::MemberLine;
use crate::rolloutctl::Failure;
use crate::rolloutctl::distrust::NoAnswer;
use crate::rolloutctl::dry_run::Reader;
use crate::rolloutctl::status::{self, AWAITING_REPLACE, Survey, distrust, fix};

pub(in crate::rolloutctl) fn find<'a>(
    members: &'a [MemberLine],
    name: &str,
) -> Result<&'a MemberLine, Failure> {
    let found = members.iter().find(|member| member.name == name);
    found.ok_or_else(|| Failure::not_found(format!("there is no member {name:?}")))
}

/// The state of a member.
pub(in crate::rolloutctl) fn line(member: &MemberLine) -> String {
    format!("{} is a {}, {} behind", member.name, member.standing(), member.lacks_entries())
}

impl Reader {
    /// The state of a process that is to become a member: it must be waiting, with an empty directory.
    pub(in crate::rolloutctl) async fn new_member(
        &self,
        name: &str,
        address: &str,
    ) -> anyhow::Result<String> {
        let endpoint = Endpoint::seed(address)?;
        let answer = status::ask_one(&self.settings, &endpoint).await;
        let answer = answer.map_err(|why: NoAnswer| match why.distrusted {
            true => {
                Failure::distrusted(format!("{name} at {address}: {}; {}", why.problem, why.fix()))
            }
            false => Failure::unavailable(format!(
                "{name} does not answer at {address}: {}; start it first",
                why.problem
            )),
        })?;
        let own = answer.self_.unwrap_or_default();
        if own.role != "waiting" {
            let text = format!(
                "{address} is already {} {}: a member with an empty directory waits",
                own.role, own.name
            );
            return Err(Failure::conflict(text).into());
        }
        if own.name != name {
            let text = format!("{address} is {}, not {name}", own.name);
            return Err(Failure::conflict(text).into());
        }
        Ok(format!("{name} waits at {address}"))
    }
}

/// The voter with the name of `found`: a learner does not occupy a voter's place.
pub(in crate::rolloutctl) fn voter_of<'a>(
    members: &'a [MemberLine],
    found: &MemberLine,
) -> Result<&'a MemberLine, Failure> {
    let name = &found.name;
    let voter = members.iter().find(|member| member.name == *name && member.role != "learner");
    voter.ok_or_else(|| {
        Failure::conflict(format!(
            "{name} is a learner, so it has no vote to take over: rolloutctl member remove {name}, then member add"
        ))
    })
}

/// Refuses the place of a voter that another member is already taking; a repeat, by name, peer and client address, is
/// allowed.
pub(in crate::rolloutctl) fn check_place(
    members: &[MemberLine],
    old: &str,
    (name, peer, client): &(&str, String, String),
) -> Result<(), Failure> {
    let repeat = |member: &MemberLine| {
        (&*member.name, &member.peer_addr, &member.client_addr) == (name, peer, client)
    };
    let takes = |member: &&MemberLine| {
        member.role == "learner" && member.replaces.as_deref() == Some(old) && !repeat(member)
    };
    let Some(first) = members.iter().find(takes) else { return Ok(()) };
    let first = &first.name;
    let out = match first == old {
        false => format!("remove it first: rolloutctl member remove {first}"),
        // Both have the same name.
        true => format!(
            "both have this name; remove and re-add: rolloutctl member remove {first}, then member add"
        ),
    };
    Err(Failure::conflict(format!("{first} is already replacing {old}; wait for it, or {out}")))
}

/// Refuses if no other member could lead.
pub(in crate::rolloutctl) fn check_successor(
    members: &[MemberLine],
    survey: &Survey,
) -> Result<(), Failure> {
    let mut others = members.iter().filter(|member| member.role == "voter").peekable();
    if others.peek().is_none() {
        return Err(Failure::conflict("there is no other voter".to_owned()));
    }
    let mut why = None;
    for other in others {
        match check_pace(other, survey) {
            Ok(()) => return Ok(()),
            Err(problem) => why = Some(problem),
        }
    }
    why.map_or(Ok(()), Err)
}

/// Refuses a successor that does not answer, or for which writes would have to wait.
pub(in crate::rolloutctl) fn check_pace(
    member: &MemberLine,
    survey: &Survey,
) -> Result<(), Failure> {
    let name = &member.name;
    let problem = if !survey.takes_part(name) {
        "does not answer".to_owned()
    } else if lags(member) {
        format!("is {} behind (at most {LACKS_MAX} allowed)", member.lacks_entries())
    } else {
        return Ok(());
    };
    Err(Failure::refused(format!("{name} {problem}: all writes would wait until it has caught up")))
}

fn lags(member: &MemberLine) -> bool {
    let behind = member.behind.as_ref().and_then(|behind| behind.parse::<u64>().ok());
    behind.is_some_and(|behind| behind > LACKS_MAX)
}

/// The same check as the leader's, by the members that answer now.
pub(in crate::rolloutctl) fn check_majority(
    members: &[MemberLine],
    survey: &Survey,
    gone: &str,
) -> Result<(), Failure> {
    let was_voter = members.iter().any(|member| member.name == gone && member.role != "learner");
    if !was_voter {
        return Ok(());
    }
    let keep: Vec<&str> = members
        .iter()
        .filter(|member| member.role != "learner" && member.name != gone)
        .map(|member| member.name.as_str())
        .collect();
    let silent: Vec<&str> = keep.iter().filter(|name| !survey.takes_part(name)).copied().collect();
    let (answer, needed) = (keep.len() - silent.len(), keep.len() / 2 + 1);
    if keep.is_empty() {
        return Err(Failure::refused(format!(
            "{gone} is the last voter: removing it would end the cluster"
        )));
    }
    let Some(first) = silent.first().filter(|_| answer < needed) else {
        let behind = |member: &&MemberLine| {
            keep.contains(&member.name.as_str()) && survey.takes_part(&member.name) && lags(member)
        };
        let behind: Vec<&str> = members.iter().filter(behind).map(|m| m.name.as_str()).collect();
        if answer - behind.len() >= needed {
            return Ok(());
        }
        return Err(Failure::refused(format!(
            "without {gone} the cluster could write nothing until {} caught up: more than {LACKS_MAX} entries are missing there",
            behind.join(", ")
        )));
    };
    Err(Failure::refused(format!(
        "without {gone} there would be {} voters, of which {answer} answer and {needed} are needed; {} would not\n  \
         do this instead: {}",
        keep.len(),
        silent.join(", "),
        instead(survey, first)
    )))
}

/// How to restore a voter that does not answer, or to give its vote to another member.
fn instead(survey: &Survey, name: &str) -> String {
    let Some(member) = survey.members.iter().find(|member| member.name == name) else {
        return format!("start {name}");
    };
    match &member.report {
        Some(report) if report.role == AWAITING_REPLACE => fix::replace(member),
        Some(report) => format!("bring back {name}, which is {}: rolloutctl status", report.role),
        None if member.distrusted => distrust::fix(member).to_owned(),
        None => format!("bring back {name} first: {}", fix::silent(member)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rolloutctl::status::{MemberLine as StatusLine, MemberReport};

    fn voter(name: &str) -> MemberLine {
        MemberLine {
            name: name.into(),
            id: "1".into(),
            peer_addr: String::new(),
            client_addr: String::new(),
            zone: String::new(),
            role: "voter".into(),
            becomes: None,
            replaces: None,
            behind: None,
        }
    }

    fn status_line(name: &str, answers: bool) -> StatusLine {
        let report = answers.then(MemberReport::default);
        StatusLine { name: name.into(), report, ..StatusLine::default() }
    }

    #[test]
    fn a_removal_that_leaves_no_majority_is_refused_with_what_to_do_instead() {
        let members = [voter("c1"), voter("c2"), voter("c3")];
        let all = vec![status_line("c1", true), status_line("c2", true), status_line("c3", true)];
        let survey = Survey { members: all, ..Survey::default() };
        assert!(check_majority(&members, &survey, "c1").is_ok());
        let some = vec![status_line("c1", true), status_line("c2", true), status_line("c3", false)];
        let survey = Survey { members: some, ..Survey::default() };
        let refused = check_majority(&members, &survey, "c1").unwrap_err().to_string();
        assert!(refused.contains("bring back c3 first: start it"), "{refused}");
        assert!(!refused.contains("member replace"), "it may be alive: {refused}");
        // A member that waits with an empty disk answers, and has no vote.
        let mut wiped = status_line("c3", true);
        if let Some(report) = &mut wiped.report {
            report.role = AWAITING_REPLACE.into();
        }
        let waits = vec![status_line("c1", true), status_line("c2", true), wiped];
        let waits = Survey { members: waits, ..Survey::default() };
        let refused = check_majority(&members, &waits, "c1").unwrap_err().to_string();
        assert!(refused.contains("1 answer and 2 are needed; c3 would not"), "{refused}");
        assert!(refused.contains("do this instead: rolloutctl member replace c3 "), "{refused}");
        // Every write waits for a member that answers and lags far behind.
        let survey = Survey {
            members: ["c1", "c2", "c3"].map(|name| status_line(name, true)).into(),
            ..Survey::default()
        };
        let lagging = MemberLine { behind: Some("257".into()), ..voter("c3") };
        let lags = [voter("c1"), voter("c2"), lagging];
        let refused = check_majority(&lags, &survey, "c1").unwrap_err().to_string();
        assert!(refused.contains("until c3 caught up"), "{refused}");
        assert!(check_majority(&lags, &survey, "c3").is_ok());
        let refused = check_pace(&lags[2], &survey).unwrap_err().to_string();
        assert!(refused.starts_with("c3 is 257 entries behind"), "{refused}");
        assert!(check_pace(&lags[1], &survey).is_ok());
        // Removing the dead one loses nothing.
        let some = vec![status_line("c1", true), status_line("c2", true), status_line("c3", false)];
        let survey = Survey { members: some, ..Survey::default() };
        let refused = check_pace(&lags[2], &survey).unwrap_err().to_string();
        assert!(refused.starts_with("c3 does not answer"), "{refused}");
        assert!(check_majority(&members, &survey, "c3").is_ok());
        assert!(check_majority(&members[..1], &survey, "c1").is_err());
    }

    #[test]
    fn the_place_of_a_voter_is_taken_by_one_at_a_time() {
        let takes =
            MemberLine { role: "learner".into(), replaces: Some("c3".into()), ..voter("c4") };
        let members = [voter("c1"), voter("c2"), voter("c3"), takes];
        let fresh = |name: &'static str| (name, String::new(), String::new());
        let refused = check_place(&members, "c3", &fresh("c5")).unwrap_err().to_string();
        assert!(refused.contains("member remove c4"), "{refused}");
        assert!(check_place(&members, "c3", &fresh("c4")).is_ok(), "it is a repeat");
        let elsewhere = ("c4", "c4:7421".to_owned(), String::new());
        assert!(check_place(&members, "c3", &elsewhere).is_err(), "it is none");
        assert!(check_place(&members, "c2", &fresh("c5")).is_ok());
        assert_eq!(voter_of(&members, &members[2]).unwrap().name, "c3");
        let refused = voter_of(&members, &members[3]).unwrap_err().to_string();
        assert!(refused.contains("c4 is a learner"), "{refused}");
        // Under its own name.
        let own = MemberLine { name: "c3".into(), ..members[3].clone() };
        let members = [voter("c3"), own];
        assert!(check_place(&members, "c3", &fresh("c3")).is_ok());
        let elsewhere = ("c3", "other:7421".to_owned(), String::new());
        let refused = check_place(&members, "c3", &elsewhere).unwrap_err().to_string();
        assert!(refused.contains("both have this name"), "{refused}");
        assert_eq!(voter_of(&members, &members[1]).unwrap().role, "voter");
    }

    #[test]
    fn a_transfer_is_refused_if_no_other_member_could_lead() {
        let leads = MemberLine { role: "leader".into(), ..voter("c1") };
        let learner = MemberLine { role: "learner".into(), ..voter("c2") };
        let survey = |answers| Survey {
            members: ["c1", "c2", "c3"]
                .map(|name| status_line(name, name == "c1" || answers))
                .into(),
            ..Survey::default()
        };
        let refused = check_successor(&[leads.clone(), learner.clone()], &survey(true));
        assert!(refused.unwrap_err().to_string().contains("no other voter"));
        let three = [leads, voter("c2"), voter("c3")];
        assert!(check_successor(&three, &survey(true)).is_ok());
        let refused = check_successor(&three, &survey(false)).unwrap_err().to_string();
        assert!(refused.contains("does not answer"), "{refused}");
    }
}
