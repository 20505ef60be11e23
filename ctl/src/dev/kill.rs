//! `rollout dev kill`: kills a process of a development cluster, to show that the cluster survives.
//!
//! Invariant: a PID is signaled only while the directory's lock proves that the `rollout dev` that wrote it runs.
//! Absent: starting the process again; `rollout dev` does that.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use rollout_proto::{Client, ClientConfig, Security};

use super::args::KillArgs;
use super::certs;
use super::config;
use super::layout::Layout;
use super::pids::{DirLock, Pids};
use super::saved_settings::Saved;
use crate::rolloutctl::status::{self, Survey};
use crate::stdio::to_stderr;

/// Stands for the member that leads.
const LEADER: &str = "leader";
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(10);

/// Kills the process with SIGKILL. If it led, waits for the next leader.
///
/// # Errors
/// No cluster runs in the directory, it has no such process, or no member leads within a minute.
pub(super) async fn run(dir: &Path, args: &KillArgs) -> anyhow::Result<()> {
    let layout = Layout::existing(dir)
        .with_context(|| format!("there is no cluster in {}", dir.display()))?;
    ensure!(
        DirLock::try_take(&layout)?.is_none(),
        "no cluster runs in {}; `rollout dev` starts one",
        layout.root().display()
    );
    let client = client(&layout)?;
    let before = await_leader(&client, |_| true).await?;
    let leader = before.leader.unwrap_or_default();
    let name = if args.process == LEADER { &leader } else { &args.process };
    let pid = pid_of(&layout, name)?;
    let began = Instant::now();
    // SAFETY: kill has no memory effects.
    let killed = unsafe { libc::kill(pid.cast_signed(), libc::SIGKILL) };
    ensure!(killed == 0, "cannot kill {name} (pid {pid}): {}", std::io::Error::last_os_error());
    if *name != leader {
        to_stderr(&format!("killed {name} (pid {pid})\n"));
        return Ok(());
    }
    to_stderr(&format!("killed {name} (pid {pid}), the leader of epoch {}\n", before.coord_epoch));
    let after = await_leader(&client, |survey| survey.coord_epoch > before.coord_epoch).await?;
    to_stderr(&format!(
        "{} leads epoch {}, {} ms after the kill\n",
        after.leader.unwrap_or_default(),
        after.coord_epoch,
        began.elapsed().as_millis()
    ));
    Ok(())
}

fn client(layout: &Layout) -> anyhow::Result<Client> {
    let saved = Saved::load(layout)?
        .with_context(|| format!("there is no cluster in {}", layout.root().display()))?;
    let security = Security::Mtls(layout.tls_files("admin", certs::PERSON));
    Ok(Client::new(ClientConfig::new(config::endpoints(&saved), security))?)
}

fn pid_of(layout: &Layout, name: &str) -> anyhow::Result<u32> {
    let pids = Pids::load(layout)?.unwrap_or_default();
    let mut all = pids.members;
    all.extend(pids.workers);
    let known: Vec<&str> = all.keys().map(String::as_str).collect();
    all.get(name).copied().with_context(|| {
        format!(
            "no process {name} runs; these do: {} (`leader` is the member that leads)",
            known.join(", ")
        )
    })
}

/// Asks the members until one of them leads as wanted.
async fn await_leader<F: Fn(&Survey) -> bool>(
    client: &Client,
    wanted: F,
) -> anyhow::Result<Survey> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let survey = status::survey(client).await;
        if survey.leader.is_some() && wanted(&survey) {
            return Ok(survey);
        }
        if Instant::now() >= deadline {
            bail!("no member led within {PATIENCE:?}; {}", survey.problems());
        }
        tokio::time::sleep(PAUSE).await;
    }
}
