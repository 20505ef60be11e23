//! Owns: the revisions of a run: the name for an edited input or another model, sampling or bound, and the revision
//! that a batch file means now.
//!
//! NAME is the first revision, NAME.r2 the second, and so on; together they are a family. Existing revisions never
//! change: another input or spec is the next revision, except for another deadline or weight.
//! Invariant: the same input and spec, apart from these two, are the same run unless it was cancelled. No revision
//! begins while another is running.
//! Absent: reuse of results (`result_reuse`).

use futures::StreamExt;
use rollout_proto::{Client, v1};
use rollout_storage::{BlobError, BlobStore, same_store};

use super::error::BatchError;
use super::{name, spec, submit, watch};
use crate::export;
use crate::result_reuse::Source;

/// Earlier revisions whose results may be reused, the latest first.
pub const SOURCES_MAX: usize = 8;

/// A name's family and revision: `a.r3` is (`a`, 3), `a` is (`a`, 1).
pub fn split(name: &str) -> (&str, u32) {
    let parsed = name.rsplit_once(".r").and_then(|(base, number)| {
        let plain = !number.starts_with('0') && number.bytes().all(|b| b.is_ascii_digit());
        let number = number.parse().ok().filter(|n| plain && *n >= 2)?;
        (!base.is_empty()).then_some((base, number))
    });
    parsed.unwrap_or((name, 1))
}

/// The name of a revision.
pub fn run_name(base: &str, number: u32) -> String {
    if number <= 1 { base.to_owned() } else { format!("{base}.r{number}") }
}

/// Every revision of one run that the cluster knows, the oldest first.
#[derive(Debug, Clone)]
pub struct Family {
    base: String,
    runs: Vec<v1::RunSummary>,
}

/// The run that a batch file means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    /// A run that has this input, or begins with it and accepts more rows.
    There(String),
    /// A run with this spec that lacks part of the input.
    Complete(String),
    /// A resumed run that differs or has ended. The cluster, or the reading of the input, reports how.
    Mismatch(String),
    /// A run that stays open and gets the rows that it lacks.
    Append(String),
    /// A run that does not exist yet.
    New(String),
}

impl Family {
    /// The family that `name` belongs to.
    pub async fn find(client: &Client, namespace: &str, name: &str) -> Result<Self, BatchError> {
        let (base, _) = split(name);
        let mut runs = submit::list(client, namespace).await?;
        runs.retain(|run| split(&run.name).0 == base);
        runs.sort_by_key(|run| split(&run.name).1);
        Ok(Self { base: base.to_owned(), runs })
    }

    pub fn latest(&self) -> Option<&v1::RunSummary> {
        self.runs.last()
    }

    /// The revision with that name, if it exists.
    pub fn get(&self, name: &str) -> Option<&v1::RunSummary> {
        self.runs.iter().find(|run| run.name == name)
    }

    /// Revisions that have not ended.
    pub fn unended(&self) -> impl Iterator<Item = &v1::RunSummary> {
        self.runs.iter().filter(|run| !watch::ended(run))
    }

    /// The name of the next revision.
    pub fn next(&self) -> Result<String, BatchError> {
        let number = self.latest().map_or(1, |run| split(&run.name).1 + 1);
        let next = run_name(&self.base, number);
        name::check(&next).map_err(BatchError::Name)?;
        Ok(next)
    }

    /// The revisions before `name` with the same model and sampling, the latest first: no other shares an item with
    /// it. `store_url` is the cluster's.
    pub async fn before(
        &self,
        client: &Client,
        store_url: &str,
        name: &str,
        wanted: &v1::RunSpec,
    ) -> Result<Vec<Source>, BatchError> {
        let (_, number) = split(name);
        let mut found = Vec::new();
        for run in self.runs.iter().rev().filter(|run| split(&run.name).1 < number) {
            if found.len() == SOURCES_MAX {
                break;
            }
            // Its objects are being deleted.
            if run.state() == v1::RunState::Deleting {
                continue;
            }
            let described = submit::describe(client, &run.namespace, &run.name).await?;
            let store = store_of(&described, store_url)?;
            let of = match export::listing(client, &store, &described).await {
                Ok(listing) => listing.spec,
                // Nothing of a lost manifest is reused.
                Err(BatchError::Store(BlobError::Missing { .. })) => continue,
                Err(error) => return Err(error),
            };
            let same = spec::model_id(&of) == spec::model_id(wanted);
            if same && of.sampling_json == wanted.sampling_json {
                found.push(Source { described, store });
            }
        }
        Ok(found)
    }
}

/// The URL of a run's store: its own, or the cluster's.
pub fn store_of(
    described: &v1::DescribeRunResponse,
    store_url: &str,
) -> Result<BlobStore, BatchError> {
    let own = described.spec.as_ref().map_or("", |spec| spec.store_url.as_str());
    Ok(BlobStore::open(if own.is_empty() { store_url } else { own })?)
}

/// Whether two specs belong to the same run, in a cluster with the store `cluster`, which a spec need not name. The
/// input's file names do not count, and neither do the deadline and the weight, which may be changed while the run is
/// open.
pub fn same_spec(a: &v1::RunSpec, b: &v1::RunSpec, cluster: &str) -> bool {
    let plain = |spec: &v1::RunSpec| {
        let mut spec =
            v1::RunSpec { input_name: String::new(), deadline_ms: 0, weight: 0, ..spec.clone() };
        if same_store(&spec.store_url, cluster) {
            spec.store_url.clear();
        }
        spec
    };
    plain(a) == plain(b)
}

