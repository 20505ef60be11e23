//! `rolloutctl cluster verify`: proves that all members hold the same state, in memory and on disk.
//!
//! Invariant: all digests are of one log index, which a logged command fixed for every member. The digest of most
//! members counts as right. A member is named if its digest differs, its image differs from its memory, or it does not
//! answer. Absent: a repair.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rollout_proto::{Client, ClientError, MemberRef, services, v1};
use serde::Serialize;

use crate::output::{self, Report, Table, hex, u64_string};
use crate::rolloutctl::Failure;
use crate::rolloutctl::verb::{Globals, Kind, Verb};

const DIGEST_CHARS: usize = 16;
/// How long a member may wait for the index before it is asked again.
const ROUND_MS: u32 = 1_500;
const PAUSE: Duration = Duration::from_millis(50);

/// How long to wait.
#[derive(Debug, clap::Args)]
pub(crate) struct VerifyArgs {
    /// Time for all members to reach the log index and read their images; a member that takes
    /// longer counts as a problem
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = crate::connect::parse_duration)]
    wait: Duration,
}

/// The members' digests, and which members differ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Verification {
    /// The index of the digests.
    #[serde(serialize_with = "u64_string")]
    pub index: u64,
    /// Whether all members agree in everything.
    pub agree: bool,
    /// One line per member, by name.
    pub members: Vec<MemberDigests>,
}

/// The digests of one member.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MemberDigests {
    pub member: String,
    /// Over every command and its replies, hex.
    pub chain: Option<String>,
    /// Of the state in memory, hex.
    pub state: Option<String>,
    /// Of the state read back from disk, hex.
    pub image: Option<String>,
    /// What is wrong with it; empty if nothing is.
    pub problems: Vec<String>,
}

impl Verification {
    /// The members with a problem, and the problem of each.
    pub fn complaint(&self) -> String {
        let of =
            |member: &MemberDigests| format!("{}: {}", member.member, member.problems.join(", "));
        self.members
            .iter()
            .filter(|m| !m.problems.is_empty())
            .map(of)
            .collect::<Vec<_>>()
            .join("; ")
    }
}

/// Has every member compute its digests at one index, and compares them.
///
/// # Errors
/// No leader fixes an index. A member that does not answer is a problem of that member.
pub async fn verify(client: &Client, wait: Duration) -> Result<Verification, ClientError> {
    let fixed = client
        .with_leader("request digest", |channel| async move {
            services::cluster(channel).request_digest(v1::RequestDigestRequest {}).await
        })
        .await?;
    let request = v1::DigestsRequest { index: fixed.index, wait_ms: ROUND_MS };
    let deadline = Instant::now() + wait;
    let mut members: BTreeMap<String, MemberDigests> = BTreeMap::new();
    loop {
        let answers = client
            .each_member(
                |_, channel| async move { services::cluster(channel).digests(request).await },
            )
            .await;
        let mut silent = false;
        for (member, answer) in answers {
            silent |= answer.is_err();
            let digests = digests(member, fixed.index, answer);
            let has_answered = members.get(&digests.member).is_some_and(answered);
            if !has_answered {
                members.insert(digests.member.clone(), digests);
            }
        }
        let complete = !silent || members.values().all(answered);
        if complete || Instant::now() >= deadline {
            break;
        }
        tokio::time::sleep(PAUSE).await;
    }
    let members = members.into_values().collect();
    Ok(compare(fixed.index, members))
}

fn digests(
    member: MemberRef,
    index: u64,
    answer: Result<v1::DigestsResponse, ClientError>,
) -> MemberDigests {
    let name = if member.name.is_empty() { member.addr } else { member.name };
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) => {
            let problems = vec![format!("did not answer: {error}")];
            return MemberDigests { member: name, problems, ..MemberDigests::default() };
        }
    };
    let some = |bytes: &[u8]| (!bytes.is_empty()).then(|| hex(bytes));
    let mut problems = Vec::new();
    if answer.index != index {
        problems.push(format!("answered for index {}", answer.index));
    }
    if !answer.image_error.is_empty() {
        problems.push(format!("its image does not read: {}", answer.image_error));
    }
    MemberDigests {
        member: if answer.member.is_empty() { name } else { answer.member },
        chain: some(&answer.chain),
        state: some(&answer.state),
        image: some(&answer.image),
        problems,
    }
}

