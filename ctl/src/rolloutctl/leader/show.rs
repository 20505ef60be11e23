//! `rolloutctl leader show`: who leads now.

use serde::Serialize;

use crate::connect::ConnectArgs;
use crate::output::{self, Format, Report, u64_string};
use crate::rolloutctl::status;

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

/// Prints it. Exit code 3 if there is no leader, 7 if no member is trusted, or trusts the caller.
pub(crate) async fn run(connect: &ConnectArgs, format: Format) -> anyhow::Result<()> {
    let survey = status::survey(&connect.client(None)?).await;
    if let Some(failure) = survey.leaderless() {
        return Err(failure.into());
    }
    let leader = survey.leader.unwrap_or_default();
    output::emit(format, &Leader { leader, coord_epoch: survey.coord_epoch })
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
