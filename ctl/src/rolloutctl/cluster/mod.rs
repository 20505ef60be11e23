//! `rolloutctl cluster`: the members as one.

pub mod bootstrap;
pub mod set;
pub mod settings;
pub mod upgrade;
pub mod verify;
