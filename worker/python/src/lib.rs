//! The extension module `rollout._native`: the parts of this Python package that must be fast or run without the
//! interpreter's lock.
//!
//! One module serves every Python from 3.11 on (abi3), so whichever interpreter loads it gets the right one.
//! Absent: engines and torch; those are in Python.

mod agent;
mod call;
mod checkpoint;
mod cluster;
mod error;
mod gateway;
mod participant;
mod rendezvous;
mod store;
mod trainer;
mod wait;

use pyo3::prelude::*;

/// The module.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<agent::Agent>()?;
    module.add_class::<checkpoint::CheckpointWriter>()?;
    module.add_class::<checkpoint::Writing>()?;
    module.add_function(wrap_pyfunction!(checkpoint::restore_checkpoint, module)?)?;
    module.add_class::<cluster::Cluster>()?;
    module.add_class::<gateway::Gateway>()?;
    module.add_class::<participant::Participant>()?;
    module.add_class::<rendezvous::Rendezvous>()?;
    module.add_class::<rendezvous::Round>()?;
    module.add_class::<store::JobStore>()?;
    module.add_class::<trainer::Claim>()?;
    module.add_class::<trainer::Saving>()?;
    module.add_class::<trainer::Trainer>()?;
    module.add("HasToRecover", module.py().get_type::<error::HasToRecover>())?;
    module.add("RolloutError", module.py().get_type::<error::RolloutError>())?;
    module.add("PROTOCOL_VERSION", rollout_engine_protocol::VERSION)
}
