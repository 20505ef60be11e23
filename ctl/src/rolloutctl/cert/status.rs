//! `rolloutctl cert status`: every certificate that matters here, and how long it is valid.
//!
//! Invariant: for a running member it shows the certificate presented to a new connection, not the one in a file, so
//! it shows whether the member has loaded a new one. Absent: trust in a file that was only named.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rollout_proto::pki::{self, CertInfo, RENEWAL_WITHIN_S};
use rollout_proto::{ChannelOptions, ClientTls, Endpoint, MemberRef, Security, presented};
use serde::Serialize;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::connect::ConnectSettings;
use crate::output::{self, Report, Table};
use crate::rolloutctl::distrust::NoAnswer;
use crate::rolloutctl::remaining_validity::days_or_hours;
use crate::rolloutctl::verb::{Globals, Kind, Verb};
use crate::rolloutctl::{Failure, status};

/// Which certificates.
#[derive(Debug, clap::Args)]
pub(crate) struct StatusArgs {
    /// Certificate files [default: your own, and those that the members present]
    files: Vec<PathBuf>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    name: String,
    identity: Option<String>,
    issuer: Option<String>,
    not_after: Option<String>,
    seconds_left: Option<i64>,
    alternative_names: Vec<String>,
    problem: Option<String>,
}

impl Line {
    fn of(place: String, info: CertInfo, now_unix: i64) -> Self {
        let left = info.validity.not_after_unix - now_unix;
        let problem = match left {
            ..=0 => Some("expired".to_owned()),
            _ if info.validity.is_due(now_unix, RENEWAL_WITHIN_S) => {
                Some("renew it soon".to_owned())
            }
            _ => None,
        };
        let not_after = OffsetDateTime::from_unix_timestamp(info.validity.not_after_unix).ok();
        Self {
            name: place,
            identity: info.identity.map(|id| id.to_string()),
            issuer: Some(info.issuer),
            not_after: not_after.and_then(|at| at.format(&Rfc3339).ok()),
            seconds_left: Some(left),
            alternative_names: info.sans,
            problem,
        }
    }

    fn failed(place: String, problem: String) -> Self {
        Self {
            name: place,
            identity: None,
            issuer: None,
            not_after: None,
            seconds_left: None,
            alternative_names: Vec::new(),
            problem: Some(problem),
        }
    }
}

#[derive(Serialize)]
struct CertificateList {
    certificates: Vec<Line>,
}

impl Report for CertificateList {
    const KIND: &'static str = "CertificateList";

    fn table(&self) -> String {
        self.columns(&[])
    }

    fn wide(&self) -> String {
        self.columns(&["NAMES"])
    }
}

impl CertificateList {
    fn columns(&self, more: &[&str]) -> String {
        let titles = ["CERTIFICATE", "IDENTITY", "ISSUER", "EXPIRES", "LEFT", "PROBLEM"];
        let mut table = Table::new(&titles).and(more);
        let text = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".into());
        for line in &self.certificates {
            let left = line.seconds_left.map(days_or_hours);
            table.row([
                line.name.clone(),
                text(&line.identity),
                text(&line.issuer),
                text(&line.not_after),
                text(&left),
                line.problem.clone().unwrap_or_default(),
                line.alternative_names.join(","),
            ]);
        }
        table.to_string()
    }

    /// The failure for certificates that need action, if any.
    fn failure(&self) -> Option<Failure> {
        let bad: Vec<&str> = self
            .certificates
            .iter()
            .filter(|line| line.seconds_left.is_none_or(|left| left <= 0))
            .map(|line| line.name.as_str())
            .collect();
        let text = || format!("expired or unreadable: {}", bad.join(", "));
        (!bad.is_empty()).then(|| Failure::failed(text()))
    }
}

fn now_unix() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

fn of_file(path: &Path, now_unix: i64) -> Vec<Line> {
    let shown = path.display();
    match pki::inspect_all(path) {
        Ok(all) if all.is_empty() => {
            vec![Line::failed(shown.to_string(), "no certificate in it".into())]
        }
        Ok(all) => {
            let several = all.len() > 1;
            let place =
                |at: usize| if several { format!("{shown}#{}", at + 1) } else { shown.to_string() };
            all.into_iter()
                .enumerate()
                .map(|(at, info)| Line::of(place(at), info, now_unix))
                .collect()
        }
        Err(error) => vec![Line::failed(shown.to_string(), error.to_string())],
    }
}

