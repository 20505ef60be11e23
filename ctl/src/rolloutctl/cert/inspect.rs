//! `rolloutctl cert inspect FILE...`: the identity in a certificate, and when it expires.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use rollout_proto::pki;
use serde::Serialize;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::output::counted;
use crate::output::{self, Format, Report};
use crate::rolloutctl::for_each_name::for_each_name;
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Which file.
#[derive(Debug, clap::Args)]
pub(crate) struct InspectArgs {
    /// A certificate, PEM, or several
    #[arg(value_name = "FILE", required = true, value_hint = clap::ValueHint::FilePath)]
    files: Vec<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Certificate {
    file: String,
    role: Option<String>,
    name: Option<String>,
    namespaces: Vec<String>,
    issuer: String,
    not_after: String,
    seconds_left: i64,
    alternative_names: Vec<String>,
}

impl Report for Certificate {
    const KIND: &'static str = "Certificate";

    fn table(&self) -> String {
        let left = match self.seconds_left {
            ..=0 => "expired".to_owned(),
            left => format!("{} left", counted((left / 86_400).unsigned_abs(), "day")),
        };
        let list = |texts: &[String], none: &str| {
            if texts.is_empty() { none.to_owned() } else { texts.join(", ") }
        };
        format!(
            "File        {}\nIdentity    {} {}\nNamespaces  {}\nIssuer      {}\nEnds        {} ({left})\nNames       {}\n",
            self.file,
            self.role.as_deref().unwrap_or("none of ours"),
            self.name.as_deref().unwrap_or(""),
            list(&self.namespaces, "all"),
            self.issuer,
            self.not_after,
            list(&self.alternative_names, "none"),
        )
    }
}

impl Verb for InspectArgs {
    const KIND: Kind<Self> = Kind::ReadOnly;

    /// Prints the content of each certificate, without trusting it.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        for_each_name(self.files, globals.format, None, async |file, format| one(format, file))
            .await
    }
}

fn one(format: Format, file: String) -> anyhow::Result<()> {
    let info = pki::inspect(Path::new(&file))?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let not_after = OffsetDateTime::from_unix_timestamp(info.validity.not_after_unix)
        .ok()
        .and_then(|at| at.format(&Rfc3339).ok())
        .unwrap_or_else(|| info.validity.not_after_unix.to_string());
    let (role, name, namespaces) = match info.identity {
        Some(id) => (Some(id.role.to_string()), Some(id.name), id.namespaces),
        None => (None, None, Vec::new()),
    };
    output::emit(
        format,
        &Certificate {
            file,
            role,
            name,
            namespaces,
            issuer: info.issuer,
            not_after,
            seconds_left: info.validity.not_after_unix - now.cast_signed(),
            alternative_names: info.sans,
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_matches_the_golden_file() {
        let report = Certificate {
            file: "tls/member-c1.pem".into(),
            role: Some("member".into()),
            name: Some("c1".into()),
            namespaces: Vec::new(),
            issuer: "CN=prod".into(),
            not_after: "2027-11-22T00:00:00Z".into(),
            seconds_left: 8_640_000,
            alternative_names: vec!["localhost".into(), "127.0.0.1".into()],
        };
        crate::golden::report("cert-inspect.txt", &report);
    }
}
