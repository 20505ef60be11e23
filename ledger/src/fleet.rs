//! Owns: workers, their slots and their cordons.

pub(crate) mod cordon;
pub(crate) mod deregister;
pub(crate) mod drain;
pub(crate) mod pool_view;
pub(crate) mod register;
pub(crate) mod session;
pub(crate) mod setting;
pub(crate) mod size;
pub(crate) mod slot;
pub(crate) mod suspect;
pub(crate) mod unsuspect;
pub(crate) mod worker;
pub(crate) mod workers;
