//! How far apart the members are, and which profile of `[raft]` is meant for that.
//!
//! Invariant: members measured it, between themselves; what is judged is what nine of ten of the last minute's round trips
//! took, so that jitter counts and one moment of a busy machine does not. Deliberately absent: limits; `rollout_proto` has
//! them.

use std::time::Duration;

use rollout_proto::{Profile, v1};
use serde::Serialize;

use super::finding::Finding;
use crate::rolloutctl::status::Answer;

/// What the members measured, and what follows.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RoundTrips {
    /// The profile with the shortest limits that fits; none where none does.
    profile_that_fits: Option<&'static str>,
    /// Those that the members run with.
    profiles_in_use: Vec<String>,
    /// By who measured, and to whom.
    links: Vec<Link>,
}

/// From one member to another.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Link {
    from: String,
    to: String,
    samples: u32,
    min_ms: f64,
    p50_ms: f64,
    p90_ms: f64,
    max_ms: f64,
}

fn ms(us: u64) -> f64 {
    us as f64 / 1e3
}

/// What the members that answered say; nothing where none has measured anything.
pub(super) fn of(answers: &[Answer]) -> Option<RoundTrips> {
    let members: Vec<&v1::MemberStatus> =
        answers.iter().filter_map(|(_, answer)| answer.as_ref().ok()?.self_.as_ref()).collect();
    let mut links: Vec<Link> = members.iter().flat_map(|member| links_of(member)).collect();
    links.sort_by(|a, b| (&a.from, &a.to).cmp(&(&b.from, &b.to)));
    let longest = longest(&links)?;
    let mut in_use: Vec<String> = members
        .iter()
        .map(|member| member.raft_profile.clone())
        .filter(|profile| !profile.is_empty())
        .collect();
    in_use.sort();
    in_use.dedup();
    let fits = Profile::fitting(Duration::from_secs_f64(longest.p90_ms / 1e3));
    Some(RoundTrips { profile_that_fits: fits.map(Profile::name), profiles_in_use: in_use, links })
}

fn links_of(member: &v1::MemberStatus) -> impl Iterator<Item = Link> {
    member.round_trips.iter().map(|trips| Link {
        from: member.name.clone(),
        to: trips.name.clone(),
        samples: trips.samples,
        min_ms: ms(trips.min_us),
        p50_ms: ms(trips.p50_us),
        p90_ms: ms(trips.p90_us),
        max_ms: ms(trips.max_us),
    })
}

fn longest(links: &[Link]) -> Option<&Link> {
    links.iter().max_by(|a, b| a.p90_ms.total_cmp(&b.p90_ms))
}

impl RoundTrips {
    /// One line for the cluster, and one for members that do not agree.
    pub(super) fn findings(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        if self.profiles_in_use.len() > 1 {
            findings.push(Finding::warn(
                "profile",
                format!("members run with {}", self.profiles_in_use.join(" and ")),
                "the one with the shorter timings elects another leader while the others wait",
                "set the same [raft] profile on all members",
            ));
        }
        findings.extend(longest(&self.links).map(|longest| self.judged(longest)));
        findings
    }

