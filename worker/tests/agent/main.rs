//! What an agent guarantees, shown with a cluster that the test plays.

mod ends;
mod engines;
mod fake;
mod heartbeats;
mod leaders;
mod parts;
mod rows;
mod setup;
mod store_refusals;