/// A run's full spec, and its segments, in order: their objects and row counts.
pub async fn segments(
    client: &Client,
    store: &BlobStore,
    described: &v1::DescribeRunResponse,
) -> Result<(v1::RunSpec, Vec<(v1::BlobRef, u32)>), BatchError> {
    let mut listing = export::listing(client, store, described).await?;
    let mut segments = Vec::new();
    while let Some(segment) = listing.segments.next().await {
        let segment = segment?;
        segments.push((segment.blob.unwrap_or_default(), segment.rows));
    }
    Ok((listing.spec, segments))
}

/// What an input means if `latest` has the same spec. `None`: another revision.
pub fn compare(latest: &v1::RunSummary, have: &[[u8; 32]], ours: &[[u8; 32]]) -> Option<Choice> {
    use v1::RunState::{Cancelled, DeadlineExceeded, Deleting};
    if matches!(latest.state(), Cancelled | Deleting | DeadlineExceeded) {
        return None;
    }
    let name = latest.name.clone();
    match latest.input_closed {
        true => (have == ours).then_some(Choice::There(name)),
        false if ours.starts_with(have) => Some(Choice::Complete(name)),
        false => have.starts_with(ours).then_some(Choice::There(name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rollout_proto::METHODS;

    #[test]
    fn a_name_says_its_family_and_revision() {
        for (name, family) in [
            ("a", ("a", 1)),
            ("a.r2", ("a", 2)),
            ("a.r10", ("a", 10)),
            ("a.r1", ("a.r1", 1)),
            ("a.r02", ("a.r02", 1)),
            ("a.rx", ("a.rx", 1)),
            ("a.r", ("a.r", 1)),
            ("a.r2.r3", ("a.r2", 3)),
            ("a.r99999999999", ("a.r99999999999", 1)),
        ] {
            assert_eq!(split(name), family, "{name}");
            assert_eq!(run_name(family.0, family.1), name);
        }
    }

    #[test]
    fn a_spec_that_names_the_clusters_store_is_that_of_one_without_a_store() {
        let of = |url: &str, priority| {
            let (store_url, input_name) = (url.to_owned(), url.to_owned());
            v1::RunSpec { store_url, input_name, priority, ..v1::RunSpec::default() }
        };
        let same = |one: &str, other: &str| same_spec(&of(one, 1), &of(other, 1), "s3://own/a");
        for own in ["", "s3://own/a", "s3://own/a/"] {
            assert!(same(own, "") && same("s3://own/a", own), "{own}");
            assert!(!same(own, "s3://own/a/b") && !same("s3://own", own), "{own}");
        }
        assert!(same("s3://more", "s3://more"));
        assert!(!same_spec(&of("", 1), &of("", 2), "s3://own/a"));
    }

    #[test]
    fn a_run_whose_deadline_or_weight_was_changed_is_the_same_run() {
        let of = |deadline_ms, weight| v1::RunSpec { deadline_ms, weight, ..Default::default() };
        assert!(same_spec(&of(0, 1), &of(3_600_000, 1), "s3://own/a"));
        assert!(same_spec(&of(0, 1), &of(0, 3), "s3://own/a"));
    }

    /// Another operation that changes the spec of a run fails this test until [`same_spec`] leaves out what it changes.
    #[test]
    fn what_the_cluster_changes_in_a_spec_makes_no_other_run() {
        let methods = METHODS.iter().map(|method| method.path);
        let changed: Vec<&str> =
            methods.filter_map(|path| path.strip_prefix("/rollout.v1.Runs/Set")).collect();
        assert_eq!(changed, ["Deadline", "Weight"]);
    }

    #[test]
    fn an_input_is_the_same_run_an_append_or_another_revision() {
        let run = |closed, state: v1::RunState| v1::RunSummary {
            name: "a".into(),
            input_closed: closed,
            state: state as i32,
            ..Default::default()
        };
        let (one, two, three) = ([1; 32], [2; 32], [3; 32]);
        let (there, complete) =
            (Some(Choice::There("a".into())), Some(Choice::Complete("a".into())));
        use v1::RunState::{Cancelled, DeadlineExceeded, Finished, Running};
        for (closed, state, have, ours, expected) in [
            (true, Finished, &[one, two][..], &[one, two][..], &there),
            (true, Running, &[one, two], &[one, two], &there),
            (true, Running, &[one, two], &[one], &None),
            (true, Finished, &[one], &[one, two], &None),
            (true, Finished, &[one, two], &[two, one], &None),
            (false, Running, &[one], &[one, two], &complete),
            (false, Running, &[], &[one], &complete),
            (false, Running, &[one], &[one], &complete),
            (false, Running, &[one, three], &[one], &there),
            (false, Running, &[one, three], &[one, two], &None),
            (true, Cancelled, &[one], &[one], &None),
            (true, DeadlineExceeded, &[one], &[one], &None),
        ] {
            assert_eq!(compare(&run(closed, state), have, ours), *expected, "{have:?} {ours:?}");
        }
    }
}
