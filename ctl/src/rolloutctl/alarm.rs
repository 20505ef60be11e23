//! `rolloutctl alarm`: conditions that need an operator.

pub(super) mod certificates;
pub(super) mod list;
pub(super) mod seen;
