//! Consensus: the only crate that knows openraft
