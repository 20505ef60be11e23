//! `rolloutctl alarm`: conditions that need an operator.

pub(super) mod certificates;
pub(super) mod detection;
pub(super) mod list;
