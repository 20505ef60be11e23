//! `rolloutctl token create NAME`: lets a worker or a client enroll for a certificate.
//!
//! Invariant: the secret is generated here and only printed. A repeat would generate another secret, so `--request-id`
//! is not offered: after a lost answer, `token list` shows the outcome; revoke a token whose text is lost.

use std::time::Duration;

use rollout_proto::enrollment::JoinToken;
use rollout_proto::{ClientError, services, v1};
use serde::Serialize;

use super::summary::Token;
use crate::connect::parse_duration;
use crate::output::{self, Report, counted, duration};
use crate::rolloutctl::Failure;
use crate::rolloutctl::dry_run::{Checked, Plan, Planned, PlannedRequest, Reader, one, planned};
use crate::rolloutctl::request::{Numbered, RequestName};
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Whom it lets in, how often and how long.
#[derive(Debug, clap::Args)]
pub(crate) struct CreateArgs {
    /// Name of the token, as `token list` and `token revoke` use it; not secret
    pub(in crate::rolloutctl) name: String,
    /// Role in the certificates
    #[arg(long, value_parser = ["worker", "client"])]
    role: String,
    /// The only worker or client name that the token is valid for. Required for clients; without
    /// it, a worker's token is valid for any name that no registered worker has
    #[arg(long, value_name = "NAME")]
    holder: Option<String>,
    /// Namespaces of the certificate; repeatable [default: all]
    #[arg(long = "for-namespace", value_name = "NAME", value_delimiter = ',')]
    for_namespaces: Vec<String>,
    /// Label of every slot of the worker; repeatable
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = pair)]
    labels: Vec<(String, String)>,
    /// Validity, such as 30m or 24h, 720h at most
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = parse_duration)]
    ttl: Duration,
    /// Number of uses
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    uses: u32,
}

impl CreateArgs {
    /// The request, without its number.
    fn request(&self, token: &JoinToken) -> Result<v1::CreateTokenRequest, Failure> {
        if self.role == "client" && self.holder.is_none() {
            return Err(Failure::usage("a client's token is for one name: say --holder NAME"));
        }
        Ok(v1::CreateTokenRequest {
            request: None,
            name: self.name.clone(),
            role: self.role.clone(),
            holder: self.holder.clone().unwrap_or_default(),
            namespaces: self.for_namespaces.clone(),
            labels: self.labels.iter().cloned().collect(),
            ttl_ms: u64::try_from(self.ttl.as_millis()).unwrap_or(u64::MAX),
            uses_max: self.uses,
            secret_hash: token.secret_hash().to_vec().into(),
        })
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Created {
    #[serde(flatten)]
    of: Token,
    /// The secret, for the worker or client that enrolls.
    token: String,
}

impl Report for Created {
    const KIND: &'static str = "TokenCreated";

    fn table(&self) -> String {
        let Token { name, uses_max, .. } = &self.of;
        let (who, left) = (self.of.who(), duration(self.of.left_s()));
        format!(
            "token {name} enrolls {who}, {}, within {left}; it is shown only once\n{}\n",
            counted((*uses_max).into(), "time"),
            self.token
        )
    }
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("it has no =")?;
    Ok((key.to_owned(), value.to_owned()))
}

impl Verb for CreateArgs {
    const KIND: Kind<Self> = Kind::Change { numbered: false, confirm: false, dry_run: planned };

    /// Creates the token, and prints its text.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let drawn = JoinToken::draw(&self.name);
        let wanted = self.request(&drawn)?;
        let client = globals.connect.settings()?.client(None)?;
        let number = Numbered::new(&client, None).await?;
        let request = v1::CreateTokenRequest { request: Some(number.id()), ..wanted };
        let answer = client
            .with_leader("create a join token", |channel| {
                let request = request.clone();
                async move { services::tokens(channel).create_token(request).await }
            })
            .await
            .map_err(|error| unknown(error, &request.name, number.name()))?;
        let pins: Vec<[u8; 32]> =
            answer.authority_pins.iter().filter_map(|pin| pin[..].try_into().ok()).collect();
        if pins.is_empty() {
            anyhow::bail!("the member reports no authority: revoke the token, it cannot be used");
        }
        let of = answer.token.unwrap_or_default().into();
        output::emit(globals.format, &Created { of, token: drawn.naming(pins).reveal() })
    }
}

impl Checked for CreateArgs {
    fn requests(&self, _namespace: &str) -> anyhow::Result<Vec<PlannedRequest>> {
        // The secret is drawn for the check alone.
        one(&self.name, &self.request(&JoinToken::draw(&self.name))?)
    }
}

impl Planned for CreateArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        super::plans(reader, &[self.name], "create join token").await
    }
}

/// The error and, if the request's outcome is unknown, what to do: the secret is lost with this command.
fn unknown(error: ClientError, name: &str, number: RequestName) -> anyhow::Error {
    if error.exit_code() != 8 {
        return error.into();
    }
    anyhow::Error::from(error).context(format!(
        "whether request {number} made the token is unknown, and its text is lost; if rolloutctl token list shows it: \
         rolloutctl token revoke {name}, and make another"
    ))
}

#[cfg(test)]
mod tests {
    use rollout_proto::{ErrorCode, RpcError};

    use super::*;
    use crate::rolloutctl::exit;

    #[test]
    fn a_token_with_unknown_outcome_is_reported_with_its_request_and_what_to_do() {
        let told = |code| {
            let error = ClientError::from(RpcError::new(code, "the leader was lost"));
            let error = unknown(error, "rack-7", "8842.1".parse().unwrap());
            (exit::code(&error), exit::explain(&error))
        };
        let (code, text) = told(ErrorCode::OutcomeUnknown);
        assert_eq!(code, 8, "{text}");
        for part in ["request 8842.1", "rolloutctl token list", "rolloutctl token revoke rack-7"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("--request-id"), "a repeat would have no secret to show: {text}");
        let (code, text) = told(ErrorCode::NoLeader);
        assert_ne!(code, 8);
        assert!(!text.contains("revoke"), "{text}");
    }

    #[test]
    fn output_matches_the_golden_file() {
        let info = rollout_proto::v1::TokenInfo {
            name: "rack-7".into(),
            role: "worker".into(),
            uses_max: 8,
            left_ms: 3_600_000,
            ..Default::default()
        };
        let report = Created { of: info.into(), token: "the secret".into() };
        crate::golden::report("token-create.txt", &report);
    }
}
