//! A training job on a fleet: trainers are processes that share nothing but the cluster and the object store, and
//! trainers and members are killed between checkpoints and in the middle of them.

mod members;
mod ranks;
mod rounds;
mod setup;
