//! The files of a development cluster without its directory, for fuzz targets only.
//!
//! Invariant: a file that is accepted is written and read again as the same.
//! Absent: the lock, and whether the processes run.

use std::collections::BTreeMap;
use std::path::Path;

use super::pids::Pids;
use super::saved_settings::{Saved, SavedMember};

/// Reads `pids.json`; returns the number of processes that it names.
///
/// # Panics
/// If it differs after it was written and read again: that is a finding.
pub fn pids(bytes: &[u8]) -> Option<usize> {
    let pids = Pids::parse(bytes).ok()?;
    let written = serde_json::to_vec_pretty(&pids).expect("it is written");
    assert_eq!(Pids::parse(&written).expect("what was written is read"), pids);
    Some(pids.members.len() + pids.workers.len())
}

/// Reads `dev.json`; returns the number of members that it describes.
///
/// # Panics
/// If it describes no member, or differs after it was written and read again: that is a finding.
pub fn settings(bytes: &[u8]) -> Option<usize> {
    let path = Path::new("dev.json");
    let saved = Saved::parse(bytes, path).ok()?;
    // Callers use the first member without a check.
    assert!(!saved.members.is_empty(), "a cluster has a member");
    let written = serde_json::to_vec_pretty(&saved).expect("it is written");
    assert_eq!(Saved::parse(&written, path).expect("what was written is read"), saved);
    Some(saved.members.len())
}

/// A valid `pids.json`.
pub fn written_pids() -> Vec<u8> {
    let named = |name: &str, pid: u32| BTreeMap::from([(name.to_owned(), pid)]);
    let (members, workers) = (named("c1", 2), named("w1", 3));
    let pids = Pids { dev: 1, ready: true, members, workers };
    serde_json::to_vec_pretty(&pids).expect("it is written")
}

/// A valid `dev.json`.
pub fn written_settings() -> Vec<u8> {
    let member = SavedMember {
        name: "c1".into(),
        zone: "a".into(),
        client_port: 7420,
        peer_port: 7421,
        http_port: 7422,
        api_port: 7424,
    };
    serde_json::to_vec_pretty(&Saved::of(vec![member])).expect("it is written")
}
