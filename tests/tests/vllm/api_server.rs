//! vLLM's own OpenAI API server, which the worker calls and did not start, is killed in the middle of a batch.

use std::net::TcpListener;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Stdio};

use anyhow::{Context, Result, ensure};
use rollout_tests::{Batch, Fleet, FleetOptions, WorkerOptions, eventually, output};

use super::setup::{LOADING, MODEL_LEN, completions, python, rows, script_of, tiny_model};

const ROWS: u64 = 400;

/// The server and all processes that it has started; killed on drop.
struct Served(Child);

impl Served {
    fn start(fleet: &Fleet, model: &str, port: u16) -> Result<Self> {
        let (port, length) = (port.to_string(), MODEL_LEN.to_string());
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(fleet.path("vllm-server.log"))?;
        let server = script_of(&python().0, &["-m", "vllm.entrypoints.openai.api_server"])
            .args(["--model", model, "--served-model-name", "tiny", "--host", "127.0.0.1"])
            .args(["--port", &port, "--dtype", "float32", "--enforce-eager"])
            .args(["--max-model-len", &length, "--max-num-seqs", "8"])
            .stdout(Stdio::from(log.try_clone()?))
            .stderr(Stdio::from(log))
            .process_group(0)
            .spawn()?;
        Ok(Self(server))
    }

    fn kill(&mut self) {
        let group = -(self.0.id() as i32);
        // SAFETY: a signal to the group of a child of this process, which has not been waited for.
        unsafe { libc::kill(group, libc::SIGKILL) };
        let _ = self.0.wait();
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Waits until the worker's slots take work, or report why they do not.
fn until_it_takes_work(fleet: &Fleet, takes: bool) {
    eventually("the worker says whether its slots take work", LOADING, || {
        let list = fleet.ctl_json(&["worker", "list"]).ok()?;
        let slots = list["workers"][0]["slots"].as_array()?;
        let works =
            |slot: &serde_json::Value| slot["ineligible"].as_str().is_none_or(str::is_empty);
        (!slots.is_empty() && slots.iter().all(|slot| works(slot) == takes)).then_some(())
    });
}

#[test]
fn vllms_own_server_is_killed_and_every_row_has_one_result() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let model = tiny_model(&fleet)?;
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let mut server = Served::start(&fleet, &model, port)?;
    let engine = format!(
        "kind = \"openai\"\nbase_url = \"http://127.0.0.1:{port}\"\nmodels = [\"tiny\"]\nconcurrency = 8\n"
    );
    let head = "[timing]\nprobe_ms = 500\n".into();
    fleet.start_worker("w1", &WorkerOptions { engine, head })?;
    until_it_takes_work(&fleet, true);
    let input = fleet.path("served.jsonl");
    std::fs::write(&input, rows(ROWS))?;
    let lines = "[model]\nuri = \"tiny\"\n[sampling]\ntemperature = 0.0\nmax_tokens = 48\n";
    let mut batch = Batch::submit_file(&fleet, "served", input, ROWS, lines)?;
    batch.until(&fleet, "rows are done", |c| c.done >= 20);
    server.kill();
    until_it_takes_work(&fleet, false);
    let counts = batch.counts(&fleet).context("counts")?;
    ensure!(counts.failed == 0 && counts.done < ROWS, "{counts:?}");
    let _server = Served::start(&fleet, &model, port)?;
    let status = batch.process().wait(LOADING).with_context(|| fleet.logs())?;
    ensure!(status.success(), "{status}{}", fleet.logs());
    let done = completions(&batch)?;
    ensure!(done.len() as u64 == ROWS, "{} rows", done.len());
    for row in &done {
        ensure!(row["completion_tokens"].as_u64().is_some_and(|tokens| tokens > 0), "{row}");
    }
    let out = batch.output.to_string_lossy().into_owned();
    let verified = output(fleet.rollout(&["verify", "served", "--output", &out]), LOADING)?;
    ensure!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stderr));
    fleet.verify()?;
    fleet.passed()
}
