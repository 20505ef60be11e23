//! A vLLM engine gets rows only of runs that it can serve, by its loaded revision and its versions.

use anyhow::{Context, Result, ensure};
use rollout_tests::{Batch, Fleet, FleetOptions, eventually};
use serde_json::json;

use super::setup::{Engine, LOADING, completions, rows, tiny_model};

#[test]
fn only_runs_that_fit_revision_and_versions_are_answered() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let model = tiny_model(&fleet)?;
    let engine = Engine { lines: "revision = \"v1\"".to_owned(), ..Engine::new(&model, 8) };
    fleet.start_worker("w1", &engine.worker(""))?;
    let submit = |name: &str, revision: &str, require: &str| {
        let input = fleet.path(&format!("{name}.jsonl"));
        std::fs::write(&input, rows(20))?;
        let lines = format!(
            "[model]\nuri = \"tiny\"\nrevision = {revision:?}\n[sampling]\nmax_tokens = 8\n\
             [workers]\nrequire = {{ {require} }}\n"
        );
        Batch::submit_file(&fleet, name, input, 20, &lines)
    };
    let other = submit("other", "v2", "")?;
    let newer = submit("newer", "v1", "vllm = \">=99\"")?;
    let mut fits = submit("fits", "v1", "vllm = \">=0.32,<99\", torch = \">=2\"")?;
    let status = fits.process().wait(LOADING).with_context(|| fleet.logs())?;
    ensure!(status.success(), "{status}{}", fleet.logs());
    ensure!(completions(&fits)?.len() == 20, "rows are missing");
    for (batch, lacks) in [
        (&other, "no slot has model tiny in revision v2, but in v1"),
        (&newer, "no slot that offers model tiny has vllm >=99 (here 0.32"),
    ] {
        eventually(lacks, LOADING, || {
            let out = fleet.ctl(&["--timeout", "5s", "run", "describe", &batch.name]).ok()?;
            String::from_utf8_lossy(&out.stdout).contains(lacks).then_some(())
        });
        let counts = batch.counts(&fleet).context("no member reports the counts")?;
        ensure!(counts.done == 0 && counts.running == 0, "{}: {counts:?}", batch.name);
    }
    let list = fleet.ctl_json(&["worker", "list"])?;
    let versions = &list["workers"][0]["slots"][0]["versions"];
    let told = |name: &str| versions[name].as_str().unwrap_or_default().to_owned();
    ensure!(told("vllm").starts_with("0.32") && told("torch").starts_with('2'), "{versions}");
    ensure!(told("max_model_len") == "640" && !told("python").is_empty(), "{versions}");
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn an_engine_whose_handlers_cannot_be_made_takes_no_row_and_says_why() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let model = tiny_model(&fleet)?;
    let engine = Engine::new(&model, 8);
    let args = ", enable_auto_tool_choice = true, tool_call_parser = \"hermse\"";
    fleet.start_worker("w1", &engine.worker(args))?;
    let row = json!({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions",
        "body": {"model": "tiny", "max_tokens": 4, "messages": [{"role": "user", "content": "hello"}]}});
    let input = fleet.path("asked.jsonl");
    std::fs::write(&input, row.to_string() + "\n")?;
    let lines = "[model]\nuri = \"tiny\"\n[sampling]\n";
    let mut batch = Batch::submit_file(&fleet, "asked", input, 1, lines)?;
    eventually("the slot says why", LOADING, || {
        let list = fleet.ctl_json(&["--timeout", "5s", "worker", "list"]).ok()?;
        let why = list["workers"][0]["slots"][0]["ineligible"].as_str()?;
        why.contains("'hermse' which has not been registered").then_some(())
    });
    fleet.start_worker("w2", &engine.worker(""))?;
    let status = batch.process().wait(LOADING).with_context(|| fleet.logs())?;
    ensure!(status.success(), "{status}{}", fleet.logs());
    let output = std::fs::read_to_string(batch.output.join("output.jsonl"))?;
    ensure!(output.contains("\"status_code\":200"), "{output}");
    fleet.verify()?;
    fleet.passed()
}
