//! Training jobs: rendezvous, stores, barriers, shards and checkpoints.

mod barrier;
mod checkpoint_objects;
mod python;
mod python_host;
mod ranks_and_rounds;
mod rendezvous;
mod round_stores;
mod store_gateway;
mod store_waits;
mod training_jobs;
