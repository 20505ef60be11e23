//! What `rollout` (users) and `rolloutctl` (operators) are made of.

pub mod connect;
pub mod nearest;
