//! Owns: the state as a whole: commands, apply, versions, image, digest, invariants.

pub mod clock;
pub mod seeded;
pub mod view;
pub(crate) mod apply;
pub(crate) mod command;
pub(crate) mod digest;
pub(crate) mod event;
pub(crate) mod gate;
pub(crate) mod heavy;
pub(crate) mod image;
pub(crate) mod image_load;
pub(crate) mod invariants;
pub(crate) mod ledger;
pub(crate) mod restore;
pub(crate) mod settle;
