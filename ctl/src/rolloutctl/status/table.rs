//! The survey on one screen.
//!
//! Invariant: every member has a line, even one that does not answer: its line has the phase that failed. Every alarm
//! has a line too, with its fix.

use rollout_proto::pki::RENEWAL_WITHIN_S;

use super::{AWAITING_REPLACE, Alarm, Survey};
use crate::output::{Align, Report, Table, bytes, count, duration};
use crate::rolloutctl::remaining_validity::{RemainingValidity, Stage, days_or_hours};

impl Report for Survey {
    const KIND: &'static str = "ClusterStatus";

    fn table(&self) -> String {
        self.screen(&[])
    }

    fn wide(&self) -> String {
        self.screen(&["ADDRESS", "IMAGE AT", "RESIDENT"])
    }
}

impl Survey {
    fn screen(&self, more: &[&str]) -> String {
        let id = self.cluster_id.as_deref().map_or("none", |id| &id[..id.len().min(8)]);
        let leader = self.leader.as_deref().unwrap_or("none");
        let mut text = format!(
            "cluster {id}    {}    quorum {}/{}    leader {leader}    epoch {}    as of {}\n\n",
            self.health, self.voters_reachable, self.voters, self.coord_epoch, self.as_of
        );
        text.push_str(&self.member_table(more).to_string());
        for unknown in &self.unknown {
            text.push_str(&format!("unknown  {unknown}\n"));
        }
        text.push_str(&format!(
            "\nworkers  {} ready   {} suspect   {} draining\nruns     {} running   {} paused   {} ended\n",
            self.workers_ready,
            self.workers_suspect,
            self.workers_draining,
            self.runs_running,
            self.runs_paused,
            self.runs_ended
        ));
        for run in &self.stuck_runs {
            text.push_str(&format!("stuck    run {}: {}\n", run.display_name(), run.problem()));
        }
        if self.stuck_runs_more > 0 {
            text.push_str(&format!(
                "stuck    {} more: rolloutctl run list\n",
                self.stuck_runs_more
            ));
        }
        text.push_str(&self.alarm_lines());
        text
    }

    fn alarm_lines(&self) -> String {
        if self.alarms.is_empty() {
            return "alarms   none\n".into();
        }
        let line = |alarm: &Alarm| {
            let whose = alarm.member.as_ref().map(|name| format!(" {name}")).unwrap_or_default();
            format!("alarm    {}{whose}: {}   fix: {}\n", alarm.kind, alarm.what, alarm.fix)
        };
        self.alarms.iter().map(line).collect()
    }

    /// Cells without a column are omitted.
    fn member_table(&self, more: &[&str]) -> Table {
        let mut table = Table::new(&[
            "MEMBER", "ZONE", "ROLE", "TERM", "APPLIED", "BEHIND", "IMAGE", "LOG", "CERT", "UP",
            "VERSION", "PROBLEM",
        ])
        .and(more)
        .align(3, Align::Right)
        .align(4, Align::Right)
        .align(5, Align::Right);
        for member in &self.members {
            let Some(report) = &member.report else {
                let role = if member.distrusted { "distrusted" } else { "unreachable" };
                let mut cells = vec![member.name.clone(), "-".into(), role.into()];
                cells.resize(11, "-".into());
                let why = member.problem.clone().unwrap_or_default();
                cells.push(format!("{} at {}", why, member.address));
                cells.extend([member.address.clone(), "-".into(), "-".into()]);
                table.row(cells);
                continue;
            };
            let leads = self.leader.as_deref() == Some(member.name.as_str());
            let counts = !leads && report.takes_part();
            let behind = if counts { count(report.behind) } else { "-".into() };
            let problem = match report.has_quorum {
                _ if report.role == AWAITING_REPLACE => "its disk is empty: it has no vote",
                true => "",
                false => "reaches no majority",
            };
            table.row([
                member.name.clone(),
                report.zone.clone(),
                report.role.clone(),
                report.term.to_string(),
                report.applied_index.to_string(),
                behind,
                bytes(report.image_bytes),
                bytes(report.log_bytes),
                report.cert().map_or("-".into(), cert),
                duration(report.uptime_seconds),
                report.version.clone(),
                problem.into(),
                member.address.clone(),
                report.image_index.to_string(),
                bytes(report.resident_bytes),
            ]);
        }
        table
    }
}

/// The remaining validity of a certificate, marked if it is an alarm.
fn cert(left: RemainingValidity) -> String {
    match left.stage(RENEWAL_WITHIN_S) {
        Stage::Good => days_or_hours(left.seconds),
        Stage::Due => format!("{} !", days_or_hours(left.seconds)),
        Stage::Ended => "expired !".into(),
    }
}
