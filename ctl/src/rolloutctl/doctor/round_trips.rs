//! Round-trip times between the members, and the `[raft]` profile that fits them.
//!
//! Invariant: the members measured the times between themselves. The 90th percentile of the last minute's round trips
//! decides the profile, so one moment of a busy machine does not change the advice. A maximum above the limit of the
//! profile in use is a warning by itself, because a profile promises nothing beyond its limit.
//! Absent: limits; `rollout_config` has them.

use std::time::Duration;

use rollout_config::coordinator::Profile;
use rollout_proto::v1;
use serde::Serialize;

use super::finding::Finding;
use crate::rolloutctl::status::MemberAnswer;

/// The members' measurements, and the conclusions.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RoundTrips {
    /// The fitting profile with the shortest limits; none if none fits.
    profile_that_fits: Option<&'static str>,
    /// The profiles that the members use.
    profiles_in_use: Vec<String>,
    /// Ordered by the measuring member, then by the other one.
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

/// The measurements of the members that answered; nothing if none has measured anything.
pub(super) fn of(answers: &[MemberAnswer]) -> Option<RoundTrips> {
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

/// The link with the longest single round trip.
fn peak(links: &[Link]) -> Option<&Link> {
    links.iter().max_by(|a, b| a.max_ms.total_cmp(&b.max_ms))
}

/// The profile of this name.
pub(super) fn profile_by_name(name: &str) -> Option<Profile> {
    Profile::ALL.into_iter().find(|profile| profile.name() == name)
}

/// The consequence if heartbeat answers take longer than the profile allows.
pub(super) const LATE: &str =
    "if answers to heartbeats come too late, a healthy leader loses its lease";

impl RoundTrips {
    /// One line for the cluster, and one if members use different profiles.
    pub(super) fn findings(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        if self.profiles_in_use.len() > 1 {
            findings.push(Finding::warn(
                "profile",
                format!("members run with {}", self.profiles_in_use.join(" and ")),
                "members with shorter timeouts start elections while the others wait",
                "set the same [raft] profile on all members",
            ));
        }
        findings.extend(longest(&self.links).map(|longest| self.judged(longest)));
        findings
    }

    /// The link with the longest round trip, if that is longer than `profile` allows.
    fn beyond(&self, profile: Profile) -> Option<&Link> {
        let limit_ms = profile.rtt_max().as_secs_f64() * 1e3;
        peak(&self.links).filter(|link| link.max_ms > limit_ms)
    }

    fn judged(&self, link: &Link) -> Finding {
        let Link { from, to, p50_ms, p90_ms, max_ms, .. } = link;
        let found = format!(
            "the longest round trip is {from} to {to}: median {p50_ms:.1}ms, p90 {p90_ms:.1}ms, longest {max_ms:.1}ms"
        );
        let limit = |profile: Profile| profile.rtt_max().as_millis();
        let in_use = self.profiles_in_use.iter().filter_map(|name| profile_by_name(name)).min();
        let beyond = in_use.and_then(|used| self.beyond(used));
        match (self.profile_that_fits.and_then(profile_by_name), in_use, beyond) {
            (None, _, _) => {
                let most = limit(Profile::FarZones);
                let found = format!("{found}; no profile fits: far-zones allows at most {most}ms");
                Finding::warn("rtt", found, LATE, "move members closer together")
            }
            (Some(fits), Some(used), _) if used < fits => Finding::warn(
                "rtt",
                format!(
                    "{found}; use {}: {} allows at most {}ms",
                    fits.name(),
                    used.name(),
                    limit(used)
                ),
                LATE,
                format!("set [raft] profile = \"{}\" on all members", fits.name()),
            ),
            (Some(_), Some(used), Some(peak)) => {
                let Link { from, to, max_ms, .. } = peak;
                let (name, most) = (used.name(), limit(used));
                let todo = match Profile::ALL.into_iter().find(|other| *other > used) {
                    Some(longer) => format!(
                        "find what delays messages between {from} and {to}, or set [raft] profile = \"{}\" on all members",
                        longer.name()
                    ),
                    None => format!("find what delays messages between {from} and {to}"),
                };
                Finding::warn(
                    "rtt",
                    format!(
                        "{found}; a round trip of {max_ms:.1}ms from {from} to {to}: {name} allows at most {most}ms"
                    ),
                    LATE,
                    todo,
                )
            }
            (Some(fits), _, _) => {
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
    fn answer(name: &str, profile: &str, trips: &[(&str, f64)]) -> MemberAnswer {
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

    #[test]
    fn one_round_trip_above_the_limit_of_the_profile_in_use_is_a_warning() {
        // The maximum is four times the 90th percentile.
        let (level, found) = judged("near", 10.0);
        assert_eq!(level, Level::Ok, "{found}");
        let (level, found) = judged("near", 10.1);
        assert_eq!(level, Level::Warn);
        assert!(
            found.ends_with("a round trip of 40.4ms from c1 to c3: near allows at most 40ms"),
            "{found}"
        );
        assert_eq!(judged("far-zones", 50.0).0, Level::Ok);
        let (level, found) = judged("far-zones", 51.0);
        assert_eq!(level, Level::Warn);
        assert!(found.ends_with("far-zones allows at most 200ms"), "{found}");
        // The link with the worst percentile need not be the one with the longest round trip.
        let mut other = answer("c1", "near", &[("c2", 8.0), ("c3", 5.0)]);
        let own = other.1.as_mut().unwrap().self_.as_mut().unwrap();
        own.round_trips[1].max_us = 55_000;
        let found = of(&[other]).unwrap().findings().pop().unwrap();
        assert_eq!(found.level, Level::Warn);
        assert!(found.found.contains("55.0ms from c1 to c3"), "{}", found.found);
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
        assert!(found.ends_with("use far-zones: near allows at most 40ms"), "{found}");
        let (level, found) = judged("far-zones", 49.0);
        assert_eq!(level, Level::Ok);
        assert!(found.ends_with("profile far-zones fits, for up to 200ms"), "{found}");
        assert_eq!(judged("far-zones", 1.0).0, Level::Ok, "it serves, and fails over later");
        let (level, found) = judged("far-zones", 250.0);
        assert_eq!(level, Level::Warn);
        assert!(found.contains("no profile fits"), "{found}");
        // A member of an earlier version does not report its profile.
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
