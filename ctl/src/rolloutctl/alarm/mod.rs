//! `rolloutctl alarm`: what somebody should do something about.

pub(super) mod certificates;
pub(super) mod list;
pub(super) mod seen;
