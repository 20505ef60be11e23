//! Bad input, full disks, stores that refuse, and clients that others wrote.

mod bad_input;
mod clients;
mod disk;
mod openai_client;
mod stores;
mod worker_disk;