/// The certificate that each member presents now.
async fn of_members(settings: &ConnectSettings, now_unix: i64) -> anyhow::Result<Vec<Line>> {
    let client = settings.client(None)?;
    let tls = ClientTls::load(&settings.security)?;
    // Any request would do: every answer includes the list of members.
    let answers = status::ask_each(&client).await;
    let one = |(member, _): (MemberRef, _)| {
        let tls = &tls;
        async move {
            let named =
                if member.name.is_empty() { member.addr.clone() } else { member.name.clone() };
            let place = format!("member {named}");
            let endpoint = match member.name.as_str() {
                "" => Endpoint::seed(&member.addr),
                name => Endpoint::with_name(name, &member.addr),
            };
            let endpoint = match endpoint {
                Ok(endpoint) => endpoint,
                Err(error) => return Line::failed(place, error.to_string()),
            };
            let options = ChannelOptions::default();
            match presented(&endpoint, tls, &settings.dial_map, &options).await {
                Ok(Some(info)) => Line::of(place, info, now_unix),
                Ok(None) => Line::failed(place, "plaintext: it presents none".into()),
                Err(error) => {
                    let why = NoAnswer::of_connection(&error, &settings.security);
                    Line::failed(place, why.problem)
                }
            }
        }
    };
    let mut lines = futures::future::join_all(answers.into_iter().map(one)).await;
    lines.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(lines)
}

impl Verb for StatusArgs {
    const KIND: Kind<Self> = Kind::ReadOnly;

    /// Prints them. Exit status 1 if one has expired or is unavailable.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let now = now_unix();
        let mut certificates: Vec<Line> =
            self.files.iter().flat_map(|path| of_file(path, now)).collect();
        if self.files.is_empty() {
            let settings = globals.connect.settings()?;
            if let Security::Mtls(files) = &settings.security {
                certificates.extend(of_file(&files.ca, now));
                certificates.extend(of_file(&files.cert, now));
            }
            certificates.extend(of_members(&settings, now).await?);
        }
        let list = CertificateList { certificates };
        output::emit(globals.format, &list)?;
        list.failure().map_or(Ok(()), |failure| Err(failure.into()))
    }
}

#[cfg(test)]
mod tests {
    use rollout_proto::Role;
    use rollout_proto::pki::IssueRequest;

    use super::*;

    #[test]
    fn a_bundle_has_a_line_for_each_certificate_and_marks_those_about_to_expire() {
        let dir = tempfile::tempdir().unwrap();
        let (old, new) = (dir.path().join("old"), dir.path().join("new"));
        let mut bundle = std::fs::read(pki::init_ca(&old, "prod").unwrap()).unwrap();
        bundle.extend(std::fs::read(pki::init_ca(&new, "prod").unwrap()).unwrap());
        let path = dir.path().join("ca.pem");
        std::fs::write(&path, bundle).unwrap();
        let lines = of_file(&path, now_unix());
        assert_eq!(lines.len(), 2);
        assert!(lines[1].name.ends_with("ca.pem#2"), "{lines:?}");
        assert!(lines.iter().all(|line| line.problem.is_none()));
        let issue = |days| {
            let request = IssueRequest {
                role: Role::Worker,
                name: format!("w{days}"),
                namespaces: Vec::new(),
                dns_names: Vec::new(),
                ip_addrs: Vec::new(),
                days,
            };
            pki::issue(&old, &request, dir.path().join("tls").as_path()).unwrap()
        };
        // A certificate that is valid for a day is due in its last third, not all day; a long-lived one in its last 14
        // days.
        let short = issue(3);
        for (files, days_gone, told) in [
            (&short, 0, None),
            (&short, 1, None),
            (&short, 2, Some("renew it soon")),
            (&issue(365), 350, None),
            (&issue(365), 352, Some("renew it soon")),
        ] {
            let line = of_file(&files.cert, now_unix() + days_gone * 86_400).remove(0);
            assert_eq!(line.problem.as_deref(), told, "{days_gone} days gone: {line:?}");
            assert!(line.issuer.unwrap().starts_with("rollout prod authority"));
        }
        let later = of_file(&short.cert, now_unix() + 4 * 86_400);
        let list = CertificateList { certificates: later };
        assert!(list.failure().is_some() && list.table().contains("expired"));
    }

    #[test]
    fn output_matches_the_golden_file() {
        let line = Line {
            name: "member c1".into(),
            identity: Some("member/c1".into()),
            issuer: Some("CN=prod".into()),
            not_after: Some("2027-11-22T00:00:00Z".into()),
            seconds_left: Some(8_640_000),
            alternative_names: vec!["localhost".into()],
            problem: None,
        };
        let silent = Line {
            name: "member c2".into(),
            identity: None,
            issuer: None,
            not_after: None,
            seconds_left: None,
            alternative_names: Vec::new(),
            problem: Some("refused at tcp".into()),
        };
        let list = CertificateList { certificates: vec![line, silent] };
        crate::golden::report("cert-status.txt", &list);
    }
}
