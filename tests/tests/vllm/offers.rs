//! Which runs an engine of vLLM answers: by the revision that it has loaded and the versions that it runs with.

use anyhow::{Context, Result, ensure};
use rollout_tests::{Batch, Fleet, FleetOptions, eventually};

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
        let counts = batch.counts(&fleet).context("nobody can say")?;
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
