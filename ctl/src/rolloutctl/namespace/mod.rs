//! `rolloutctl namespace`: what each may use and does use.

pub(super) mod describe;
pub(super) mod everywhere;
pub(super) mod list;
pub(super) mod set_quota;
mod shown;
