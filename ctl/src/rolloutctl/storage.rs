//! `rolloutctl storage`: the data on members' disks.

pub(super) mod stats;
