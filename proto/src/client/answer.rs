//! The header with which every answer describes its cluster.
//!
//! *Invariant:* the client rejects an answer whose header is behind what the client has seen, whatever its content.
//!
//! Absent: the decision itself (`members`).

use crate::v1;

/// An answer. Before the client returns it, it checks the answer's header, if there is one.
pub trait HasHeader {
    /// The header; `None` if the message has none.
    fn header(&self) -> Option<&v1::ClusterHeader>;
}

macro_rules! with_header {
    ($name:ident) => {
        impl HasHeader for v1::$name {
            fn header(&self) -> Option<&v1::ClusterHeader> {
                self.header.as_ref()
            }
        }
    };
}

// A call for each message of the contract with a header.
include!(concat!(env!("OUT_DIR"), "/headers.rs"));

impl HasHeader for v1::CountersResponse {
    fn header(&self) -> Option<&v1::ClusterHeader> {
        None
    }
}

/// A stream's messages have their own headers: pass each to [`super::Client::observe`].
impl<T> HasHeader for tonic::Streaming<T> {
    fn header(&self) -> Option<&v1::ClusterHeader> {
        None
    }
}
