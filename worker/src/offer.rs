//! Owns: what a slot reports to the cluster about its engine: models with their revisions, versions, and routes of the
//! OpenAI API.
//!
//! Invariant: a revision is offered only if the engine reported it as loaded or the operator configured it. The mock,
//! whose answers depend on no model, offers every revision. A route is reported whole, and only by a slot that offers
//! the task `openai`.
//! Absent: which run fits; the ledger decides that.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use rollout_engine_protocol::Loaded;

use crate::config::{EngineConfig, EngineKind};

/// How many names, versions and revisions are passed on, and the bytes of each: the ledger's limits.
const NAMED_MAX: usize = 48;
const BYTES_MAX: usize = 128;
/// The property with the routes that an engine serves, separated by spaces; `ROUTES_PROPERTY` of the ledger. An
/// operator's label of this name replaces it.
const ROUTES: &str = "routes";

/// The models that a slot offers: `name`, `name@revision`, or `name@` if the revision is unknown.
pub(crate) fn models(config: &EngineConfig, loaded: Option<&Loaded>) -> Vec<String> {
    let names = config.served();
    if config.kind == EngineKind::Mock {
        return names;
    }
    let mut revisions: BTreeSet<&str> = BTreeSet::new();
    if config.kind == EngineKind::Vllm {
        revisions.insert(config.revision.as_str());
        revisions
            .extend(loaded.iter().flat_map(|loaded| loaded.revisions.iter().map(String::as_str)));
        revisions.retain(|revision| !revision.is_empty() && revision.len() <= BYTES_MAX);
    }
    if revisions.is_empty() {
        revisions.insert("");
    }
    let offers =
        names.iter().flat_map(|name| match config.has_model_names() && name.contains('@') {
            true => vec![name.clone()],
            false => revisions.iter().map(|revision| format!("{name}@{revision}")).collect(),
        });
    offers.take(NAMED_MAX).collect()
}

/// The tasks that a slot offers. vLLM generates or, as a pooling engine, embeds and scores.
pub(crate) fn tasks(config: &EngineConfig) -> Vec<String> {
    if !config.tasks.is_empty() {
        return config.tasks.clone();
    }
    let pools = config.engine_args.get("runner").is_some_and(|runner| runner == "pooling");
    let tasks: &[&str] = match config.kind {
        EngineKind::Mock => &["generate", "embed", "score", "openai"],
        EngineKind::Openai => &["generate", "embed", "openai"],
        EngineKind::Vllm if pools => &["embed", "score", "openai"],
        EngineKind::Vllm => &["generate", "openai"],
    };
    tasks.iter().map(|task| (*task).to_owned()).collect()
}

/// Whether a slot has what a run needs, by the ledger's comparison.
pub(crate) fn serves(
    config: &EngineConfig,
    loaded: Option<&Loaded>,
    model: &str,
    revision: &str,
) -> bool {
    let named = |name: &str| name == "*" || name == model;
    revision.is_empty()
        || models(config, loaded).iter().any(|offer| {
            named(offer)
                || offer.rsplit_once('@').is_some_and(|(name, r)| named(name) && r == revision)
        })
}

/// What an engine reports of which only the routes are known.
pub(crate) fn routes_only(routes: &[&str]) -> Loaded {
    let versions = BTreeMap::from([(ROUTES.to_owned(), routes.join(" "))]);
    Loaded { versions, ..Loaded::default() }
}

/// The versions of a slot's engine: those installed for it, overridden by those that the engine reports. Its routes are
/// among them, unless one of the slot's labels names them.
pub(crate) fn versions(
    config: &EngineConfig,
    labels: &HashMap<String, String>,
    installed: &BTreeMap<String, String>,
    loaded: Option<&Loaded>,
) -> BTreeMap<String, String> {
    let mut all = installed.clone();
    all.extend(loaded.iter().flat_map(|loaded| loaded.versions.clone()));
    if labels.contains_key(ROUTES) || !tasks(config).iter().any(|task| task == "openai") {
        all.remove(ROUTES);
    } else if let Some(routes) = all.get_mut(ROUTES) {
        keep_whole_routes(routes);
    }
    all.retain(|name, version| {
        !name.is_empty() && !version.is_empty() && name.len().max(version.len()) <= BYTES_MAX
    });
    all.into_iter().take(NAMED_MAX).collect()
}

