//! Plans of changes to certificates, to the keys that issue them, and to join tokens.
//!
//! Invariant: no token is shown or used, and no key is made.

use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use rollout_proto::{CallOptions, Security, enrolment, pki, services, v1};

use super::{Plan, Planned, PlannedHere, Reader};
use crate::connect::ConnectArgs;
use crate::output::{counted, rfc3339};
use crate::rolloutctl::Failure;
use crate::rolloutctl::cert::enroll::EnrollArgs;
use crate::rolloutctl::cert::init_ca::InitCaArgs;
use crate::rolloutctl::cert::init_issuer::InitIssuerArgs;
use crate::rolloutctl::cert::issue::IssueArgs;
use crate::rolloutctl::cert::renew::RenewArgs;
use crate::rolloutctl::cert::revoke::{RevokeArgs, certificates};
use crate::rolloutctl::cert::unrevoke::UnrevokeArgs;
use crate::rolloutctl::token::create::CreateArgs;
use crate::rolloutctl::token::revoke::RevokeArgs as TokenRevokeArgs;

/// Whether a file exists, in words.
fn there(path: &Path) -> &'static str {
    if path.exists() { "exists" } else { "does not exist" }
}

impl PlannedHere for InitCaArgs {
    fn plan(self, _connect: &ConnectArgs) -> anyhow::Result<Plan> {
        let key = self.ca_dir.join("ca.key");
        let now = format!("{} {}", key.display(), there(&key));
        let would = format!("create a CA in {} unless it has one", self.ca_dir.display());
        Ok(Plan::new(would, now))
    }
}

impl PlannedHere for InitIssuerArgs {
    fn plan(self, _connect: &ConnectArgs) -> anyhow::Result<Plan> {
        let key = self.out_dir.join("issuer.key");
        let now = format!("{} {}", key.display(), there(&key));
        let would = format!("create an intermediate CA below {}", self.ca_dir.display());
        Ok(Plan::new(would, now))
    }
}

impl PlannedHere for IssueArgs {
    fn plan(self, _connect: &ConnectArgs) -> anyhow::Result<Plan> {
        let file = self.out_dir.join(format!("{}-{}.pem", self.role, self.name));
        let key = self.ca_dir.join("ca.key");
        if !key.exists() {
            let text = format!("{} contains no CA: create one first", self.ca_dir.display());
            return Err(Failure::failed(text).into());
        }
        let would = format!("issue a certificate for {} {}", self.role, self.name);
        Ok(Plan::new(would, format!("{} {}", file.display(), there(&file))))
    }
}

impl PlannedHere for EnrollArgs {
    fn plan(self, _connect: &ConnectArgs) -> anyhow::Result<Plan> {
        let files = enrolment::files_in(&self.out_dir, &self.name);
        let would = format!("enroll {} with a join token", self.name);
        Ok(Plan::new(would, format!("{} {}", files.cert.display(), there(&files.cert))))
    }
}

impl PlannedHere for RenewArgs {
    fn plan(self, connect: &ConnectArgs) -> anyhow::Result<Plan> {
        let Security::Mtls(files) = connect.settings()?.security else {
            return Err(Failure::usage("without TLS there is no certificate to renew").into());
        };
        let info = pki::inspect(&files.cert)?;
        let ends_s = u64::try_from(info.validity.not_after_unix).unwrap_or_default();
        let ends = rfc3339(UNIX_EPOCH + Duration::from_secs(ends_s));
        let now = format!("{} expires at {ends}", files.cert.display());
        Ok(Plan::new("renew your own certificate", now))
    }
}

impl Planned for RevokeArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        let would = certificates(self.identity.as_deref(), self.issued_before);
        reader.revocations(&[self.identity], Some(&would)).await
    }
}

impl Planned for UnrevokeArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        let identities: Vec<Option<String>> = match self.everyone {
            true => vec![None],
            false => self.identities.into_iter().map(Some).collect(),
        };
        reader.revocations(&identities, None).await
    }
}

impl Planned for CreateArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        reader.tokens(&[self.name], true).await
    }
}

impl Planned for TokenRevokeArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        reader.tokens(&self.names, false).await
    }
}

impl Reader {
    /// Plans the revocation of the certificates of each identity, or with `None` in `revoked`, its withdrawal.
    async fn revocations(
        &self,
        identities: &[Option<String>],
        revoked: Option<&str>,
    ) -> anyhow::Result<Plan> {
        let answer = self
            .client
            .with_leader_opts("list revocations", CallOptions::read(), |channel| async move {
                services::certificates(channel)
                    .list_revocations(v1::ListRevocationsRequest {})
                    .await
            })
            .await?;
        let plan = |identity: &Option<String>| {
            revocation_plan(&answer.revocations, identity.as_deref(), revoked)
        };
        Ok(Plan::of_all(identities.iter().map(plan).collect()))
    }

    async fn tokens(&self, names: &[String], create: bool) -> anyhow::Result<Plan> {
        let answer = self
            .client
            .with_leader_opts("list join tokens", CallOptions::read(), |channel| async move {
                services::tokens(channel).list_tokens(v1::ListTokensRequest {}).await
            })
            .await?;
        let plan = |name: &String| token_plan(&answer.tokens, name, create);
        Ok(Plan::of_all(names.iter().map(plan).collect()))
    }
}

/// `revoked` has the certificates to revoke; None: those of the identity are to be accepted again.
fn revocation_plan(all: &[v1::Revocation], identity: Option<&str>, revoked: Option<&str>) -> Plan {
    let whose = identity.unwrap_or("everyone");
    let now = match all.iter().find(|there| there.identity == identity.unwrap_or_default()) {
        Some(there) => {
            let which = certificates(identity, there.issued_before_s);
            format!("{which} are revoked")
        }
        None => format!("no certificates of {whose} are revoked"),
    };
    match revoked {
        Some(which) => Plan::new(format!("revoke {which}"), now),
        None => Plan::new(format!("accept the certificates of {whose} again"), now),
    }
}

fn token_plan(tokens: &[v1::TokenInfo], name: &str, create: bool) -> Plan {
    let now = match tokens.iter().find(|token| token.name == name) {
        Some(token) => {
            format!("it was used {} of {}", token.uses, counted(token.uses_max.into(), "time"))
        }
        None => "it does not exist".to_owned(),
    };
    match create {
        true => Plan::new(format!("create join token {name}"), now),
        false => Plan::new(format!("revoke token {name}"), now),
    }
}
