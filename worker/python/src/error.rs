//! Owns: how the cluster's answers become Python's exceptions.
//!
//! *Invariant:* what may pass by itself is a `TimeoutError` or a `ConnectionError`; what a person has to mend is a
//! `RolloutError`, whose text begins with the code where there is one.
//! Absent: torch's exceptions; the package has those.

use pyo3::exceptions::{PyConnectionError, PyRuntimeError, PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use rollout_proto::ClientError;

pyo3::create_exception!(
    rollout._native,
    RolloutError,
    PyRuntimeError,
    "The cluster refuses, and a repeat would be refused too."
);

/// What Python is told of it.
pub(crate) fn raised(error: ClientError) -> PyErr {
    let text = error.to_string();
    match error {
        ClientError::Connect(_) | ClientError::NoLeader { .. } => PyConnectionError::new_err(text),
        ClientError::Timeout { .. } | ClientError::OutcomeUnknown { .. } => {
            PyTimeoutError::new_err(text)
        }
        ClientError::Endpoint(_) | ClientError::NoEndpoints => PyValueError::new_err(text),
        _ => RolloutError::new_err(text),
    }
}
