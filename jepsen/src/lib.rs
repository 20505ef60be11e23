//! Proof by trying to break it: histories of what clients saw, and a judge of them.
//!
//! A history goes through four steps, each a module: [`formats`] reads its events, [`operations`]
//! pairs each invocation with its answer, a [`models`] entry says what each answer means, and
//! [`search`] looks for an order of the operations of one key that explains every answer.
//! [`judge`] runs the search over all keys within a budget and explains a violation to a person.
//!
//! *Invariant:* these modules depend on nothing of the product, so that a misunderstanding there
//! cannot hide here. What drives members and workers is kept beside them, never below them.

pub mod check;
pub mod formats;
pub mod history;
pub mod judge;
pub mod models;
pub mod operations;
pub mod search;
pub mod value;
