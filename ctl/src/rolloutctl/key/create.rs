//! `rolloutctl key create NAME`: creates an API key, and prints it.
//!
//! Invariant: the secret is drawn here and only printed. A repeat would draw another secret, so `--request-id` is not
//! offered: after a lost answer, `key list` shows the outcome; revoke a key whose text is lost.

use std::time::Duration;

use rollout_proto::{ApiKey, ClientError, services, v1};
use serde::Serialize;

use super::summary::Key;
use crate::connect::parse_duration;
use crate::output::{self, Report};
use crate::rolloutctl::Failure;
use crate::rolloutctl::dry_run::{Checked, Plan, Planned, PlannedRequest, Reader, one, planned};
use crate::rolloutctl::request::{Numbered, RequestName};
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// What the key is for, and how much its holder may use.
#[derive(Debug, clap::Args)]
pub(crate) struct CreateArgs {
    /// Name of the key, as `key list` shows it; not secret. Several keys may have the same
    name: String,
    /// What the holder may do in the namespace: read; read and submit; or everything
    #[arg(long, value_parser = ["viewer", "client", "admin"], default_value = "client")]
    role: String,
    /// Validity, such as 12h or 30d, a year at most [default: the key does not expire]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    expires: Option<Duration>,
    /// Maximum requests per second at each member [default: no limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    requests_per_second: Option<u32>,
    /// Maximum batches that have not ended [default: no limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    open_batches: Option<u32>,
    /// Maximum rows of its batches that wait for a worker [default: no limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    waiting_rows: Option<u64>,
    /// Maximum bytes of its files [default: no limit]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..))]
    stored_bytes: Option<u64>,
}

impl CreateArgs {
    /// The request, without its number.
    fn request(&self, namespace: &str, key: &ApiKey) -> Result<v1::CreateKeyRequest, Failure> {
        let ttl_ms = match self.expires {
            None => 0,
            Some(expires) => match u64::try_from(expires.as_millis()).unwrap_or(u64::MAX) {
                0 => {
                    return Err(Failure::usage(
                        "--expires is at least 1ms; without it, the key does not expire",
                    ));
                }
                ms => ms,
            },
        };
        Ok(v1::CreateKeyRequest {
            request: None,
            id: key.id().to_owned(),
            name: self.name.clone(),
            namespace: namespace.to_owned(),
            role: self.role.clone(),
            limits: Some(v1::KeyLimits {
                requests_per_second: self.requests_per_second.unwrap_or_default(),
                open_batches: self.open_batches.unwrap_or_default(),
                waiting_rows: self.waiting_rows.unwrap_or_default(),
                stored_bytes: self.stored_bytes.unwrap_or_default(),
            }),
            ttl_ms,
            secret_hash: key.hash().to_vec().into(),
        })
    }
}

fn draw() -> Result<ApiKey, Failure> {
    ApiKey::draw().map_err(|error| Failure::failed(format!("no random bytes for a key: {error}")))
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Created {
    #[serde(flatten)]
    of: Key,
    /// The whole text, with the secret.
    api_key: String,
}

impl Report for Created {
    const KIND: &'static str = "KeyCreated";

    fn table(&self) -> String {
        let Key { key_id, role, namespace, left_ms, .. } = &self.of;
        let end = match left_ms {
            Some(_) => format!("expires in {}", self.of.left()),
            None => "does not expire".to_owned(),
        };
        format!(
            "key {key_id} is a {role} of namespace {namespace} and {end}; it is shown only once\n{}\n",
            self.api_key
        )
    }
}

impl Verb for CreateArgs {
    const KIND: Kind<Self> = Kind::Change { numbered: false, confirm: false, dry_run: planned };

    /// Creates the key, and prints its text.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let key = draw()?;
        let settings = globals.connect.settings()?;
        let wanted = self.request(&settings.namespace, &key)?;
        let client = settings.client(None)?;
        let number = Numbered::new(&client, None).await?;
        let request = v1::CreateKeyRequest { request: Some(number.id()), ..wanted };
        let answer = client
            .with_leader("create an API key", |channel| {
                let request = request.clone();
                async move { services::keys(channel).create_key(request).await }
            })
            .await
            .map_err(|error| unknown(error, key.id(), number.name()))?;
        let of = answer.key.unwrap_or_default().into();
        output::emit(globals.format, &Created { of, api_key: key.reveal().to_owned() })
    }
}

