//! Owns: workers, their slots and their cordons.

pub(crate) mod cordon;
pub(crate) mod pool_view;
pub(crate) mod setting;
pub(crate) mod size;
pub(crate) mod slot_image;
pub(crate) mod worker;
pub(crate) mod worker_ops;
