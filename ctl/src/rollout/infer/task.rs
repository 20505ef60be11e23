//! Owns: the task of a run whose batch file names none.
//!
//! Invariant: a resumed run keeps its task, whether or not its input still exists; any other run gets the task that
//! its input looks like.
//! Absent: what the rows of a task are.

use rollout_batch::export;
use rollout_batch::input::detect;
use rollout_batch::input::files;
use rollout_batch::input::scan::ScanError;
use rollout_batch::input::task::Task;
use rollout_batch::submission::config::BatchConfig;
use rollout_batch::submission::submit;

use super::super::error::CommandError;
use rollout_proto::Client;
use rollout_storage::BlobStore;

/// Decides the task. `resumed` is the resumed run: namespace and name.
pub(super) async fn decide(
    config: &mut BatchConfig,
    resumed: Option<(&Client, &str, &str)>,
) -> Result<(), CommandError> {
    if !config.is_undecided() {
        return Ok(());
    }
    let openai = match resumed {
        Some((client, namespace, name)) => {
            let described = submit::describe(client, namespace, name).await?;
            let store = BlobStore::open(&described.store_url)?;
            let spec = export::full_spec(&store, &described).await?;
            Task::of(&spec.engine.unwrap_or_default().task) == Task::Openai
        }
        None => {
            let found = files::find(&config.input.glob.list(), &config.dir).await?;
            let looking = tokio::task::spawn_blocking(move || detect::is_openai(&found));
            looking.await.unwrap_or(Err(ScanError::Stopped))?
        }
    };
    Ok(config.decide(openai)?)
}