impl Checked for CreateArgs {
    fn requests(&self, namespace: &str) -> anyhow::Result<Vec<PlannedRequest>> {
        // The key is drawn for the check alone.
        one(&self.name, &self.request(namespace, &draw()?)?)
    }
}

impl Planned for CreateArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        let namespace = &reader.settings.namespace;
        let keys = super::list::fetch(&reader.client, namespace).await?;
        let same = keys.iter().filter(|key| key.name == self.name).count() as u64;
        let now = match same {
            0 => format!("no key of namespace {namespace} has this name"),
            n => format!("{} of namespace {namespace} has this name", output::counted(n, "key")),
        };
        Ok(Plan::new(format!("create API key {}", self.name), now))
    }
}

/// The error and, if the request's outcome is unknown, what to do: the secret is lost with this command.
fn unknown(error: ClientError, id: &str, number: RequestName) -> anyhow::Error {
    if error.exit_code() != 8 {
        return error.into();
    }
    anyhow::Error::from(error).context(format!(
        "whether request {number} created key {id} is unknown, and its text is lost; if rolloutctl key list shows it: \
         rolloutctl key revoke {id}, and create another"
    ))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use rollout_proto::{ErrorCode, RpcError};

    use super::super::summary::{bare_sample, sample};
    use super::*;
    use crate::rolloutctl::exit;

    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        args: CreateArgs,
    }

    fn parsed(line: &str) -> CreateArgs {
        Cli::try_parse_from(std::iter::once("x").chain(line.split(' '))).unwrap().args
    }

    #[test]
    fn a_key_without_flags_is_a_client_that_does_not_expire_and_has_no_limits() {
        let key = draw().unwrap();
        let request = parsed("ci").request("team", &key).unwrap();
        assert_eq!((&*request.role, request.ttl_ms, &*request.namespace), ("client", 0, "team"));
        assert_eq!(request.limits, Some(v1::KeyLimits::default()));
        assert_eq!((&*request.id, &request.secret_hash[..]), (key.id(), &key.hash()[..]));
    }

    #[test]
    fn each_flag_is_in_the_request_and_the_secret_is_not() {
        let key = draw().unwrap();
        let line = "ci --role viewer --expires 30d --requests-per-second 5 --open-batches 6 \
                    --waiting-rows 7 --stored-bytes 8";
        let request = parsed(line).request("team", &key).unwrap();
        assert_eq!((&*request.role, request.ttl_ms), ("viewer", 2_592_000_000));
        let limits = v1::KeyLimits {
            requests_per_second: 5,
            open_batches: 6,
            waiting_rows: 7,
            stored_bytes: 8,
        };
        assert_eq!(request.limits, Some(limits));
        let secret = key.reveal().rsplit('_').next().unwrap();
        assert!(!format!("{request:?}").contains(secret));
        assert!(parsed("ci --expires 0s").request("team", &key).is_err());
    }

    #[test]
    fn a_key_with_unknown_outcome_is_reported_with_its_request_and_what_to_do() {
        let told = |code| {
            let error = ClientError::from(RpcError::new(code, "the leader was lost"));
            let error = unknown(error, "aB3dE6gH", "8842.1".parse().unwrap());
            (exit::code(&error), exit::explain(&error))
        };
        let (code, text) = told(ErrorCode::OutcomeUnknown);
        assert_eq!(code, 8, "{text}");
        for part in ["request 8842.1", "rolloutctl key list", "rolloutctl key revoke aB3dE6gH"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let (code, text) = told(ErrorCode::NoLeader);
        assert_ne!(code, 8);
        assert!(!text.contains("revoke"), "{text}");
    }

    #[test]
    fn output_matches_the_golden_file() {
        let report = Created { of: sample().into(), api_key: "rk_aB3dE6gH_secret".into() };
        crate::golden::report("key-create.txt", &report);
        let bare = Created { of: bare_sample().into(), api_key: "rk_Zz9Yy8Xx_secret".into() };
        assert!(bare.table().contains("is a viewer of namespace team and does not expire"));
    }
}
