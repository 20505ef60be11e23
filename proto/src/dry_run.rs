//! Owns: the requests that the leader can check in a dry run, and their methods.
//!
//! *Invariant:* the option `dry_run` of a method in its .proto file decides. Each of the methods changes the cluster.
//! Absent: the check, which the coordinator makes.

use crate::v1;

/// A request that `DryRuns/DryRun` can check.
pub trait DryRunnable: prost::Message + Default {
    /// The path of its method.
    const METHOD: &'static str;
}

// `for_each_dry_run!`
include!(concat!(env!("OUT_DIR"), "/dry_runs.rs"));

macro_rules! dry_runnable {
    ($($path:literal => $service:ident.$method:ident($request:ident);)*) => {
        $(impl DryRunnable for v1::$request {
            const METHOD: &'static str = $path;
        })*

        /// The paths of the methods whose requests `DryRuns/DryRun` can check.
        pub const DRY_RUNS: &[&str] = &[$($path),*];
    };
}

for_each_dry_run!(dry_runnable);

impl v1::DryRunRequest {
    /// Asks whether the leader would grant the request.
    pub fn of<T: DryRunnable>(request: &T) -> Self {
        Self { method: T::METHOD.to_owned(), request: request.encode_to_vec().into() }
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;
    use crate::methods::Method;

    /// The roles of `DryRuns/DryRun` are those of the methods that it checks.
    #[test]
    fn a_role_may_ask_for_a_dry_run_if_it_may_call_a_method_that_has_one() {
        let dry_run = Method::find("/rollout.v1.DryRuns/DryRun").unwrap();
        for method in DRY_RUNS.iter().filter_map(|path| Method::find(path)) {
            let listed = method.roles.iter().all(|role| dry_run.roles.contains(role));
            assert!(listed, "{}: {:?}", method.path, method.roles);
        }
    }

    #[test]
    fn a_request_is_named_by_its_method() {
        let request = v1::DeleteRunRequest { name: "eval".into(), ..Default::default() };
        let asked = v1::DryRunRequest::of(&request);
        assert_eq!(asked.method, "/rollout.v1.Runs/DeleteRun");
        assert_eq!(v1::DeleteRunRequest::decode(asked.request).unwrap(), request);
    }
}
