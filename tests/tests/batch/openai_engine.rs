//! The engine `openai`: a model server that the agent did not start, with a fleet of three members.

use anyhow::{Context, Result, ensure};
use rollout_tests::{
    Batch, Fleet, FleetOptions, ModelServer, WorkerOptions, eventually_or_show, output,
};
use serde_json::json;
use std::fmt::Write as _;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(120);
const ROWS: u64 = 1000;
/// Rows at the server at once.
const AT_ONCE: u64 = 2 * 8;

/// Submits prompts and messages, alternating.
fn submit(fleet: &Fleet, name: &str) -> Result<Batch> {
    let mut text = String::new();
    for row in 0..ROWS {
        let id = format!("{name}-{row}");
        let line = match row % 2 {
            0 => json!({"id": id, "prompt": format!("say {row}"), "tag": row}),
            _ => json!({"id": id, "messages": [
                {"role": "system", "content": "Answer in one word."},
                {"role": "user", "content": format!("say {row}")},
            ]}),
        };
        writeln!(text, "{line}")?;
    }
    let input = fleet.path(&format!("{name}.jsonl"));
    std::fs::write(&input, text)?;
    Batch::submit_file(fleet, name, input, ROWS, "")
}

/// Waits until every slot of the worker reports this reason for taking no work, or none does.
fn until_ineligible(fleet: &Fleet, why: Option<&str>) {
    eventually_or_show("the slots say whether they take work", PATIENCE, |seen| {
        let list = fleet.ctl_json(&["--timeout", "5s", "worker", "list"]).ok()?;
        *seen = list.to_string();
        let slots = list["workers"][0]["slots"].as_array()?;
        let told = |slot: &serde_json::Value| match why {
            Some(why) => slot["ineligible"].as_str().is_some_and(|told| told.contains(why)),
            None => slot["ineligible"].as_str().is_none_or(str::is_empty),
        };
        (!slots.is_empty() && slots.iter().all(told)).then_some(())
    });
}

#[test]
fn a_server_that_is_killed_in_the_middle_of_a_batch_loses_and_doubles_no_row() -> Result<()> {
    let mut server = ModelServer::start()?;
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let engine = format!(
        "kind = \"openai\"\nbase_url = {:?}\nslots = 2\nconcurrency = {}\n",
        server.url(),
        AT_ONCE / 2
    );
    let head = "[timing]\nprobe_ms = 200\n[part]\nlinger_ms = 200\n".into();
    fleet.start_worker("w1", &WorkerOptions { engine, head })?;
    let mut batch = submit(&fleet, "served")?;
    batch.until(&fleet, "rows are done", |c| c.done >= 100);
    server.kill();
    // A probe replaces the first reason after 200 ms. Both contain this.
    until_ineligible(&fleet, Some("Connection refused"));
    let counts = batch.counts(&fleet).context("counts")?;
    ensure!(counts.failed == 0 && counts.done < ROWS, "{counts:?}");
    // Meanwhile the leader dies, too.
    let leader = fleet.leader();
    fleet.member_process(&leader).kill();
    fleet.leader_other_than(&leader);
    fleet.start_member(&leader)?;
    server.start_again()?;
    batch.finish(&fleet)?;
    until_ineligible(&fleet, None);
    let counts = batch.counts(&fleet).context("counts")?;
    ensure!((counts.done, counts.failed) == (ROWS, 0), "{counts:?}");
    let answered = server.answered();
    let (prompts, answers) = (answered.len() as u64, answered.values().sum::<u64>());
    // Answers that the worker had not read when the server was killed are repeated.
    let again = ROWS..=ROWS + AT_ONCE;
    ensure!(prompts == ROWS && again.contains(&answers), "{answers} answers to {prompts} rows");
    let out = batch.output.to_string_lossy().into_owned();
    let verified = output(fleet.rollout(&["verify", "served", "--output", &out]), PATIENCE)?;
    ensure!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stderr));
    fleet.verify()?;
    fleet.passed()
}
