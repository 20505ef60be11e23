//! `rolloutctl cluster`: the members as one.

pub mod bootstrap;
pub mod upgrade;
pub mod verify;
