//! Commands that fix a member, with the addresses that the cluster has on record.
//!
//! Invariant: a command that replaces a member is printed only for one that is lost by all that the cluster knows: its
//! disk is empty, or no member has heard of it for a minute. A member that merely does not answer here may be alive,
//! and would lose its vote. DIR stays a placeholder: only the operator knows where the authority's key is.

use std::net::IpAddr;

use rollout_batch::hint::shell_word;
use rollout_proto::HostPort;

use super::MemberLine;

/// Replaces the member of that name, perhaps with itself on an empty disk.
pub(in crate::rolloutctl) fn replace(member: &MemberLine) -> String {
    format!("rolloutctl member replace {} {}", member.name, places(member))
}

/// For a learner whose disk is lost: it occupies no voter's place, so it is removed and added again.
pub(in crate::rolloutctl) fn add_again(member: &MemberLine) -> String {
    let name = &member.name;
    format!(
        "rolloutctl member remove {name}, because it is a learner; then start one with an empty disk, and: rolloutctl member \
         add {name} {}",
        places(member)
    )
}

/// For a member that does not answer.
pub(in crate::rolloutctl) fn silent(member: &MemberLine) -> String {
    let lost = match member.voter {
        Some(false) => add_again(member),
        _ => replace(member),
    };
    match member.silent_to_all {
        true => format!("start it, or, if it is lost for good: {lost}"),
        false => format!("start it, or open its client port {}", client_addr(member)),
    }
}

/// A new certificate for a member, for all hosts under which it is dialed.
pub(in crate::rolloutctl) fn certificate(member: &MemberLine) -> String {
    let peer = member.info.as_ref().map_or("", |listed| listed.peer_addr.as_str());
    let addresses = [client_addr(member), peer].map(str::parse::<HostPort>);
    let mut hosts: Vec<String> = addresses.into_iter().flatten().map(|at| at.host).collect();
    hosts.dedup();
    let hosts: Vec<&str> = hosts.iter().map(String::as_str).collect();
    format!("{}, with the CA in DIR", issue("member", &member.name, &hosts))
}

/// Issues a certificate by hand.
pub(in crate::rolloutctl) fn issue(role: &str, name: &str, hosts: &[&str]) -> String {
    let flag = |host: &&str| match host.parse::<IpAddr>() {
        Ok(_) => format!(" --ip {host}"),
        Err(_) => format!(" --dns {host}"),
    };
    let hosts: String = hosts.iter().map(flag).collect();
    format!("rolloutctl cert issue {role} {name} --ca-dir DIR{hosts}")
}

/// Its client address in the cluster's record or, without one, the address that was asked.
fn client_addr(member: &MemberLine) -> &str {
    let listed = member.info.as_ref().map(|listed| listed.client_addr.as_str());
    listed.filter(|address| !address.is_empty()).unwrap_or(&member.address)
}

/// The flags for a member's addresses and zone.
fn places(member: &MemberLine) -> String {
    let listed = member.info.as_ref();
    let peer = listed.map(|listed| listed.peer_addr.as_str()).filter(|address| !address.is_empty());
    let zone = listed.map_or("", |listed| listed.zone.as_str());
    let zone =
        if zone.is_empty() { String::new() } else { format!(" --zone {}", shell_word(zone)) };
    let (peer, client) = (shell_word(peer.unwrap_or("HOST:PORT")), shell_word(client_addr(member)));
    format!("--peer-addr {peer} --client-addr {client}{zone}")
}

#[cfg(test)]
mod tests {
    use rollout_proto::v1;

    use super::*;

    fn lost(zone: &str) -> MemberLine {
        let info = v1::MemberInfo {
            name: "c3".into(),
            peer_addr: "c3.example:7421".into(),
            client_addr: "10.0.0.3:7420".into(),
            zone: zone.into(),
            voter: true,
            ..v1::MemberInfo::default()
        };
        MemberLine {
            name: "c3".into(),
            address: "lb.example:7420".into(),
            voter: Some(true),
            info: Some(info),
            ..MemberLine::default()
        }
    }

    #[test]
    fn a_member_is_replaced_only_if_no_member_has_heard_of_it() {
        let silent_here = lost("b");
        assert_eq!(silent(&silent_here), "start it, or open its client port 10.0.0.3:7420");
        let of_all = MemberLine { silent_to_all: true, ..silent_here };
        assert_eq!(
            silent(&of_all),
            "start it, or, if it is lost for good: rolloutctl member replace c3 --peer-addr c3.example:7421 --client-addr \
             10.0.0.3:7420 --zone b"
        );
        let learner = MemberLine { voter: Some(false), ..of_all };
        assert!(silent(&learner).contains("rolloutctl member remove c3, "));
        assert!(silent(&learner).ends_with("--client-addr 10.0.0.3:7420 --zone b"));
    }

    #[test]
    fn a_name_with_shell_characters_is_quoted_as_one_word() {
        assert!(replace(&lost("rack 7")).ends_with("--zone 'rack 7'"));
        assert!(replace(&lost("it's")).ends_with(r"--zone 'it'\''s'"));
        assert!(replace(&lost("")).ends_with("--client-addr 10.0.0.3:7420"));
    }

    #[test]
    fn another_certificate_is_for_every_host_under_which_the_member_is_dialed() {
        assert_eq!(
            certificate(&lost("b")),
            "rolloutctl cert issue member c3 --ca-dir DIR --ip 10.0.0.3 --dns c3.example, with the CA in DIR"
        );
    }
}
