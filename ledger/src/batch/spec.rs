//! What a run asks for, what a slot offers, and when the two fit.
//!
//! *Invariant:* a spec never changes after the run was created, except for its deadline (`set_deadline.rs`) and its
//! weight (`set_weight.rs`); two submissions with the same spec digest are the same run. `same_spec` in
//! `batch/src/submission/revision.rs` leaves out these two.

use crate::batch::store_access::StoreAccess;
use crate::kernel::condition;
use crate::kernel::limits;
use crate::kernel::names::check_labels;
use crate::kernel::reply::Rejection;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The property under which a slot reports the routes of the OpenAI API that its engine serves, separated by spaces:
/// `/v1/chat/completions /v1/completions`.
pub const ROUTES_PROPERTY: &str = "routes";

/// Which engine a run needs: everything here alters results.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineSpec {
    /// Model URI.
    pub model: String,
    /// Revision of the model, or empty.
    pub revision: String,
    /// The task, usually `generate`.
    pub task: String,
    /// Canonical JSON of further settings that alter results.
    pub options_json: String,
}

/// A run as its user described it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunSpec {
    /// The engine that its rows need.
    pub engine: EngineSpec,
    /// Canonical JSON of the sampling parameters that were set.
    pub sampling_json: String,
    /// Labels that a slot must have, with these values.
    pub selector: BTreeMap<String, String>,
    /// 0 to [`limits::PRIORITY_MAX`]; a higher priority is strictly served first.
    pub priority: u8,
    /// Share among runs of one priority, 1 to [`limits::WEIGHT_MAX`].
    pub weight: u32,
    /// Rows that may be held by workers at a time; 0 for no cap.
    pub running_rows_max: u64,
    /// How long one attempt may hold a row, in ledger time; 0 for no limit.
    pub attempt_timeout_ms: u64,
    /// Rows that may fail for good before the run is paused.
    pub failures_max: u64,
    /// Attempts of a row that fails in a retryable way, 1 to [`limits::HISTORY_MAX`].
    pub attempts_max: u32,
    /// The store of its segments and parts; empty for the cluster's store.
    pub store_url: String,
    /// The user's name for the input, informational only.
    pub input_name: String,
    /// How to write the output, for the client alone.
    pub options_json: String,
    /// Whether an idle slot may run, at the tail, a row that another slot already runs.
    pub tail_duplicates: bool,
    /// Rows to run first, before any other; 0 for none.
    pub canary_rows: u64,
    /// How many of these may fail for good before the run is paused.
    pub canary_failures_max: u64,
    /// Ledger time from its end to its sealing; 0 for the cluster's default.
    pub run_ttl_ms: u64,
    /// Ledger time from its sealing to its deletion; 0 for the cluster's default.
    pub retention_ms: u64,
    /// Conditions on the versions and labels that a slot reports, by their names: `vllm` to `>=0.32`.
    pub require: BTreeMap<String, String>,
    /// Ledger time from its creation to its deadline; 0 for none.
    pub deadline_ms: u64,
    /// The URL of its completion webhook; empty for none.
    pub notify_url: String,
}

impl RunSpec {
    /// Checks every bound.
    ///
    /// # Errors
    /// [`Rejection::Invalid`] naming the first field that is out of bounds.
    pub fn check(&self) -> Result<(), Rejection> {
        let texts = [
            ("engine.model", &self.engine.model),
            ("engine.revision", &self.engine.revision),
            ("engine.task", &self.engine.task),
            ("store_url", &self.store_url),
            ("input_name", &self.input_name),
        ];
        for (name, text) in texts {
            if text.len() > limits::TEXT_BYTES_MAX {
                return Err(Rejection::Invalid(format!("{name} is too long")));
            }
        }
        if self.notify_url.len() > limits::NOTIFY_URL_BYTES_MAX {
            return Err(Rejection::Invalid("notify_url is too long".into()));
        }
        let jsons = [&self.engine.options_json, &self.sampling_json, &self.options_json];
        if jsons.iter().any(|j| j.len() > limits::JSON_BYTES_MAX) {
            return Err(Rejection::Invalid("options or sampling are too long".into()));
        }
        check_labels(&self.selector)?;
        check_labels(&self.require)?;
        for (name, required) in &self.require {
            condition::check(required)
                .map_err(|why| Rejection::Invalid(format!("require {name}: {why}")))?;
        }
        if self.engine.model.is_empty() {
            return Err(Rejection::Invalid("engine.model is empty".into()));
        }
        if self.priority > limits::PRIORITY_MAX {
            return Err(Rejection::Invalid(format!("priority is over {}", limits::PRIORITY_MAX)));
        }
        check_weight(self.weight)?;
        if self.attempts_max == 0 || self.attempts_max > limits::HISTORY_MAX as u32 {
            let max = limits::HISTORY_MAX;
            return Err(Rejection::Invalid(format!("attempts_max is not 1 to {max}")));
        }
        Ok(())
    }

