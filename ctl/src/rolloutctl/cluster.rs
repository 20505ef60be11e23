//! `rolloutctl cluster`: cluster-wide operations.

pub mod bootstrap;
pub mod set;
pub mod settings;
pub mod upgrade;
pub mod verify;
