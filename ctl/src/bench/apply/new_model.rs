//! The first run of a model that slots have, and its end: both change which runs these slots fit.

use rollout_ledger::{OpKind, RunAction, op};
use serde::Serialize;

use super::ledger_fixture::{LedgerFixture, Models, NOBODY_ASKS, Size};
use super::loss::{Commands, Longest};
use crate::output::{Report, count};

/// Models that come and go.
const TIMES: u32 = 50;

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NewModelFigures {
    pub(super) cluster_version: u32,
    pub(super) runs: u32,
    pub(super) slots: u32,
    /// Slots that have the model: half of them, or all.
    pub(super) slots_with_it: u32,
    pub(super) create: Commands,
    pub(super) end: Commands,
}

impl Report for NewModelFigures {
    const KIND: &'static str = "BenchApplyNewModel";

    fn table(&self) -> String {
        format!(
            "new model at {:>7} of {:>7} slots beside {:>6} runs: longest creation {:.2} ms, longest end {:.2} ms\n",
            count(self.slots_with_it.into()),
            count(self.slots.into()),
            count(self.runs.into()),
            self.create.max_ms,
            self.end.max_ms,
        )
    }
}

/// Measures, where each run uses a different model.
pub(super) fn measure(size: Size) -> anyhow::Result<NewModelFigures> {
    let mut fixture = LedgerFixture::of(size)?;
    let (mut create, mut end) = (Longest::default(), Longest::default());
    for time in 0..TIMES {
        let model = match size.models {
            Models::Any => format!("new-{time}"),
            _ => NOBODY_ASKS.into(),
        };
        let (run, taken) = fixture.create_run(&format!("new-{time}"), model)?;
        create.add(taken);
        let (action, reason) = (RunAction::Cancel, String::new());
        end.add(fixture.ops([OpKind::ControlRun(op::ControlRun { run, action, reason })])?.1);
    }
    let slots_with_it = if size.models == Models::Any { size.slots } else { size.slots / 2 };
    let Size { runs, slots, cluster_version, .. } = size;
    let (create, end) = (create.figures(), end.figures());
    Ok(NewModelFigures { cluster_version, runs, slots, slots_with_it, create, end })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_matches_the_golden_file() {
        let commands = |max_ms| Commands { commands: TIMES.into(), max_ms };
        let report = NewModelFigures {
            cluster_version: 3,
            runs: 100,
            slots: 10_000,
            slots_with_it: 5_000,
            create: commands(1.5),
            end: commands(0.25),
        };
        crate::golden::report("bench-apply-new-model.txt", &report);
    }
}