    /// Restricts the run to slots that report a route, such as `/v1/embeddings`. The route must not contain commas or
    /// spaces. [`check`](Self::check) refuses a condition that is longer than [`limits::NAME_BYTES_MAX`].
    pub fn require_route(&mut self, route: &str) {
        let required = self.require.entry(ROUTES_PROPERTY.to_owned()).or_default();
        if !required.split(',').any(|term| term.trim() == route) {
            let comma = if required.is_empty() { "" } else { "," };
            *required = format!("{required}{comma}{route}");
        }
    }

    /// blake3 of the spec in its stable encoding, without the user's name for the input: the same rows from another
    /// path are the same run.
    pub fn digest(&self) -> [u8; 32] {
        let spec = Self { input_name: String::new(), ..self.clone() };
        *blake3::hash(&crate::kernel::codec::encode(&spec)).as_bytes()
    }
}

/// Checks the bounds of a weight.
///
/// # Errors
/// [`Rejection::Invalid`] with the bounds.
pub(super) fn check_weight(weight: u32) -> Result<(), Rejection> {
    if weight == 0 || weight > limits::WEIGHT_MAX {
        return Err(Rejection::Invalid(format!("weight is not 1 to {}", limits::WEIGHT_MAX)));
    }
    Ok(())
}

/// What one slot of a worker can run.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SlotOffer {
    /// Model URIs that it has loaded or may load; `*` for any. `name` stands for every revision, `name@revision` for
    /// that one, and `name@` for an unknown revision. A run without a revision accepts any.
    pub models: Vec<String>,
    /// Tasks that it can do; empty for `generate` alone.
    pub tasks: Vec<String>,
    /// Labels that selectors ask for.
    pub labels: BTreeMap<String, String>,
    /// Kind of engine, informational only.
    pub engine: String,
    /// Why it can take no work; empty if it can.
    pub ineligible: String,
    /// The versions that its engine runs with, by name, the kind of device as `gpu`, and the routes that it serves as
    /// [`ROUTES_PROPERTY`].
    pub versions: BTreeMap<String, String>,
}

/// Why a slot can take no row of a run, from the worst fit to the closest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Mismatch {
    /// The slot takes no work at all.
    Ineligible,
    /// It does not have the model or the task.
    Engine,
    /// It has the model in a revision other than the run's.
    Revision,
    /// A label is missing or differs.
    Selector,
    /// A version or a device does not meet the run's requirement.
    Require,
    /// Its worker has no access to the run's store.
    Store,
}

impl SlotOffer {
    /// Whether this slot, of a worker that can use `stores` besides the cluster's, can run `spec`.
    ///
    /// # Errors
    /// The first thing that does not fit.
    pub(crate) fn fits(&self, spec: &RunSpec, stores: &StoreAccess) -> Result<(), Mismatch> {
        if !self.ineligible.is_empty() {
            return Err(Mismatch::Ineligible);
        }
        let model = self.models.iter().any(|m| names(m, &spec.engine.model));
        let task = match self.tasks.is_empty() {
            true => spec.engine.task.is_empty() || spec.engine.task == "generate",
            false => self.tasks.contains(&spec.engine.task),
        };
        if !model || !task {
            return Err(Mismatch::Engine);
        }
        if !self.models.iter().any(|m| offers(m, &spec.engine)) {
            return Err(Mismatch::Revision);
        }
        if spec.selector.iter().any(|(k, v)| self.labels.get(k) != Some(v)) {
            return Err(Mismatch::Selector);
        }
        if self.unmet(spec).next().is_some() {
            return Err(Mismatch::Require);
        }
        if !spec.store_url.is_empty() && !stores.allows(&spec.store_url) {
            return Err(Mismatch::Store);
        }
        Ok(())
    }

