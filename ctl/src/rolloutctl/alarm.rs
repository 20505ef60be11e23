//! `rolloutctl alarm`: conditions that need an operator.

pub(super) mod list;
