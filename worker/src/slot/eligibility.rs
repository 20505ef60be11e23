//! Owns: whether a slot can take work, which depends on its engine.
//!
//! Invariant: an unreachable engine gets no more rows, and those that wait for it go back; the slot polls it until it
//! answers. The slot reports every change, including a change of loaded models, to the session, which registers it.
//! Absent: the store's part in it, which the session knows; engines that fail their rows (`failing_rows`).

use std::time::Duration;

use super::{Event, Slot};

impl Slot {
    pub(super) fn probe_later(&mut self) {
        self.probe_after(self.probe_every);
    }

    pub(super) fn probe_after(&mut self, wait: Duration) {
        let engine = self.engine.clone();
        self.tasks.spawn(async move {
            tokio::time::sleep(wait).await;
            Event::Probed(engine.probe().await)
        });
    }

    pub(super) fn probed(&mut self, result: Result<(), String>) {
        let reason = result.err();
        match reason {
            Some(_) => self.probe_later(),
            None => self.note_loaded(),
        }
        self.set_ineligible(reason);
    }

    pub(super) fn set_ineligible(&mut self, reason: Option<String>) {
        let changed = self.ineligible.send_if_modified(|old| {
            let changed = *old != reason;
            if changed {
                match &reason {
                    Some(reason) => {
                        tracing::warn!(slot = self.index, reason, "the slot takes no work")
                    }
                    None => tracing::info!(slot = self.index, "the slot takes work again"),
                }
                *old = reason;
            }
            changed
        });
        if changed {
            self.eligibility.notify_one();
        }
    }

    /// The engine may have loaded other models than its last process, or may serve other routes than before.
    pub(super) fn note_loaded(&mut self) {
        let loaded = self.engine.loaded();
        if loaded != self.loaded {
            self.loaded = loaded;
            self.eligibility.notify_one();
        }
    }

    pub(super) fn engine_is_gone(&mut self, reason: &str) {
        if self.ineligible.borrow().is_some() {
            return;
        }
        self.set_ineligible(Some(format!("the engine cannot be reached: {reason}")));
        self.probe_later();
        self.give_back_queued();
    }
}
