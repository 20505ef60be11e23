//! Owns: which of the paths that rows may call a server serves, by the server's own OpenAPI description.
//!
//! Invariant: only [`CALL_PATHS`] are reported. A server that does not describe them counts as one with [`ASSUMED`].
//! Absent: whether the server's model supports a path; the server decides that for each request.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::{CALL_PATHS, OpenAiEngine, PROBE_TIMEOUT, read};

/// The routes of a server without a description: those to which rows of our own formats are sent too.
const ASSUMED: [&str; 3] = ["/v1/chat/completions", "/v1/completions", "/v1/embeddings"];
/// Where servers that are made with FastAPI, such as vLLM's and SGLang's, describe themselves.
const DESCRIPTION: &str = "/openapi.json";

#[derive(Deserialize)]
struct Description<'a> {
    #[serde(borrow)]
    paths: BTreeMap<Cow<'a, str>, Methods>,
}

#[derive(Deserialize)]
struct Methods {
    post: Option<IgnoredAny>,
}

/// The known routes that a description lists; none if it lists no known route, or is not a description.
fn described(bytes: &[u8]) -> Option<Vec<&'static str>> {
    let described: Description<'_> = serde_json::from_slice(bytes).ok()?;
    let takes = |path: &&str| described.paths.get(*path).is_some_and(|has| has.post.is_some());
    let routes: Vec<&str> = CALL_PATHS.into_iter().filter(takes).collect();
    (!routes.is_empty()).then_some(routes)
}

impl OpenAiEngine {
    /// Reads which routes the server serves. If it does not answer now, what it said before stays.
    pub(super) async fn look_at_routes(&self) {
        let url = self.at(DESCRIPTION);
        let request = self.authorized(self.client.get(url)).timeout(PROBE_TIMEOUT);
        let answered = match request.send().await {
            Ok(response) if response.status().is_success() => read(response).await.map(Some),
            Ok(_) => Ok(None),
            Err(error) => Err(super::of_transport(error)),
        };
        let mut routes = self.routes.lock();
        match answered {
            Ok(bytes) => *routes = bytes.as_deref().and_then(described).or(Some(ASSUMED.to_vec())),
            Err(_) if routes.is_none() => *routes = Some(ASSUMED.to_vec()),
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_paths_that_take_a_post_are_routes() {
        let text = r#"{"openapi":"3.1.0","paths":{
            "/v1/completions":{"post":{"summary":"x"}}, "/v1/models":{"get":{}},
            "/v1/embeddings":{"get":{}}, "/pooling":{"parameters":[],"post":{}},
            "/v1/load_lora_adapter":{"post":{}}},"components":{}}"#;
        assert_eq!(described(text.as_bytes()), Some(vec!["/v1/completions", "/pooling"]));
        for none in ["", "[]", "{}", r#"{"paths":{}}"#, r#"{"paths":{"/x":{"post":{}}}}"#] {
            assert_eq!(described(none.as_bytes()), None, "{none}");
        }
    }
}
