//! The holder of a client session, as the ledger stores it.
//!
//! *Invariant:* two certificates of one role and name that list different namespaces are two holders: neither uses the
//! other's sessions. This applies from version [`NAMED_FROM`] on; before, members of an earlier build compare holders
//! differently and would refuse such requests.

use rollout_proto::Identity;

/// From this cluster version on every member compares namespaces too.
const NAMED_FROM: u32 = 3;
/// Bytes of the hash, which has twice as many hexadecimal digits. With the longest role and name they fit into the
/// ledger's bound.
const HASH_BYTES: usize = 16;

/// The holder of sessions that `identity` opens, in a cluster of this version.
pub(crate) fn holder_of(identity: &Identity, version: u32) -> String {
    if version < NAMED_FROM || identity.namespaces.is_empty() {
        return identity.to_string();
    }
    let mut namespaces = identity.namespaces.clone();
    namespaces.sort_unstable();
    namespaces.dedup();
    let named = Identity { namespaces, ..identity.clone() };
    let hash = blake3::hash(named.to_uri().as_bytes());
    let hex: String =
        hash.as_bytes()[..HASH_BYTES].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}#{hex}", identity.role)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rollout_ledger::limits::HOLDER_BYTES_MAX;
    use rollout_proto::Role;

    fn identity(name: &str, namespaces: &[&str]) -> Identity {
        let namespaces = namespaces.iter().map(|n| (*n).to_owned()).collect();
        Identity::new(Role::Client, name, namespaces).unwrap()
    }

    #[test]
    fn certificates_of_one_name_and_other_namespaces_are_other_holders() {
        let of = |namespaces: &[&str]| holder_of(&identity("ann", namespaces), NAMED_FROM);
        assert_eq!(of(&[]), "client/ann");
        assert_ne!(of(&["a"]), of(&["b"]));
        assert_ne!(of(&["a"]), of(&[]));
        assert_eq!(of(&["a", "b"]), of(&["b", "a"]));
        assert_ne!(of(&["a"]), holder_of(&identity("bob", &["a"]), NAMED_FROM));
        let long = identity(&"n".repeat(128), &["a"]);
        assert!(holder_of(&long, NAMED_FROM).len() <= HOLDER_BYTES_MAX);
    }

    #[test]
    fn members_of_an_earlier_build_see_the_holder_that_they_compare() {
        let ann = identity("ann", &["a"]);
        assert_eq!(holder_of(&ann, NAMED_FROM - 1), "client/ann");
    }
}
