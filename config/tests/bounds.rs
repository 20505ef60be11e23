//! Bounds are checked on the settings that apply, and on the text of a file.

use rollout_config::coordinator::File;
use rollout_config::{Daemon, bounds, keys};

/// The keys that a member cannot do without.
const MINIMAL: &str = r#"
    name = "c1"
    data_dir = "/d"
    [listen]
    client = "127.0.0.1:1"
    peer = "127.0.0.1:2"
    [store]
    url = "file:///s"
"#;

#[test]
fn a_value_out_of_its_bounds_is_refused_with_key_and_bounds() {
    for (section, told) in [
        ("", None),
        ("[raft]\nheartbeat_ms = 4", Some("raft.heartbeat_ms: 4 is less than 5")),
        ("[raft]\nheartbeat_ms = 5", None),
        ("[worker]\nheartbeat_ms = 0", Some("worker.heartbeat_ms: 0 is less than 1")),
        ("[events]\ncount_max = 0", Some("events.count_max: 0 is less than 1")),
        ("[audit]\nfiles_max = 0", Some("audit.files_max: 0 is not in 1 to 4294967295")),
        ("[autoscale]\nrows_per_slot = 0", Some("autoscale.rows_per_slot: 0 is less than 1")),
        (
            "[enrollment]\nlisten = '127.0.0.1:3'\nissuer_cert_file = 'c'\nissuer_key_file = 'k'\nlifetime_s = 9",
            Some("enrollment.lifetime_s: 9 is not in 10 to 604800"),
        ),
    ] {
        let file: File = toml::from_str(&format!("{MINIMAL}{section}\n")).unwrap();
        let error = bounds::check(&file).err().map(|error| error.to_string());
        assert_eq!(error.as_deref(), told, "{section}");
    }
}

#[test]
fn a_default_is_a_valid_value_of_its_key() {
    for daemon in Daemon::ALL {
        for key in keys(daemon) {
            for default in [&key.default, &key.far_default] {
                if default.is_empty() {
                    continue;
                }
                let table: toml::Table = format!("v = {default}").parse().unwrap();
                assert_eq!(key.problem(&table["v"]), None, "{}", key.path);
            }
        }
    }
}
