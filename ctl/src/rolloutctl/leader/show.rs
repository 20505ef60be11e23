//! `rolloutctl leader show`: who leads now.

use serde::Serialize;

use crate::output::{self, Report, u64_string};
use crate::rolloutctl::status;
use crate::rolloutctl::verb::{Globals, Kind, Verb};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Leader {
    leader: String,
    #[serde(serialize_with = "u64_string")]
    coord_epoch: u64,
}

impl Report for Leader {
    const KIND: &'static str = "Leader";

    fn table(&self) -> String {
        format!("{} leads in epoch {}\n", self.leader, self.coord_epoch)
    }
}

/// No arguments.
#[derive(Debug, clap::Args)]
pub(crate) struct ShowArgs {}

impl Verb for ShowArgs {
    const KIND: Kind<Self> = Kind::ReadOnly;

    /// Prints it. Exit status 3 if there is no leader, 7 if no member is trusted, or trusts the caller.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let survey = status::survey(&globals.connect.client(None)?).await;
        if let Some(failure) = survey.leaderless() {
            return Err(failure.into());
        }
        let leader = survey.leader.unwrap_or_default();
        output::emit(globals.format, &Leader { leader, coord_epoch: survey.coord_epoch })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_matches_the_golden_file() {
        let report = Leader { leader: "c1".into(), coord_epoch: 7 };
        crate::golden::report("leader-show.txt", &report);
    }
}
