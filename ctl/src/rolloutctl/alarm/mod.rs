//! `rolloutctl alarm`: what somebody should do something about.

pub(super) mod list;