    /// The conditions of a run that this slot does not meet: name, condition, and what it has instead, if anything.
    pub(crate) fn unmet<'a>(
        &'a self,
        spec: &'a RunSpec,
    ) -> impl Iterator<Item = (&'a str, &'a str, Option<&'a str>)> {
        spec.require.iter().filter_map(|(name, required)| {
            let has = self.property(name);
            let met = has.is_some_and(|has| condition::meets(has, required));
            (!met).then_some((name.as_str(), required.as_str(), has))
        })
    }

    /// What it reports under a name: a version, or else a label.
    pub(super) fn property(&self, name: &str) -> Option<&str> {
        self.versions.get(name).or_else(|| self.labels.get(name)).map(String::as_str)
    }

    /// The routes of the OpenAI API that it reports; each once.
    pub(crate) fn routes(&self) -> BTreeSet<&str> {
        self.property(ROUTES_PROPERTY).into_iter().flat_map(str::split_whitespace).collect()
    }

    /// The revisions that it names of a model; an unknown one is empty.
    pub(crate) fn revisions<'a>(&'a self, model: &'a str) -> impl Iterator<Item = &'a str> {
        let split = self.models.iter().filter_map(|offer| offer.rsplit_once('@'));
        split.filter(move |(name, _)| *name == model || *name == "*").map(|(_, revision)| revision)
    }

    pub(crate) fn check(&self) -> Result<(), Rejection> {
        let texts = self.models.iter().chain(&self.tasks).chain([&self.engine, &self.ineligible]);
        if texts.into_iter().any(|t| t.len() > limits::TEXT_BYTES_MAX) {
            return Err(Rejection::Invalid("a text of a slot's offer is too long".into()));
        }
        if self.models.len() > limits::LABELS_MAX || self.tasks.len() > limits::LABELS_MAX {
            return Err(Rejection::Invalid("a slot offers too many models or tasks".into()));
        }
        check_labels(&self.versions)?;
        check_labels(&self.labels)
    }
}

/// Whether an offer is of this model, in any revision.
fn names(offer: &str, model: &str) -> bool {
    let named = |name: &str| name == "*" || name == model;
    named(offer) || offer.rsplit_once('@').is_some_and(|(name, _)| named(name))
}

/// A slot offers any model (`*`), a model in any requested revision (`name`), or only one revision (`name@revision`),
/// which may be unknown. A run without a revision accepts any.
fn offers(offer: &str, engine: &EngineSpec) -> bool {
    let named = |name: &str| name == "*" || name == engine.model;
    named(offer)
        || offer.rsplit_once('@').is_some_and(|(name, revision)| {
            named(name) && (engine.revision.is_empty() || revision == engine.revision)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(routes: &str) -> SlotOffer {
        let versions = [(ROUTES_PROPERTY.to_owned(), routes.to_owned())].into();
        SlotOffer { models: vec!["m".into()], versions, ..SlotOffer::default() }
    }

    fn needs(routes: &[&str]) -> RunSpec {
        let engine = EngineSpec { model: "m".into(), ..EngineSpec::default() };
        let mut spec = RunSpec { engine, weight: 1, attempts_max: 1, ..RunSpec::default() };
        routes.iter().for_each(|route| spec.require_route(route));
        spec
    }

    #[test]
    fn a_run_that_needs_a_route_fits_only_slots_that_report_it_whole() {
        let fits = |routes: &str, needed: &[&str]| {
            slot(routes).fits(&needs(needed), &StoreAccess::default())
        };
        assert_eq!(fits("/v1/score /v1/embeddings", &["/v1/embeddings"]), Ok(()));
        assert_eq!(fits("/v1/score", &["/score"]), Err(Mismatch::Require));
        assert_eq!(fits("/v1/embeddings/x", &["/v1/embeddings"]), Err(Mismatch::Require));
        assert_eq!(fits("/a /b", &["/a", "/b"]), Ok(()));
        assert_eq!(fits("/a", &["/a", "/b"]), Err(Mismatch::Require));
        let silent = SlotOffer { models: vec!["m".into()], ..SlotOffer::default() };
        let spec = needs(&["/v1/score"]);
        assert_eq!(silent.fits(&spec, &StoreAccess::default()), Err(Mismatch::Require));
        assert_eq!(silent.fits(&needs(&[]), &StoreAccess::default()), Ok(()));
    }

    #[test]
    fn a_route_is_required_once_and_within_the_bound_of_conditions() {
        let twice = needs(&["/a", "/b", "/a"]);
        assert_eq!(twice.require[ROUTES_PROPERTY], "/a,/b");
        assert_eq!(twice.check(), Ok(()));
        assert!(needs(&[&"/x".repeat(limits::NAME_BYTES_MAX)]).check().is_err());
    }
}
