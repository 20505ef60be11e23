//! `rolloutctl run`: batch runs, by name.
//!
//! Invariant: every verb shows a run the same way. Absent: submitting; that is `rollout infer batch`.

pub(super) mod cancel;
pub(super) mod control;
pub(super) mod delete;
pub(super) mod describe;
pub(super) mod list;
pub(super) mod pause;
pub(super) mod resume;
pub(super) mod retry;
pub(super) mod set_deadline;
pub(super) mod set_weight;
pub(super) mod watch;
