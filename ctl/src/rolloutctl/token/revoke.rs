//! `rolloutctl token revoke NAME`: nobody is let in by it any more. Certificates that it brought stay good until they end.

use rollout_proto::{services, v1};
use serde::Serialize;

use crate::connect::ConnectArgs;
use crate::output::{self, Format, Report};
use crate::rolloutctl::request::{Numbered, RequestName};

/// Which token.
#[derive(Debug, clap::Args)]
pub(crate) struct RevokeArgs {
    /// The token's name
    pub(in crate::rolloutctl) name: String,
}

#[derive(Serialize)]
struct Revoked {
    name: String,
}

impl Report for Revoked {
    const KIND: &'static str = "TokenRevoked";

    fn table(&self) -> String {
        format!("token {} is revoked\n", self.name)
    }
}

/// Revokes it.
pub(crate) async fn run(
    connect: &ConnectArgs,
    format: Format,
    args: RevokeArgs,
    again: Option<RequestName>,
) -> anyhow::Result<()> {
    let client = connect.settings()?.client(None)?;
    let number = Numbered::new(&client, again).await?;
    let request = v1::RevokeTokenRequest { request: Some(number.id()), name: args.name.clone() };
    client
        .with_leader("revoke a join token", |channel| {
            let request = request.clone();
            async move { services::tokens(channel).revoke_token(request).await }
        })
        .await
        .map_err(|error| number.failed(error))?;
    output::emit(format, &Revoked { name: args.name })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_output_is_the_one_that_is_kept() {
        let report = Revoked { name: "rack-7".into() };
        crate::golden::report("token-revoke.txt", &report);
    }
}
