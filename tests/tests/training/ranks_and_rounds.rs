//! A training job on a fleet: trainers are processes that share only the cluster and the object store, and trainers
//! and members are killed between checkpoints and during them.

mod members;
mod ranks;
mod rounds;
mod setup;
