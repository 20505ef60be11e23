//! The port of OpenAI's HTTP API.

use std::net::SocketAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The port of OpenAI's HTTP API.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApiSettings {
    /// Address and port of the HTTP API, for callers with an API key.
    ///
    /// [The page of the API](../api.md) describes it. Without this section, the member does not serve the API. The port uses TLS with the certificate in `[tls]`, and
    /// asks callers for no certificate. With `insecure_plaintext`, it is plain HTTP.
    #[schemars(extend("format" = "address"))]
    pub listen: SocketAddr,
    /// Base URL that callers use, logged at startup only; from `listen` by default.
    ///
    /// For example `"https://rollout.example.com/v1"`.
    pub advertise: Option<String>,
}