/// Drops the last routes of a list that is over [`BYTES_MAX`].
fn keep_whole_routes(routes: &mut String) {
    if routes.len() > BYTES_MAX {
        let bytes = &routes.as_bytes()[..=BYTES_MAX];
        let end = bytes.iter().rposition(|byte| *byte == b' ').unwrap_or(0);
        tracing::warn!(
            dropped = &routes[end..],
            "the routes of an engine are over {BYTES_MAX} bytes"
        );
        routes.truncate(end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loaded(revisions: &[&str]) -> Loaded {
        let versions = [("vllm", "0.32.1"), ("gpu", "NVIDIA H100 80GB HBM3"), ("odd", "")];
        Loaded {
            versions: versions.map(|(name, version)| (name.into(), version.into())).into(),
            revisions: revisions.iter().map(|revision| (*revision).to_owned()).collect(),
            room_tokens: 0,
        }
    }

    fn vllm(model: &str, models: &[&str], revision: &str) -> EngineConfig {
        let mut config = EngineConfig::new(EngineKind::Vllm);
        (config.model, config.revision) = (model.to_owned(), revision.to_owned());
        if !models.is_empty() {
            config.models = models.iter().map(|name| (*name).to_owned()).collect();
        }
        config
    }

    #[test]
    fn an_unconfirmed_revision_is_not_offered() {
        let config = vllm("org/m", &[], "main");
        assert_eq!(models(&config, None), ["org/m@main"]);
        let now = loaded(&["main", "0123abcd"]);
        assert_eq!(models(&config, Some(&now)), ["org/m@0123abcd", "org/m@main"]);
        assert!(serves(&config, Some(&now), "org/m", "0123abcd"));
        assert!(serves(&config, Some(&now), "org/m", ""));
        assert!(!serves(&config, Some(&now), "org/m", "0123abce"));
        assert!(!serves(&config, None, "org/m", "0123abcd"), "not before it is loaded");
        let directory = vllm("/models/a@b", &[], "");
        assert_eq!(models(&directory, Some(&loaded(&[]))), ["/models/a@b@"]);
        assert!(!serves(&directory, None, "/models/a", "b"), "a directory's name says nothing");
        let said = vllm("/models/m", &["m@v2", "n"], "");
        assert_eq!(models(&said, None), ["m@v2", "n@"], "the operator's word");
        let mut server = EngineConfig::new(EngineKind::Openai);
        assert_eq!(models(&server, None), ["*@"]);
        assert!(!serves(&server, None, "m", "v2") && serves(&server, None, "m", ""));
        server.models = vec!["m@v2".into()];
        assert!(serves(&server, None, "m", "v2"));
        let mock = EngineConfig::new(EngineKind::Mock);
        assert_eq!(models(&mock, None), ["*"]);
        assert!(serves(&mock, None, "m", "v2"));
    }

    #[test]
    fn versions_that_the_engine_reports_override_installed_ones_and_are_bounded() {
        let installed = [("agent", "0.1.0"), ("vllm", "0.32.0")];
        let installed = installed.map(|(name, version)| (name.into(), version.into())).into();
        let config = EngineConfig::new(EngineKind::Vllm);
        let versions = |installed: &BTreeMap<_, _>, loaded: Option<&Loaded>| {
            versions(&config, &HashMap::new(), installed, loaded)
        };
        let all = versions(&installed, Some(&loaded(&[])));
        assert_eq!(all["vllm"], "0.32.1");
        assert_eq!(all["agent"], "0.1.0");
        assert_eq!(all["gpu"], "NVIDIA H100 80GB HBM3");
        assert!(!all.contains_key("odd"));
        let many = (0..1000).map(|n| (format!("p{n}"), "1".to_owned())).collect();
        assert_eq!(versions(&many, None).len(), NAMED_MAX);
    }

    #[test]
    fn routes_are_reported_whole_by_slots_with_the_task_unless_a_label_names_them() {
        let told = |config: &EngineConfig, labels: &HashMap<String, String>, routes: &[&str]| {
            let loaded = routes_only(routes);
            versions(config, labels, &BTreeMap::new(), Some(&loaded)).get(ROUTES).cloned()
        };
        let (mut config, none) = (EngineConfig::new(EngineKind::Mock), HashMap::new());
        assert_eq!(told(&config, &none, &["/a", "/b"]).as_deref(), Some("/a /b"));
        let label = HashMap::from([(ROUTES.to_owned(), "/c".to_owned())]);
        assert_eq!(told(&config, &label, &["/a", "/b"]), None);
        let (long, exact) = ("/".repeat(100), "/".repeat(BYTES_MAX - 101));
        assert_eq!(told(&config, &none, &[&long, &exact]), Some(format!("{long} {exact}")));
        assert_eq!(told(&config, &none, &[&long, &exact, "/a"]), Some(format!("{long} {exact}")));
        assert_eq!(told(&config, &none, &[&long, &long]), Some(long.clone()));
        assert_eq!(told(&config, &none, &[&long.repeat(2)]), None, "not even one fits");
        config.tasks = vec!["generate".into()];
        assert_eq!(told(&config, &none, &["/a", "/b"]), None);
    }
}
