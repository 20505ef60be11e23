//! What is durable, and what damage is found, in one program: each file tests one kind of file or object.
//!
//! Absent: SIGKILL and the loss of power (`crash`), whose program starts itself again.

mod blobs;
mod formats;
mod identity;
mod image;
mod objects;
mod raft_log;
