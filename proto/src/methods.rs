//! Owns: the methods of the contract, and what their options in the .proto files say of each.
//!
//! Invariant: each method is listed once, in the order of the paths, and has at least one role; the build fails
//! otherwise.
//! Absent: checks of names and namespaces. They need the decoded request, so services make them.

use crate::identity::Role;

/// A method of the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Method {
    /// `/rollout.v1.Runs/CreateRun`.
    pub path: &'static str,
    /// The roles that may call it.
    pub roles: &'static [Role],
    /// Whether the audit log has a line for each request.
    pub audited: bool,
    /// Whether a request is a stream of messages.
    pub client_streaming: bool,
    /// Whether an answer is a stream of messages.
    pub server_streaming: bool,
}

/// Every method of the contract, in the order of the paths.
pub static METHODS: &[Method] = include!(concat!(env!("OUT_DIR"), "/methods.rs"));

impl Method {
    /// The method at that path; `None` if the contract has none. Each request needs it, so it takes a handful of
    /// comparisons.
    pub fn find(path: &str) -> Option<&'static Method> {
        let at = METHODS.binary_search_by(|method| method.path.cmp(path)).ok()?;
        METHODS.get(at)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use prost::Message as _;

    use super::*;
    use crate::v1;

    #[test]
    fn the_list_has_every_method_of_the_contract_once_and_finds_it() {
        let set = prost_types::FileDescriptorSet::decode(v1::DESCRIPTORS).unwrap();
        let mut contract = BTreeMap::new();
        for file in &set.file {
            for service in &file.service {
                for method in &service.method {
                    let path = format!("/{}.{}/{}", file.package(), service.name(), method.name());
                    contract.insert(path, (method.client_streaming(), method.server_streaming()));
                }
            }
        }
        assert!(contract.len() > 80, "the descriptors are not read right: {contract:?}");
        let streams = |method: &Method| (method.client_streaming, method.server_streaming);
        let listed: BTreeMap<String, (bool, bool)> =
            METHODS.iter().map(|method| (method.path.to_owned(), streams(method))).collect();
        assert_eq!(listed, contract);
        assert_eq!(METHODS.len(), contract.len(), "a method is listed twice");
        for method in METHODS {
            assert_eq!(Method::find(method.path), Some(method));
            assert!(!method.roles.is_empty(), "{}", method.path);
        }
        for unknown in ["", "/", "/rollout.v1.Runs/CreateRun/", "rollout.v1.Runs/CreateRun"] {
            assert_eq!(Method::find(unknown), None);
        }
    }
}
