//! Members of a survey that the caller does not trust, or that do not trust the caller.
//!
//! Invariant: members with the same problem share one sentence with one remedy.
//! Absent: why one connection failed, and the remedies (`rolloutctl::distrust`).

use std::collections::BTreeMap;

use super::{MemberLine, Survey};
use crate::rolloutctl::distrust::{REVOKED_FIX, USE_TLS, remedy};

/// What to do about a member that one side does not trust.
pub(in crate::rolloutctl) fn fix(member: &MemberLine) -> &'static str {
    remedy(member.revoked, member.wants_tls)
}

/// What to do about all members with a trust problem.
pub(in crate::rolloutctl) fn fix_of_all(survey: &Survey) -> &'static str {
    let any = |is: fn(&MemberLine) -> bool| survey.members.iter().any(is);
    remedy(any(|member| member.revoked), any(|member| member.wants_tls))
}

/// The distrusted members and the reasons: one sentence for all members with the same problem.
pub(super) fn summary(survey: &Survey) -> String {
    let mut problems: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for member in &survey.members {
        if let Some(problem) = member.problem.as_deref() {
            problems.entry(problem).or_default().push(&member.name);
        }
    }
    let each: Vec<String> = problems
        .into_iter()
        .map(|(problem, names)| format!("{}: {problem}", names.join(", ")))
        .collect();
    let each = each.join("; ");
    let fix = fix_of_all(survey);
    let what = match fix {
        REVOKED_FIX => "your certificate is revoked",
        USE_TLS => "you connect without TLS",
        _ => "the members and you do not trust each other",
    };
    format!("{what}: {each}; {fix}")
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::path::Path;

    use futures::StreamExt as _;
    use rollout_proto::pki::{self, IssueRequest};
    use rollout_proto::{Client, ClientConfig, Role, Security, ServerTls, TlsFiles};

    use super::*;
    use crate::rolloutctl::distrust::COMPARE;
    use crate::rolloutctl::{exit, status};

    fn issue(ca_dir: &Path, role: Role, out: &Path) -> TlsFiles {
        let request = IssueRequest {
            role,
            name: role.to_string(),
            namespaces: Vec::new(),
            dns_names: Vec::new(),
            ip_addrs: vec![IpAddr::from([127, 0, 0, 1])],
            days: 1,
        };
        pki::issue(ca_dir, &request, out).unwrap()
    }

    /// Serves handshakes; returns its address.
    async fn serve(files: &TlsFiles) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap().to_string();
        let tls = ServerTls::load(&Security::Mtls(files.clone())).unwrap();
        let mut incoming = tls.incoming(listener);
        tokio::spawn(async move {
            let mut kept = Vec::new();
            while let Some(conn) = incoming.next().await {
                kept.push(conn);
            }
        });
        addr
    }

    /// The handshakes are real, so the parsed texts are those of the rustls in use.
    #[tokio::test]
    async fn distrust_in_either_direction_is_explained_with_the_file_that_decides() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        for ca in ["ours", "theirs"] {
            pki::init_ca(&path(ca), "prod").unwrap();
        }
        let member = issue(&path("ours"), Role::Member, &path("server"));
        let ours = issue(&path("ours"), Role::Admin, &path("good"));
        let theirs = issue(&path("theirs"), Role::Admin, &path("foreign"));
        let addr = serve(&member).await;
        let stranger = TlsFiles { ca: ours.ca.clone(), ..theirs.clone() };
        for (files, told) in [
            (
                theirs.clone(),
                format!("is signed by another authority than {}", theirs.ca.display()),
            ),
            (
                stranger,
                format!(
                    "refuses your certificate {}: it trusts another authority",
                    theirs.cert.display()
                ),
            ),
        ] {
            let config = ClientConfig::new(vec![addr.clone()], Security::Mtls(files));
            let survey = status::survey(&Client::new(config).unwrap()).await;
            assert_eq!(survey.health, status::DISTRUSTED, "{}", survey.problems());
            assert!(survey.members[0].distrusted);
            let failure = anyhow::Error::from(survey.leaderless().unwrap());
            assert_eq!(exit::code(&failure), 7);
            let text = failure.to_string();
            assert!(text.contains(&told) && text.ends_with(COMPARE), "{text}");
        }
    }

    #[tokio::test]
    async fn a_caller_without_tls_is_advised_to_use_it_and_no_member_is_called_down() {
        let dir = tempfile::tempdir().unwrap();
        pki::init_ca(&dir.path().join("ca"), "prod").unwrap();
        let member = issue(&dir.path().join("ca"), Role::Member, &dir.path().join("server"));
        let addr = serve(&member).await;
        let config = ClientConfig::new(vec![addr.clone()], Security::InsecurePlaintext);
        let client = Client::new(config).unwrap();
        let survey = status::survey(&client).await;
        assert_eq!(survey.health, status::DISTRUSTED, "{}", survey.problems());
        let raised: Vec<_> = survey.alarms.iter().map(|alarm| (alarm.kind, &*alarm.fix)).collect();
        assert_eq!(raised, [("MEMBER_DISTRUSTED", USE_TLS)]);
        let failure = anyhow::Error::from(survey.leaderless().unwrap());
        assert_eq!(exit::code(&failure), 7);
        let told = format!(
            "you connect without TLS: {addr}: tls: it answers with TLS; drop --insecure-plaintext"
        );
        let text = failure.to_string();
        assert!(text.starts_with(&told) && text.ends_with(USE_TLS), "{text}");
        // A command that searches for the leader ends at once, with the same error.
        let failure = anyhow::Error::from(client.leader_channel().await.err().unwrap());
        assert_eq!(exit::code(&failure), 7, "{failure}");
        let text = exit::explain(&failure);
        let told = format!("error: cannot connect to {addr}: it answers with TLS; drop --insec");
        assert!(text.starts_with(&told) && text.contains(USE_TLS), "{text}");
    }
}
