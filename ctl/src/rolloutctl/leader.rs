//! `rolloutctl leader`: show and transfer leadership.

pub(super) mod show;
pub(super) mod transfer;
