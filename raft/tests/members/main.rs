//! Three members with real disks and sockets in one process, one concept per module. One program: each that links this
//! crate costs half a minute of compilation.

mod backup;
mod cluster;
mod consensus;
mod events;
mod failover;
mod golden_data;
mod joining;
mod lagging_members;
mod latency;
mod membership;
mod versions;
