//! An agent's guarantees, tested with a fake cluster.

mod ends;
mod engines;
mod fake;
mod heartbeats;
mod leaders;
mod parts;
mod rows;
mod setup;
mod store_refusals;
