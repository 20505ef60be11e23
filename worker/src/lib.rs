//! The worker agent and its engines
