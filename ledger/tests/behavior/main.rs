//! What commands do to the ledger, in one program: each file tests one part of it.
//!
//! Absent: the comparison with the naive model (`model.rs`), and the memory of long histories (`gc_memory.rs`), which
//! needs an allocator and a process of its own.

mod bench;
mod bisection;
mod blame;
mod broken_workers;
mod fairness;
mod fleet;
mod flight_records;
mod golden;
mod incidents;
mod limits;
mod one_record;
mod pools;
mod settings;
mod transcripts;
