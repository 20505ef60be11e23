//! An agent's guarantees, tested with a fake cluster.

mod engines;
mod fake;
mod heartbeats;
mod leaders;
mod parts;
mod rows;
mod setup;
mod shutdown;
mod store_refusals;
