//! Requests that tests send by themselves, not through a command.
//!
//! *Invariant:* each is one that a cluster takes, unless what the test gives it is wrong.

use rollout_proto::v1;

/// Creates an empty run in namespace `default`, of which no worker here has the model.
pub fn create_run(request: v1::RequestId, name: &str) -> v1::CreateRunRequest {
    v1::CreateRunRequest {
        request: Some(request),
        namespace: "default".into(),
        name: name.into(),
        spec: Some(v1::RunSpec {
            engine: Some(v1::EngineSpec { model: "m".into(), ..Default::default() }),
            weight: 1,
            attempts_max: 1,
            ..Default::default()
        }),
        folder: String::new(),
    }
}
