//! `rolloutctl dataset ...`: the data that training jobs read.

pub(crate) mod create;
pub(crate) mod delete;
pub(crate) mod describe;
pub(crate) mod list;
mod summary;

use rollout_proto::{ClientError, v1};

use crate::rolloutctl::dry_run::Reader;

/// The dataset of that name, if it exists.
async fn find(reader: &Reader, name: &str) -> Result<Option<v1::Dataset>, ClientError> {
    match describe::fetch(&reader.client, &reader.settings.namespace, name).await {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.exit_code() == 4 => Ok(None),
        Err(error) => Err(error),
    }
}
