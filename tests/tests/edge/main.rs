//! Bad input, full disks and stores that refuse.

mod bad_input;
mod clients;
mod disk;
mod stores;
mod worker_disk;
