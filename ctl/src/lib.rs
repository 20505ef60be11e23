//! What `rollout` (users) and `rolloutctl` (operators) are made of.

pub mod connect;
pub mod input;
pub mod item_id;
pub mod nearest;
