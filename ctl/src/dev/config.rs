//! The config files that the processes of a development cluster are started with.
//!
//! Invariant: written anew at every start from the saved state and the flags, with absolute paths. A key that is not
//! written has the daemon's own default, so a development cluster behaves like a shipped one. Absent: a
//! way to edit them by hand.

use std::path::{Path, PathBuf};

use rollout_proto::TlsFiles;
use serde::Serialize;

use super::args::{DevArgs, EngineKind, MockTail};
use super::layout::Layout;
use super::saved_settings::{Saved, SavedMember};

#[derive(Serialize)]
struct Coordinator<'a> {
    name: &'a str,
    zone: &'a str,
    data_dir: PathBuf,
    listen: Listen,
    advertise: Advertise,
    tls: Tls<'a>,
    store: Store,
    api: Api,
}

#[derive(Serialize)]
struct Listen {
    client: String,
    peer: String,
    http: String,
}

#[derive(Serialize)]
struct Api {
    listen: String,
}

#[derive(Serialize)]
struct Advertise {
    client: String,
    peer: String,
}

#[derive(Serialize)]
struct Tls<'a> {
    ca_file: &'a Path,
    cert_file: &'a Path,
    key_file: &'a Path,
}

#[derive(Serialize)]
struct Store {
    url: String,
}

#[derive(Serialize)]
struct Worker<'a> {
    name: &'a str,
    data_dir: PathBuf,
    endpoints: Vec<String>,
    tls: Tls<'a>,
    compute: Compute,
    engine: Vec<Engine<'a>>,
}

#[derive(Serialize)]
struct Compute {
    provider: &'static str,
}

#[derive(Serialize)]
struct Engine<'a> {
    kind: &'static str,
    slots: u16,
    concurrency: u16,
    models: [&'a str; 1],
    #[serde(skip_serializing_if = "Option::is_none")]
    latency_ms_min: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    latency_ms_max: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tail: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    side_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    base_url: Option<&'a str>,
}

#[derive(Serialize)]
struct Context<'a> {
    endpoints: Vec<String>,
    ca_file: &'a Path,
    cert_file: &'a Path,
    key_file: &'a Path,
}

fn tls(files: &TlsFiles) -> Tls<'_> {
    Tls { ca_file: &files.ca, cert_file: &files.cert, key_file: &files.key }
}

/// The config of one member.
///
/// # Errors
/// A path is not UTF-8, which TOML cannot represent.
pub(super) fn coordinator(
    layout: &Layout,
    member: &SavedMember,
    files: &TlsFiles,
) -> Result<String, toml::ser::Error> {
    toml::to_string(&Coordinator {
        name: &member.name,
        zone: &member.zone,
        data_dir: layout.data(&member.name),
        listen: Listen {
            client: member.client_addr(),
            peer: member.peer_addr(),
            http: member.http_addr(),
        },
        advertise: Advertise { client: member.client_addr(), peer: member.peer_addr() },
        tls: tls(files),
        store: Store { url: layout.store_url() },
        api: Api { listen: member.api_addr() },
    })
}

/// The config of one worker.
///
/// # Errors
/// A path is not UTF-8, which TOML cannot represent.
pub(super) fn worker(
    layout: &Layout,
    saved: &Saved,
    args: &DevArgs,
    name: &str,
    files: &TlsFiles,
) -> Result<String, toml::ser::Error> {
    let mock = args.engine == EngineKind::Mock;
    let tail = match args.mock_tail {
        MockTail::Uniform => "uniform",
        MockTail::Pareto => "pareto",
    };
    let side_file =
        args.mock_side_file.as_ref().map(std::path::absolute).transpose().ok().flatten();
    toml::to_string(&Worker {
        name,
        data_dir: layout.data(name),
        endpoints: endpoints(saved),
        tls: tls(files),
        // A development cluster polls no cloud for notices.
        compute: Compute { provider: "none" },
        engine: vec![Engine {
            kind: if mock { "mock" } else { "openai" },
            slots: args.slots,
            concurrency: args.concurrency,
            models: [&args.model],
            latency_ms_min: mock.then_some(args.latency_ms.min_ms),
            latency_ms_max: mock.then_some(args.latency_ms.max_ms),
            tail: mock.then_some(tail),
            seed: mock.then_some(args.mock_seed),
            side_file: side_file.filter(|_| mock),
            base_url: args.openai_url.as_deref().filter(|_| !mock),
        }],
    })
}

/// A context file, for `--context` and `ROLLOUT_CONTEXT`.
///
/// # Errors
/// A path is not UTF-8, which TOML cannot represent.
pub(super) fn context(saved: &Saved, files: &TlsFiles) -> Result<String, toml::ser::Error> {
    toml::to_string(&Context {
        endpoints: endpoints(saved),
        ca_file: &files.ca,
        cert_file: &files.cert,
        key_file: &files.key,
    })
}

/// The client addresses of all members.
pub(super) fn endpoints(saved: &Saved) -> Vec<String> {
    saved.members.iter().map(SavedMember::client_addr).collect()
}