    fn judged(&self, link: &Link) -> Finding {
        let Link { from, to, p50_ms, p90_ms, max_ms, .. } = link;
        let found = format!(
            "the longest round trip is {from} to {to}: median {p50_ms:.1}ms, p90 {p90_ms:.1}ms, longest {max_ms:.1}ms"
        );
        let limit = |profile: Profile| profile.rtt_max().as_millis();
        let in_use = Profile::ALL
            .into_iter()
            .find(|profile| self.profiles_in_use.iter().any(|name| name == profile.name()));
        let why =
            "answers to heartbeats may come too late, and then a healthy leader loses its lease";
        let fits = self.profile_that_fits;
        let fits = Profile::ALL.into_iter().find(|profile| Some(profile.name()) == fits);
        match (fits, in_use) {
            (None, _) => {
                let most = limit(Profile::FarZones);
                let found = format!("{found}; no profile fits, far-zones is for up to {most}ms");
                Finding::warn("rtt", found, why, "move members closer together")
            }
            (Some(fits), Some(used)) if used < fits => Finding::warn(
                "rtt",
                format!(
                    "{found}; profile {} fits, and {} is for up to {}ms",
                    fits.name(),
                    used.name(),
                    limit(used)
                ),
                why,
                format!("set [raft] profile = \"{}\" on all members", fits.name()),
            ),
            (Some(fits), _) => {
                let (name, most) = (fits.name(), limit(fits));
                Finding::ok("rtt", format!("{found}; profile {name} fits, for up to {most}ms"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::{Findings, Level};
    use super::*;
    use rollout_proto::MemberRef;

    /// A member that measured these 90th percentiles, in milliseconds.
    fn answer(name: &str, profile: &str, trips: &[(&str, f64)]) -> Answer {
        let trips = trips.iter().zip(1..).map(|((to, p90_ms), id)| v1::RoundTrips {
            id,
            name: (*to).into(),
            samples: 60,
            min_us: (p90_ms * 500.0) as u64,
            p50_us: (p90_ms * 900.0) as u64,
            p90_us: (p90_ms * 1000.0) as u64,
            max_us: (p90_ms * 4000.0) as u64,
        });
        let own = v1::MemberStatus {
            name: name.into(),
            raft_profile: profile.into(),
            round_trips: trips.collect(),
            ..Default::default()
        };
        let answer = v1::StatusResponse { self_: Some(own), ..Default::default() };
        (MemberRef { name: name.into(), addr: String::new() }, Ok(answer))
    }

    fn judged(profile: &str, p90_ms: f64) -> (Level, String) {
        let answers =
            [answer("c1", profile, &[("c2", 0.5), ("c3", p90_ms)]), answer("c2", profile, &[])];
        let found = of(&answers).unwrap().findings().pop().unwrap();
        (found.level, found.found)
    }

    #[test]
    fn the_profile_that_fits_is_named_and_one_that_is_too_short_is_a_warning() {
        let (level, found) = judged("near", 1.0);
        assert_eq!(level, Level::Ok);
        assert_eq!(
            found,
            "the longest round trip is c1 to c3: median 0.9ms, p90 1.0ms, longest 4.0ms; profile near fits, for up to 40ms"
        );
        let (level, found) = judged("near", 60.0);
        assert_eq!(level, Level::Warn);
        assert!(found.ends_with("profile far-zones fits, and near is for up to 40ms"), "{found}");
        let (level, found) = judged("far-zones", 60.0);
        assert_eq!(level, Level::Ok);
        assert!(found.ends_with("profile far-zones fits, for up to 200ms"), "{found}");
        assert_eq!(judged("far-zones", 1.0).0, Level::Ok, "it serves, and fails over later");
        let (level, found) = judged("far-zones", 250.0);
        assert_eq!(level, Level::Warn);
        assert!(found.contains("no profile fits"), "{found}");
        // A member of an earlier version does not say what it runs with.
        assert_eq!(judged("", 60.0).0, Level::Ok);
    }

    #[test]
    fn members_with_different_profiles_are_a_warning() {
        let answers =
            [answer("c1", "near", &[("c2", 0.5)]), answer("c2", "far-zones", &[("c1", 0.5)])];
        let found = of(&answers).unwrap().findings();
        assert_eq!(found[0].level, Level::Warn);
        assert_eq!(found[0].found, "members run with far-zones and near");
    }

    #[test]
    fn json_names_the_profile_and_every_link() {
        assert_eq!(of(&[answer("c1", "near", &[])]), None);
        let trips = of(&[answer("c1", "near", &[("c2", 2.0)])]);
        let findings = Findings::new(Vec::new()).with_round_trips(trips);
        let json = serde_json::to_value(findings).unwrap();
        assert_eq!(json["roundTrips"]["profileThatFits"], "near");
        assert_eq!(json["roundTrips"]["profilesInUse"][0], "near");
        let link = serde_json::json!({
            "from": "c1", "to": "c2", "samples": 60,
            "minMs": 1.0, "p50Ms": 1.8, "p90Ms": 2.0, "maxMs": 8.0,
        });
        assert_eq!(json["roundTrips"]["links"][0], link);
    }
}
