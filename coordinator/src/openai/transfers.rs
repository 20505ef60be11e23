//! Bodies that a member receives and sends at a time.
//!
//! *Invariant:* a body keeps at most two pieces in memory, so all bodies together keep at most
//! `2 * TRANSFERS_MAX * PIECE_BYTES`.

use crate::openai::error::ApiError;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bodies of content at a time.
const TRANSFERS_MAX: usize = 16;

/// Room for bodies.
pub(crate) struct Transfers(Arc<Semaphore>);

impl Default for Transfers {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(TRANSFERS_MAX)))
    }
}

impl Transfers {
    /// Room for one body, until the permit is dropped.
    ///
    /// # Errors
    /// 503 if there is none: the caller should repeat the request, here or at another member.
    pub(super) fn place(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        self.0.clone().try_acquire_owned().map_err(|_| {
            ApiError::overloaded(format!(
                "This member transfers the content of {TRANSFERS_MAX} files already."
            ))
        })
    }
}
