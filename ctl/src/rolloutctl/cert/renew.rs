//! `rolloutctl cert renew`: renews the caller's own certificate, if it came from `cert enroll`.
//!
//! Invariant: the key stays here, and the certificate is replaced in place.

use std::time::{Duration, UNIX_EPOCH};

use rollout_proto::{Security, enrollment, pki};

use super::enroll::{Certified, failed};
use crate::connect::ConnectArgs;
use crate::output::{self, rfc3339};
use crate::rolloutctl::Failure;
use crate::rolloutctl::dry_run::{Plan, PlannedHere, planned_here};
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// No arguments.
#[derive(Debug, clap::Args)]
pub(crate) struct RenewArgs {}

impl Verb for RenewArgs {
    const KIND: Kind<Self> =
        Kind::Change { numbered: false, confirm: false, dry_run: planned_here };

    /// Renews the caller's own certificate in place.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let settings = globals.connect.settings()?;
        let Security::Mtls(files) = settings.security.clone() else {
            return Err(Failure::usage("without TLS there is no certificate to renew").into());
        };
        let client = settings.client(None)?;
        let enrolled = enrollment::renew(&client, &files).await.map_err(failed)?;
        output::emit(globals.format, &Certified::new(files, enrolled))
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
