//! What a development cluster consists of before any process starts.

use std::path::Path;

use clap::Parser as _;

use super::args::DevArgs;
use super::layout::Layout;
use super::pids::{DirLock, Pids};
use super::saved_settings::Saved;
use super::{certs, config};
use crate::connect::Context;

#[derive(clap::Parser)]
struct Cli {
    #[command(flatten)]
    dev: DevArgs,
}

fn args(dir: &Path, more: &[&str]) -> DevArgs {
    let dir = dir.to_str().unwrap();
    Cli::parse_from(["dev", "--dir", dir].iter().chain(more)).dev
}

#[test]
fn flags_are_well_formed() {
    use clap::CommandFactory as _;
    Cli::command().debug_assert();
    let dir = tempfile::tempdir().unwrap();
    let parsed = args(dir.path(), &["stop"]);
    assert_eq!(parsed.action, Some(super::DevAction::Stop));
    let parsed = args(dir.path(), &["logs", "c1", "--follow"]);
    assert!(matches!(parsed.action, Some(super::DevAction::Logs(which)) if which.follow));
    assert!(Cli::try_parse_from(["dev", "--engine", "openai"]).is_err(), "it needs a url");
}

#[test]
fn a_restart_keeps_ports_and_refuses_another_size() {
    let dir = tempfile::tempdir().unwrap();
    let layout = Layout::open(dir.path()).unwrap();
    let first = Saved::load_or_create(&layout, &args(dir.path(), &[])).unwrap();
    assert_eq!(first.members.len(), 3);
    let zones: Vec<&str> = first.members.iter().map(|member| member.zone.as_str()).collect();
    assert_eq!(zones, ["a", "b", "c"]);
    let again = Saved::load_or_create(&layout, &args(dir.path(), &[])).unwrap();
    assert_eq!(first, again);
    let error = Saved::load_or_create(&layout, &args(dir.path(), &["--members", "5"])).unwrap_err();
    assert!(error.to_string().contains("has 3 members and --members asks for 5"), "{error}");
}

#[test]
fn a_directory_of_an_earlier_build_gets_ports_for_the_api_once() {
    let dir = tempfile::tempdir().unwrap();
    let layout = Layout::open(dir.path()).unwrap();
    let first = Saved::load_or_create(&layout, &args(dir.path(), &[])).unwrap();
    let text = std::fs::read_to_string(layout.saved()).unwrap();
    let mut saved: serde_json::Value = serde_json::from_str(&text).unwrap();
    for member in saved["members"].as_array_mut().unwrap() {
        member.as_object_mut().unwrap().remove("api_port").unwrap();
    }
    std::fs::write(layout.saved(), saved.to_string()).unwrap();
    let later = Saved::load_or_create(&layout, &args(dir.path(), &[])).unwrap();
    assert!(later.members.iter().all(|member| member.api_port > 0));
    let ports =
        |saved: &Saved| -> Vec<u16> { saved.members.iter().map(|m| m.client_port).collect() };
    assert_eq!(ports(&later), ports(&first), "the other ports stay");
    assert_eq!(Saved::load_or_create(&layout, &args(dir.path(), &[])).unwrap(), later);
}

#[test]
fn configs_name_every_file_and_address() {
    let dir = tempfile::tempdir().unwrap();
    let layout = Layout::open(dir.path()).unwrap();
    let flags = args(dir.path(), &["--latency-ms", "1:9", "--slots", "4"]);
    let saved = Saved::load_or_create(&layout, &flags).unwrap();
    let files = layout.tls_files("member", "c1");
    let text = config::coordinator(&layout, &saved.members[0], &files).unwrap();
    let table: toml::Table = text.parse().unwrap();
    assert_eq!(table["name"].as_str(), Some("c1"));
    assert_eq!(table["listen"]["client"].as_str(), Some(&*saved.members[0].client_addr()));
    assert_eq!(table["advertise"]["peer"].as_str(), Some(&*saved.members[0].peer_addr()));
    assert_eq!(table["api"]["listen"].as_str(), Some(&*saved.members[0].api_addr()));
    assert_eq!(table["store"]["url"].as_str(), Some(&*layout.store_url()));
    assert!(table["tls"]["key_file"].as_str().unwrap().ends_with("/tls/member-c1.key"));
    let text = config::worker(&layout, &saved, &flags, "w1", &files).unwrap();
    let table: toml::Table = text.parse().unwrap();
    assert_eq!(table["endpoints"].as_array().unwrap().len(), 3);
    let engine = &table["engine"][0];
    assert_eq!(engine["kind"].as_str(), Some("mock"));
    assert_eq!(engine["slots"].as_integer(), Some(4));
    assert_eq!(engine["latency_ms_max"].as_integer(), Some(9));
    assert!(engine.get("base_url").is_none());
}

#[test]
fn the_context_file_is_one_that_the_client_reads() {
    let dir = tempfile::tempdir().unwrap();
    let layout = Layout::open(dir.path()).unwrap();
    let saved = Saved::load_or_create(&layout, &args(dir.path(), &[])).unwrap();
    let files = layout.tls_files("admin", certs::PERSON);
    let path = layout.context("admin");
    std::fs::write(&path, config::context(&saved, &files).unwrap()).unwrap();
    let context = Context::read(&path).unwrap();
    assert_eq!(context.endpoints, config::endpoints(&saved));
    assert_eq!(context.cert_file, Some(files.cert));
}

#[test]
fn certificates_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let layout = Layout::open(dir.path()).unwrap();
    certs::authority(&layout).unwrap();
    let first = certs::identity(&layout, rollout_proto::Role::Worker, "w1").unwrap();
    let before = std::fs::read(&first.cert).unwrap();
    certs::authority(&layout).unwrap();
    let again = certs::identity(&layout, rollout_proto::Role::Worker, "w1").unwrap();
    assert_eq!(std::fs::read(&again.cert).unwrap(), before);
}

#[test]
fn a_directory_serves_one_cluster_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let layout = Layout::open(dir.path()).unwrap();
    let held = DirLock::take(&layout).unwrap();
    Pids { dev: 4242, ..Pids::default() }.save(&layout).unwrap();
    let error = DirLock::take(&layout).unwrap_err().to_string();
    assert!(error.contains("4242") && error.contains("rollout dev stop"), "{error}");
    drop(held);
    DirLock::take(&layout).unwrap();
}
