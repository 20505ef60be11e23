//! `rolloutctl leader`: who leads, and who shall.

pub(super) mod show;
pub(super) mod transfer;