/// Adds to each member how it differs from most.
fn compare(index: u64, mut members: Vec<MemberDigests>) -> Verification {
    type Part = (&'static str, fn(&MemberDigests) -> &Option<String>);
    let parts: [Part; 2] = [("chain", |m| &m.chain), ("state", |m| &m.state)];
    for (what, part) in parts {
        let usual = usual(&members, part);
        for member in members.iter_mut().filter(|member| answered(member)) {
            match (part(member), &usual) {
                (None, _) => member.problems.push(format!("gave no {what} digest")),
                (Some(own), Some(usual)) if own == usual => {}
                (Some(_), Some(_)) => {
                    member.problems.push(format!("its {what} differs from most members'"));
                }
                (Some(_), None) => {
                    member.problems.push(format!("its {what} differs, and no majority agrees"));
                }
            }
        }
    }
    for member in members.iter_mut().filter(|member| answered(member)) {
        if member.image.is_none() && member.problems.is_empty() {
            member.problems.push("gave no image digest".into());
        } else if member.image.is_some() && member.image != member.state {
            member.problems.push("its image on disk differs from its state in memory".into());
        }
    }
    members.sort_by(|a, b| a.member.cmp(&b.member));
    let agree = !members.is_empty() && members.iter().all(|member| member.problems.is_empty());
    Verification { index, agree, members }
}

fn answered(member: &MemberDigests) -> bool {
    member.chain.is_some() || member.state.is_some() || member.image.is_some()
}

/// The value that more than half of the answering members report.
fn usual(members: &[MemberDigests], part: fn(&MemberDigests) -> &Option<String>) -> Option<String> {
    let mut votes: BTreeMap<&str, usize> = BTreeMap::new();
    let digests: Vec<&str> = members.iter().filter_map(|member| part(member).as_deref()).collect();
    digests.iter().for_each(|digest| *votes.entry(digest).or_default() += 1);
    votes
        .into_iter()
        .find(|(_, count)| count * 2 > digests.len())
        .map(|(digest, _)| digest.to_owned())
}

impl Report for Verification {
    const KIND: &'static str = "Verification";

    fn table(&self) -> String {
        let short = |digest: &Option<String>| {
            digest.as_ref().map_or("-".to_owned(), |hex| hex.chars().take(DIGEST_CHARS).collect())
        };
        let mut table = Table::new(&["MEMBER", "CHAIN", "STATE", "IMAGE", "RESULT"]);
        for member in &self.members {
            let result =
                if member.problems.is_empty() { "ok".into() } else { member.problems.join("; ") };
            table.row([
                member.member.clone(),
                short(&member.chain),
                short(&member.state),
                short(&member.image),
                result,
            ]);
        }
        let verdict = if self.agree { "all members agree" } else { "MEMBERS DIFFER" };
        format!("index {}\n\n{table}\n{verdict}\n", self.index)
    }
}

impl Verb for VerifyArgs {
    const KIND: Kind<Self> = Kind::Once;

    /// Prints the comparison. Exit status 1 if a member differs, naming it.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let client = globals.connect.client(None)?;
        let verification = verify(&client, self.wait).await.context("cannot verify")?;
        output::emit(globals.format, &verification)?;
        if verification.agree {
            return Ok(());
        }
        Err(Failure::failed(format!("the members do not agree: {}", verification.complaint()))
            .into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(name: &str) -> MemberRef {
        MemberRef { name: name.into(), addr: format!("{name}:7420") }
    }

    fn member(name: &str, chain: u8, state: u8, image: u8) -> MemberDigests {
        let answer = v1::DigestsResponse {
            index: 9,
            member: name.into(),
            chain: vec![chain; 32].into(),
            state: vec![state; 32].into(),
            image: vec![image; 32].into(),
            ..v1::DigestsResponse::default()
        };
        digests(at(name), 9, Ok(answer))
    }

    fn bad(verification: &Verification) -> Vec<&str> {
        let problem = |member: &&MemberDigests| !member.problems.is_empty();
        verification.members.iter().filter(problem).map(|member| member.member.as_str()).collect()
    }

    #[test]
    fn equal_members_agree() {
        let verification =
            compare(9, vec![member("c2", 1, 2, 2), member("c1", 1, 2, 2), member("c3", 1, 2, 2)]);
        assert!(verification.agree);
        assert_eq!(verification.members[0].member, "c1");
    }

    #[test]
    fn the_member_that_differs_from_most_is_named() {
        let state =
            compare(9, vec![member("c1", 1, 2, 2), member("c2", 1, 7, 7), member("c3", 1, 2, 2)]);
        assert_eq!(bad(&state), ["c2"]);
        let chain =
            compare(9, vec![member("c1", 1, 2, 2), member("c2", 1, 2, 2), member("c3", 5, 2, 2)]);
        assert_eq!(bad(&chain), ["c3"]);
        let pair = compare(9, vec![member("c1", 1, 2, 2), member("c2", 1, 3, 3)]);
        assert_eq!(bad(&pair), ["c1", "c2"]);
    }

    #[test]
    fn an_image_that_reads_differently_or_not_at_all_is_named() {
        let flipped =
            compare(9, vec![member("c1", 1, 2, 2), member("c2", 1, 2, 9), member("c3", 1, 2, 2)]);
        assert_eq!(bad(&flipped), ["c2"]);
        let answer = v1::DigestsResponse {
            index: 9,
            member: "c1".into(),
            chain: vec![1; 32].into(),
            state: vec![2; 32].into(),
            image_error: "block 7 fails its checksum".into(),
            ..v1::DigestsResponse::default()
        };
        let unreadable = digests(at("c1"), 9, Ok(answer));
        let verification =
            compare(9, vec![unreadable, member("c2", 1, 2, 2), member("c3", 1, 2, 2)]);
        assert_eq!(bad(&verification), ["c1"]);
        assert!(verification.complaint().contains("block 7"));
    }

    #[test]
    fn a_member_that_does_not_answer_is_named() {
        let silent = digests(at("c3"), 9, Err(ClientError::NoEndpoints));
        let verification = compare(9, vec![member("c1", 1, 2, 2), member("c2", 1, 2, 2), silent]);
        assert!(!verification.agree);
        assert_eq!(bad(&verification), ["c3"]);
    }

    #[test]
    fn output_matches_the_golden_file() {
        let members =
            [("c1", 0xbb), ("c2", 0xcc), ("c3", 0xbb)].map(|(name, s)| member(name, 0xaa, s, s));
        crate::golden::report("cluster-verify.txt", &compare(5_000, members.into()));
    }
}
