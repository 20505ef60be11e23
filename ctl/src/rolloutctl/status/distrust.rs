//! Why a member gave no answer: no member was reached, or the two sides do not trust each other.
//!
//! Invariant: a distrusted member runs, so no text here says that it is down. Each text names the file that decides
//! about trust.
//! Deliberately absent: the certificate of the other side. A failed handshake does not reveal it.

use std::collections::BTreeMap;
use std::fmt::Display;

use rollout_proto::{ClientError, ConnectError, Phase, Security};

use super::{MemberLine, Survey};

/// What to do about it.
pub(in crate::rolloutctl) const COMPARE: &str = "compare the issuers: rolloutctl cert status";
/// What to do if the caller's certificate is revoked.
pub(in crate::rolloutctl) const REVOKED_FIX: &str =
    "get another certificate, or ask for an unrevoke: rolloutctl errors explain RO-3013";

/// What to do if the caller connects without TLS to members that use TLS.
pub(in crate::rolloutctl) const USE_TLS: &str =
    "give --ca-cert, --cert and --key, or a --context, instead of --insecure-plaintext";

/// Why a member gave no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::rolloutctl) struct NoAnswer {
    /// In words, with the phase of the connection that failed.
    pub(in crate::rolloutctl) problem: String,
    /// Whether one side does not trust the other.
    pub(in crate::rolloutctl) distrusted: bool,
    /// Whether it refuses the caller's certificate as revoked.
    pub(in crate::rolloutctl) revoked: bool,
    /// Whether it uses TLS and the caller does not.
    pub(in crate::rolloutctl) wants_tls: bool,
}

impl NoAnswer {
    /// For a reason that has nothing to do with trust.
    pub(super) fn silent(why: impl Display) -> Self {
        Self { problem: why.to_string(), distrusted: false, revoked: false, wants_tls: false }
    }

    /// From a call to one member.
    pub(super) fn of(error: &ClientError, security: &Security) -> Self {
        match error {
            ClientError::Connect(error) => Self::of_connection(error, security),
            revoked if revoked.is_revoked() => {
                Self { distrusted: true, revoked: true, ..Self::silent(revoked) }
            }
            ClientError::Timeout { tried, .. } | ClientError::NoLeader { tried, .. } => {
                Self::silent(
                    tried.first().map_or_else(|| error.to_string(), |(_, why)| why.clone()),
                )
            }
            other => Self::silent(other),
        }
    }

    /// From a failed connection.
    pub(in crate::rolloutctl) fn of_connection(error: &ConnectError, security: &Security) -> Self {
        let distrusted = is_distrust(error);
        let cause = match (distrusted, security) {
            (true, Security::Mtls(files)) => {
                let own = format!("your certificate {}", files.cert.display());
                words(&error.cause, &files.ca.display().to_string(), &own)
            }
            _ => error.cause.clone(),
        };
        let problem = format!("{}: {cause}", error.phase);
        let (revoked, wants_tls) = (error.is_revoked(), error.wants_tls());
        Self { problem, distrusted, revoked, wants_tls }
    }

    /// What to do if one side does not trust the other.
    pub(in crate::rolloutctl) fn fix(&self) -> &'static str {
        remedy(self.revoked, self.wants_tls)
    }
}

/// Whether a connection failed because of a certificate, not because of the network.
pub(in crate::rolloutctl) fn is_distrust(error: &ConnectError) -> bool {
    error.phase == Phase::Tls && error.permanent
}

/// Translates an error text of rustls into which side does not trust the other. `ca` is the file of the members'
/// authority, `own` the caller's certificate.
pub(in crate::rolloutctl) fn words(cause: &str, ca: &str, own: &str) -> String {
    if let Some(alert) = cause.strip_prefix("received fatal alert: ") {
        return match alert {
            // The second is the error for an authority of the same name with another key.
            "UnknownCA" | "DecryptError" => {
                format!("it refuses {own}: it trusts another authority")
            }
            "CertificateExpired" => {
                format!("it refuses {own}: it has expired or is not valid yet")
            }
            "CertificateRevoked" => format!("it refuses {own}: it is revoked"),
            "CertificateRequired"
            | "CertificateUnknown"
            | "BadCertificate"
            | "UnsupportedCertificate"
            | "AccessDenied" => format!("it refuses {own}: {alert}"),
            _ => cause.to_owned(),
        };
    }
    if cause.starts_with("received corrupt message") {
        return "it does not use TLS, or is not a member".to_owned();
    }
    match cause.strip_prefix("invalid peer certificate: ") {
        Some("UnknownIssuer" | "BadSignature") => {
            format!("its certificate is signed by another authority than {ca}")
        }
        Some(other) => format!("its certificate is refused here: {other}"),
        None => cause.to_owned(),
    }
}

/// What to do about a member that one side does not trust.
pub(in crate::rolloutctl) fn fix(member: &MemberLine) -> &'static str {
    remedy(member.revoked, member.wants_tls)
}

/// What to do if one side does not trust the other.
pub(in crate::rolloutctl) fn remedy(revoked: bool, wants_tls: bool) -> &'static str {
    match (revoked, wants_tls) {
        (true, _) => REVOKED_FIX,
        (false, true) => USE_TLS,
        (false, false) => COMPARE,
    }
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
    use rollout_proto::{Client, ClientConfig, Role, ServerTls, TlsFiles};

    use super::*;
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

    #[test]
    fn an_authority_of_the_same_name_with_another_key_is_another_one() {
        let told = |cause: &str| words(cause, "ca.pem", "your certificate a.pem");
        let other = "its certificate is signed by another authority than ca.pem";
        assert_eq!(told("invalid peer certificate: BadSignature"), other);
        assert_eq!(
            told("received fatal alert: DecryptError"),
            "it refuses your certificate a.pem: it trusts another authority"
        );
        assert_eq!(told("invalid peer certificate: X"), "its certificate is refused here: X");
        assert_eq!(
            told("received fatal alert: InternalError"),
            "received fatal alert: InternalError"
        );
    }

    #[test]
    fn a_handshake_that_is_late_is_no_distrust() {
        let error = ConnectError {
            endpoint: "c1".into(),
            phase: Phase::Tls,
            cause: "no answer within 1000 ms".into(),
            permanent: false,
        };
        let answer = NoAnswer::of_connection(&error, &Security::InsecurePlaintext);
        assert_eq!(answer, NoAnswer::silent("tls: no answer within 1000 ms"));
    }
}
