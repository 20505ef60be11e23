//! The coordinator daemon: services, dispatch, liveness
