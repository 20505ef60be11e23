//! Owns: the state as a whole: commands, apply, versions, image, digest, invariants.

pub(crate) mod apply;
pub(crate) mod apply_cost;
pub mod clock;
pub(crate) mod command;
pub(crate) mod digest;
pub(crate) mod event;
pub(crate) mod image;
pub(crate) mod image_load;
pub(crate) mod invariants;
pub(crate) mod ledger;
pub(crate) mod namespace_rule;
pub(crate) mod operation;
pub(crate) mod restore;
pub mod seeded;
pub(crate) mod settle;
pub(crate) mod version_gate;
pub mod view;
