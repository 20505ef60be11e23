//! OpenAI's HTTP API under `/v1`, for programs that use the `openai` client or plain HTTP.
//!
//! Every member serves the API, whichever of them leads. A follower reads its own ledger once the leader has told it
//! how far to read, and sends changes to the leader ([`forward`]). Each resource has a file, which lists its routes.
//!
//! *Invariant:* a key decides what a request may do, never the request itself: a handler gets the [`auth::KeyCaller`]
//! that the secret proved, and reads and changes objects of that caller's namespace only.
//!
//! Absent: keys themselves, which operators create with `rolloutctl` (`grpc`), and the objects, which the ledger has.

mod answer;
pub(crate) mod auth;
pub(crate) mod batch_work;
pub(crate) mod batches;
mod content;
pub(crate) mod error;
mod files;
pub(crate) mod forward;
mod idempotency;
mod ids;
mod key_watch;
pub(crate) mod listener;
mod models;
mod multipart;
mod page;
mod range;
mod rate;
mod response_body;
mod shared_read;
pub(crate) mod state;
#[cfg(test)]
pub(crate) mod test_cluster;
mod transfers;
mod uploads;
