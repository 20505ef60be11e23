//! Owns: this member's identity, from its data directory.
//!
//! Invariant: the identity file is written last when a member is adopted, so a directory with an identity has its
//! stores, and a directory without one is not part of any cluster and never votes.
//! Absent: the file's format; `rollout-storage` has it.

use std::path::Path;

use rollout_storage::Identity as Stored;

use crate::config::RaftConfig;
use crate::errors::OpenError;
use crate::member::ClusterId;
use crate::state::stores::{IMAGE_DIR, LOG_DIR};

/// A member's identity. Fixed for the life of its data directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub cluster_id: ClusterId,
    /// Its number in that cluster.
    pub member_id: u64,
    pub name: String,
}

impl Identity {
    /// The identity in the configured directory, `None` if there is none; refuses a directory that contradicts the
    /// configuration or itself. Blocks.
    pub(crate) fn load(config: &RaftConfig) -> Result<Option<Self>, OpenError> {
        let dir = &config.data_dir;
        let Some(stored) = Stored::load(dir)? else { return Ok(None) };
        let expected = Stored {
            cluster_id: config
                .cluster_id
                .map_or_else(|| stored.cluster_id.clone(), |id| id.to_string()),
            member_id: stored.member_id,
            name: config.name.clone(),
        };
        stored.check(dir, &expected)?;
        let cluster_id =
            stored.cluster_id.parse().map_err(|error| contradiction(dir, format!("{error}")))?;
        for part in [LOG_DIR, IMAGE_DIR] {
            if !dir.join(part).is_dir() {
                let what = format!(
                    "it has the identity of member {} ({}), but no directory {part:?}: a member that lost its \
                     votes or its log must not vote again; replace it under a new id",
                    stored.member_id, stored.name
                );
                return Err(contradiction(dir, what));
            }
        }
        Ok(Some(Self { cluster_id, member_id: stored.member_id, name: stored.name }))
    }

    /// Writes the identity file. Blocks.
    pub(crate) fn create(&self, dir: &Path) -> Result<(), OpenError> {
        let stored = Stored {
            cluster_id: self.cluster_id.to_string(),
            member_id: self.member_id,
            name: self.name.clone(),
        };
        Ok(stored.create(dir)?)
    }
}

pub(crate) fn contradiction(dir: &Path, what: String) -> OpenError {
    OpenError::Contradiction { dir: dir.display().to_string(), what }
}
