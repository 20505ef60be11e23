//! Tests rollout by trying to break it: records histories of what clients saw, and judges them.
//!
//! A history goes through four steps, each a module: [`formats`] reads its events, [`operations`] pairs each
//! invocation with its answer, a model in [`models`] says what each answer means, and [`search`] looks for an order
//! of the operations on one key that explains every answer. [`judge`] runs the search over all keys within a budget
//! and explains a violation in words. If answers carry their log positions, [`replay`] also checks them against the
//! order of the log.
//!
//! *Invariant:* these modules depend on nothing of the product, so that a misunderstanding in the product cannot hide
//! in them. The code that drives members and workers may use them; they never use it.
//!
//! [`run`] makes histories: a [`fleet`] of real members behind a [`network`] of proxies, a [`workload`], a
//! [`nemesis`], and [`observe`]rs. A [`recorder`] writes everything down, and [`verdict`] judges the record. A
//! [`matrix`] is many runs.

pub mod bugs;
pub mod check;
pub mod delay;
pub mod events;
pub mod expected_outcome;
pub mod family;
pub mod fleet;
pub mod formats;
pub mod history;
pub mod judge;
pub mod lines;
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
