//! Plans of changes to certificates, to the keys that issue them, and to join tokens.
//!
//! Invariant: no token is shown or used, and no key is made.

use std::time::{Duration, UNIX_EPOCH};

use rollout_proto::{CallOptions, Security, enrolment, pki, services, v1};

use super::{Plan, Reader, changes_nothing};
use crate::connect::ConnectArgs;
use crate::output::{counted, rfc3339};
use crate::rolloutctl::Failure;
use crate::rolloutctl::cert::revoke::certificates;
use crate::rolloutctl::cli::{CertVerb, TokenVerb};

pub(super) fn plan(connect: &ConnectArgs, verb: CertVerb) -> anyhow::Result<Plan> {
    let there = |path: &std::path::Path| if path.exists() { "is there" } else { "is not there" };
    Ok(match verb {
        CertVerb::InitCa(args) => {
            let key = args.ca_dir.join("ca.key");
            let now = format!("{} {}", key.display(), there(&key));
            Plan::new(
                format!("create an authority in {} unless it has one", args.ca_dir.display()),
                now,
            )
        }
        CertVerb::InitIssuer(args) => {
            let key = args.out_dir.join("issuer.key");
            let now = format!("{} {}", key.display(), there(&key));
            let would = format!("create an issuing key below {}", args.ca_dir.display());
            Plan::new(would, now)
        }
        CertVerb::Issue(args) => {
            let file = args.out_dir.join(format!("{}-{}.pem", args.role, args.name));
            let key = args.ca_dir.join("ca.key");
            if !key.exists() {
                let text =
                    format!("{} holds no authority: create one first", args.ca_dir.display());
                return Err(Failure::failed(text).into());
            }
            let would = format!("issue a certificate of {} {}", args.role, args.name);
            Plan::new(would, format!("{} {}", file.display(), there(&file)))
        }
        CertVerb::Enrol(args) => {
            let files = enrolment::files_in(&args.out_dir, &args.name);
            let would = format!("get a certificate of {} by a join token", args.name);
            Plan::new(would, format!("{} {}", files.cert.display(), there(&files.cert)))
        }
        CertVerb::Renew => renewal(connect)?,
        CertVerb::Inspect(_)
        | CertVerb::Status(_)
        | CertVerb::Revoke(_)
        | CertVerb::Unrevoke(_)
        | CertVerb::Revocations(_) => return Err(changes_nothing()),
    })
}

/// Whether the plan of a verb needs the cluster's state.
pub(super) fn asks_the_cluster(verb: &CertVerb) -> bool {
    matches!(verb, CertVerb::Revoke(_) | CertVerb::Unrevoke(_))
}

/// Of the caller's own certificate.
fn renewal(connect: &ConnectArgs) -> anyhow::Result<Plan> {
    let Security::Mtls(files) = connect.settings()?.security else {
        return Err(Failure::usage("in plaintext there is no certificate to renew").into());
    };
    let info = pki::inspect(&files.cert)?;
    let ends_s = u64::try_from(info.validity.not_after_unix).unwrap_or_default();
    let ends = rfc3339(UNIX_EPOCH + Duration::from_secs(ends_s));
    let now = format!("{} ends at {ends}", files.cert.display());
    Ok(Plan::new("renew your own certificate", now))
}

impl Reader {
    pub(super) async fn revocation(&self, verb: CertVerb) -> anyhow::Result<Plan> {
        let (identities, revoked): (Vec<Option<String>>, _) = match verb {
            CertVerb::Revoke(args) => {
                let would = certificates(args.identity.as_deref(), args.issued_before);
                (vec![args.identity], Some(would))
            }
            CertVerb::Unrevoke(args) if args.everyone => (vec![None], None),
            CertVerb::Unrevoke(args) => (args.identities.into_iter().map(Some).collect(), None),
            _ => return Err(changes_nothing()),
        };
        let answer = self
            .client
            .with_leader_opts("list revocations", CallOptions::read(), |channel| async move {
                services::certificates(channel)
                    .list_revocations(v1::ListRevocationsRequest {})
                    .await
            })
            .await?;
        let mut plans = Vec::with_capacity(identities.len());
        for identity in &identities {
            let (all, identity) = (&answer.revocations, identity.as_deref());
            plans.push(revocation_plan(all, identity, revoked.as_deref()));
        }
        Ok(Plan::of_all(plans))
    }

    pub(super) async fn token(&self, verb: TokenVerb) -> anyhow::Result<Plan> {
        let (names, create) = match verb {
            TokenVerb::Create(args) => (vec![args.name], true),
            TokenVerb::Revoke(args) => (args.names, false),
            TokenVerb::List(_) => return Err(changes_nothing()),
        };
        let answer = self
            .client
            .with_leader_opts("list join tokens", CallOptions::read(), |channel| async move {
                services::tokens(channel).list_tokens(v1::ListTokensRequest {}).await
            })
            .await?;
        let mut plans = Vec::with_capacity(names.len());
        for name in &names {
            plans.push(token_plan(&answer.tokens, name, create)?);
        }
        Ok(Plan::of_all(plans))
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
        None => Plan::new(format!("accept certificates of {whose} again"), now),
    }
}

fn token_plan(tokens: &[v1::TokenInfo], name: &str, create: bool) -> Result<Plan, Failure> {
    let now = match tokens.iter().find(|token| token.name == name) {
        Some(_) if create => {
            let text = format!("there is a token {name} already: revoke it, or name another");
            return Err(Failure::conflict(text));
        }
        Some(token) => {
            format!("it was used {} of {}", token.uses, counted(token.uses_max.into(), "time"))
        }
        None => "it is not there".to_owned(),
    };
    Ok(match create {
        true => Plan::new(format!("create join token {name}"), now),
        false => Plan::new(format!("revoke token {name}"), now),
    })
}
