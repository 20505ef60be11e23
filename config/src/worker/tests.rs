use super::*;
use crate::{Daemon, keys};

const FULL: &str = r#"
    name = "w1"
    data_dir = "/tmp/w1"
    endpoints = ["127.0.0.1:7001"]
    [labels]
    zone = "a"
    [tls]
    insecure_plaintext = true
    [part]
    bytes = "2MiB"
    [[engine]]
    kind = "mock"
    slots = 2
    latency_ms_min = 5
    latency_ms_max = 500
    tail = "pareto"
    [[engine]]
    kind = "openai"
    base_url = "http://127.0.0.1:8000"
"#;

#[test]
fn a_full_file_is_read() {
    let config = Config::parse(FULL, "test").unwrap();
    config.check().unwrap();
    assert_eq!(config.part.bytes, 2 << 20);
    assert_eq!(config.engine.len(), 2);
    assert_eq!(config.engine[0].slots, 2);
    assert_eq!(config.credit_rows(&config.engine[0]), Some(128));
    assert_eq!(config.namespace, "default");
}

#[test]
fn the_example_names_every_key_and_is_accepted() {
    let text = include_str!("../../../worker/worker.example.toml");
    Config::parse(text, "worker.example.toml").unwrap().check().unwrap();
    for key in keys(Daemon::Worker) {
        let key = key.path.rsplit('.').next().unwrap();
        let named = |line: &str| {
            let line = line.trim_start_matches("# ").trim_start_matches('[');
            line.strip_prefix(key).is_some_and(|rest| rest.starts_with([' ', ']']))
        };
        assert!(text.lines().any(named), "{key} is not in the example");
    }
}

#[test]
fn a_key_in_a_comment_of_the_example_has_its_default_or_is_marked_as_an_example() {
    let text = include_str!("../../../worker/worker.example.toml");
    let (mut section, mut compared) = (String::new(), 0);
    for line in text.lines() {
        let bare = line.strip_prefix("# ").unwrap_or(line);
        if bare.starts_with('[') {
            let list = if bare.starts_with("[[") { "[]" } else { "" };
            section = format!("{}{list}.", bare.trim_matches(['[', ']']));
        }
        let is_name = |name: &str| name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
        let setting = bare.split_once(" = ").filter(|(name, _)| is_name(name));
        let Some((name, rest)) = setting.filter(|_| line.starts_with("# ")) else { continue };
        let (value, comment) = rest.split_once(" # ").unwrap_or((rest, ""));
        let (value, comment) = (value.trim(), comment.trim());
        let path = format!("{section}{name}");
        let key = keys(Daemon::Worker).iter().find(|key| key.path == path);
        let default = key.map_or("", |key| key.default.as_str());
        let mark = match default {
            "" | "\"\"" | "[]" => "example".to_owned(),
            default => format!("example, default {default}"),
        };
        let is_marked = comment == mark || comment.starts_with(&format!("{mark}:"));
        let is_right = if value == default { !comment.starts_with("example") } else { is_marked };
        assert!(is_right, "{path} with the default {default:?}: {line}");
        compared += 1;
    }
    assert!(compared > 30, "{compared}");
}

#[test]
fn an_unknown_key_is_refused_with_the_nearest_known_one() {
    for (text, key, nearest) in [
        ("naem = 'x'", "naem", "name"),
        ("[part]\nlinger = 5", "part.linger", "part.linger_ms"),
        ("[compute]\nprovder = 'x'", "compute.provder", "compute.provider"),
        ("[tls]\nca_fil = 'x'", "tls.ca_fil", "tls.ca_file"),
        (
            "[[engine]]\nkind='mock'\nlatency_ms_mn=1",
            "engine.latency_ms_mn",
            "engine.latency_ms_min",
        ),
        (
            "[[engine]]\nkind='mock'\nstall_timeout=1",
            "engine.stall_timeout",
            "engine.stall_timeout_ms",
        ),
    ] {
        let error = Config::parse(text, "w.toml").unwrap_err().to_string();
        assert!(error.contains(&format!("unknown key {key}")), "{error}");
        assert!(error.contains(&format!("did you mean {nearest}?")), "{error}");
    }
}

#[test]
fn a_wrong_value_names_its_line_its_key_and_what_is_allowed() {
    for (text, told) in [
        (
            "name = 'w'\n[part]\nlinger_ms = 'soon'",
            "w.toml: line 3: part.linger_ms: expected a whole number, 0 or more, found the string \"soon\"",
        ),
        ("endpoints = 'c1:7420'", "w.toml: line 1: endpoints: expected a list"),
        ("[credit]\nzzzz = 1", "w.toml: unknown key credit.zzzz; known are "),
    ] {
        let error = Config::parse(text, "w.toml").unwrap_err().to_string();
        assert!(error.contains(told), "{error}");
    }
}

#[test]
fn a_key_of_another_engine_is_refused() {
    let text = "[[engine]]\nkind='mock'\nbase_url='http://x'";
    let error = Config::parse(text, "w.toml").unwrap_err().to_string();
    assert!(error.contains("unknown key engine.base_url"), "{error}");
}

#[test]
fn contradictions_are_refused() {
    type Spoil = fn(&mut Config);
    let cases: [(&str, Spoil); 7] = [
        ("name", |c| c.name.clear()),
        ("tls", |c| c.tls.ca_file = Some("x".into())),
        ("timing.leader_silent_ms", |c| c.timing.leader_silent_ms = 4000),
        ("credit.rows", |c| c.credit.rows = Some(0)),
        ("compute.endpoint", |c| c.compute.endpoint = Some("169.254.169.254".into())),
        ("compute.poll_ms", |c| c.compute.poll_ms = 0),
        ("engine", |c| c.engine.clear()),
    ];
    for (key, spoil) in cases {
        let mut config = Config::parse(FULL, "test").unwrap();
        spoil(&mut config);
        let error = config.check().unwrap_err().to_string();
        assert!(error.starts_with(key), "{key}: {error}");
    }
}

#[test]
fn a_store_gateway_that_other_hosts_reach_needs_a_key_that_says_so() {
    let text = |more: &str| {
        format!("{FULL}\n[store_gateway]\njob = \"train\"\nlisten = \"0.0.0.0:29400\"\n{more}")
    };
    let error = Config::parse(&text(""), "w.toml").unwrap().check().unwrap_err().to_string();
    assert!(error.contains("insecure_tcpstore = true"), "{error}");
    Config::parse(&text("insecure_tcpstore = true"), "w.toml").unwrap().check().unwrap();
    let config = Config::parse(&text("allow_uids = [1000, 1001]"), "w.toml").unwrap();
    assert_eq!(config.store_gateway.unwrap().allow_uids, [1000, 1001]);
}
