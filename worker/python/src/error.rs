//! Owns: the conversion of the cluster's answers to Python exceptions.
//!
//! *Invariant:* a transient problem is a `TimeoutError` or a `ConnectionError`. A problem that needs an operator is a
//! `RolloutError`, whose text begins with the error code if there is one.
//! Absent: torch's exceptions; the package has those.

use pyo3::exceptions::{
    PyConnectionError, PyOSError, PyRuntimeError, PyTimeoutError, PyValueError,
};
use pyo3::prelude::*;
use rollout_proto::ClientError;
use rollout_training::TrainError;

pyo3::create_exception!(
    rollout._native,
    RolloutError,
    PyRuntimeError,
    "The cluster refuses, and a repeat would be refused too."
);

pyo3::create_exception!(
    rollout._native,
    HasToRecover,
    RolloutError,
    "The others have recovered without this trainer, or a trainer is gone, with state that the others may not have."
);

/// The Python exception for a client error.
pub(crate) fn raised(error: ClientError) -> PyErr {
    exception_of(&error)
}

/// The Python exception for a trainer's error: `OSError` for a store error or a damaged checkpoint; `ConnectionError`,
/// a kind of `OSError`, for a transient one.
pub(crate) fn raised_training(error: &TrainError) -> PyErr {
    match error {
        _ if error.has_to_recover() => HasToRecover::new_err(error.to_string()),
        TrainError::Cluster(error) => exception_of(error),
        TrainError::Store(error) if error.retryable() => {
            PyConnectionError::new_err(error.to_string())
        }
        _ => PyOSError::new_err(error.to_string()),
    }
}

fn exception_of(error: &ClientError) -> PyErr {
    let text = error.to_string();
    match error {
        ClientError::Connect(_) | ClientError::NoLeader { .. } => PyConnectionError::new_err(text),
        // A call that is repeated after a timeout must be safe to repeat.
        ClientError::OutcomeUnknown { forgotten: true, .. } => RolloutError::new_err(text),
        ClientError::Timeout { .. } | ClientError::OutcomeUnknown { .. } => {
            PyTimeoutError::new_err(text)
        }
        ClientError::Endpoint(_) | ClientError::NoEndpoints => PyValueError::new_err(text),
        _ => RolloutError::new_err(text),
    }
}
