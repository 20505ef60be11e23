//! `rolloutctl alarm list`: what is wrong with the cluster now, and the command that fixes it.
//!
//! Invariant: it works without a quorum, and matches the lines under the table of `status`. Absent: a
//! history; `events` and the metrics have one.

use serde::Serialize;

use crate::output::{self, Report, Table};
use crate::rolloutctl::Failure;
use crate::rolloutctl::list_options::ListOptions;
use crate::rolloutctl::status::{Alarm, DISTRUSTED, survey};
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Exit status 1 where there is any, for monitors.
#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    /// Exit with status 1 if there is an alarm, with --selector one that matches
    #[arg(long)]
    exit_code: bool,
    #[command(flatten)]
    options: ListOptions,
}

/// All of them.
#[derive(Debug, Serialize)]
pub(in crate::rolloutctl) struct Alarms {
    pub(in crate::rolloutctl) alarms: Vec<Alarm>,
}

impl Report for Alarms {
    const KIND: &'static str = "AlarmList";

    fn table(&self) -> String {
        if self.alarms.is_empty() {
            return "no alarm\n".into();
        }
        let mut table = Table::new(&["ALARM", "MEMBER", "WHAT", "FIX"]);
        for alarm in &self.alarms {
            let member = alarm.member.clone().unwrap_or_else(|| "-".into());
            table.row([alarm.kind.into(), member, alarm.what.clone(), alarm.fix.clone()]);
        }
        table.to_string()
    }
}

impl Verb for ListArgs {
    const KIND: Kind<Self> = Kind::ReadOnly;

    /// Asks every member. Exit status 7 if no member is trusted, or trusts the caller.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let client = globals.connect.client(None)?;
        let survey = survey(&client).await;
        // If no member trusts the caller, nothing is known about the cluster's problems.
        let distrusted = survey.leaderless().filter(|_| survey.health == DISTRUSTED);
        let mut alarms = survey.alarms;
        self.options.apply(&mut alarms)?;
        let any = !alarms.is_empty();
        output::emit(globals.format, &Alarms { alarms })?;
        match (distrusted, any && self.exit_code) {
            (Some(failure), _) => Err(failure.into()),
            (None, true) => Err(Failure::reported(1).into()),
            (None, false) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_matches_the_golden_file() {
        let alarm = Alarm {
            kind: "MEMBER_UNREACHABLE",
            member: Some("c2".into()),
            what: "refused at tcp".into(),
            fix: "start it".into(),
        };
        let nobody = Alarm {
            kind: "NO_LEADER",
            member: None,
            what: "1 of 3 voters answer".into(),
            fix: "start the others".into(),
        };
        crate::golden::report("alarm-list.txt", &Alarms { alarms: vec![nobody, alarm] });
    }
}
