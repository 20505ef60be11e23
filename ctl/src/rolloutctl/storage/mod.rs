//! `rolloutctl storage`: what members keep on their disks.

pub(super) mod stats;
