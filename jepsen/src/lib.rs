//! Proof by trying to break it: histories of what clients saw, and a judge of them.
//!
//! A history goes through four steps, each a module: [`formats`] reads its events, [`operations`]
//! pairs each invocation with its answer, a [`models`] entry says what each answer means, and
//! [`search`] looks for an order of the operations of one key that explains every answer.
//! [`judge`] runs the search over all keys within a budget and explains a violation to a person.
//! Where answers say where they stand in the log, [`replay`] judges them by that as well.
//!
//! *Invariant:* these modules depend on nothing of the product, so that a misunderstanding there
//! cannot hide here. What drives members and workers is kept beside them, never below them.
//!
//! Histories are made by [`run`]: a [`fleet`] of real members behind a [`network`] of proxies, a
//! [`workload`], a [`nemesis`], and [`observe`]rs; a [`recorder`] writes all of it down, and
//! [`verdict`] judges what was written. A [`matrix`] is many of them.

pub mod bugs;
pub mod check;
pub mod delay;
pub mod events;
pub mod fate;
pub mod fleet;
pub mod formats;
pub mod history;
pub mod judge;
pub mod matrix;
pub mod models;
pub mod nemesis;
pub mod network;
pub mod observe;
pub mod operations;
pub mod preload;
pub mod process;
pub mod recorder;
pub mod replay;
pub mod report;
pub mod run;
pub mod search;
pub mod value;
pub mod verdict;
pub mod workload;
