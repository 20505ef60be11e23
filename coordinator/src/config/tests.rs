use super::*;

/// Fuzz targets use the same file and add to it.
const GOOD: &str = include_str!("tests/minimal.toml");

fn load(text: &str) -> Result<Config> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("c.toml");
    std::fs::write(&path, text)?;
    Config::load(Flags::parse_from(["x", "--config", path.to_str().unwrap_or_default()]))
}

#[test]
fn a_minimal_file_is_enough() {
    let config = load(GOOD).expect("good");
    assert_eq!(config.advertise_client, "127.0.0.1:1");
    assert_eq!(config.workers.failure_ms, 5000);
}

#[test]
fn one_file_serves_all_members_if_flags_set_the_differences() {
    let text = GOOD.replace("insecure_plaintext = true", "ca_file = \"/tls/ca.pem\"");
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("c.toml");
    std::fs::write(&path, text.replace("name = \"c1\"", "")).expect("written");
    let file = path.to_str().unwrap_or_default();
    let flags = ["x", "--config", file, "--name", "c2", "--zone", "b"];
    let tls = ["--cert-file", "/tls/c2.pem", "--key-file", "/tls/c2.key"];
    let config = Config::load(Flags::parse_from(flags.into_iter().chain(tls))).expect("good");
    assert_eq!((&*config.name, &*config.zone), ("c2", "b"));
    let Security::Mtls(files) = config.security else { panic!("no TLS") };
    assert_eq!(files.ca, PathBuf::from("/tls/ca.pem"));
    assert_eq!(files.key, PathBuf::from("/tls/c2.key"));
}

#[test]
fn an_unknown_key_is_refused_with_the_nearest_known_one() {
    let error = load(&GOOD.replace("data_dir", "data_dri")).expect_err("unknown").to_string();
    assert!(error.contains("line 3") && error.contains("did you mean \"data_dir\"?"), "{error}");
}

#[test]
fn a_wrong_value_names_its_line_its_key_and_what_is_allowed() {
    for (text, told) in [
        (
            "[storage]\nlow_bytes = 'much'",
            "storage.low_bytes: expected a whole number, 0 or more, found the string \"much\"",
        ),
        ("[storage]\nzzzz = 1", "storage: unknown key \"zzzz\"; known are "),
    ] {
        let error = load(&format!("{GOOD}\n{text}\n")).expect_err("wrong").to_string();
        assert!(error.contains(told), "{error}");
        assert!(error.contains(": line "), "{error}");
    }
}

#[test]
fn a_worker_that_fences_itself_too_late_is_refused() {
    let text = format!("{GOOD}\n[worker]\nself_fence_ms = 5000\n");
    let error = format!("{:#}", load(&text).expect_err("too late"));
    assert!(error.contains("self_fence_ms = 5000"), "{error}");
}

#[test]
fn a_disk_that_is_full_before_it_has_little_room_is_refused() {
    let marks = |text: &str| load(&format!("{GOOD}\n[storage]\n{text}\n"));
    let good = marks("reserve_bytes = 1000\nlow_bytes = 2000").expect("good");
    assert_eq!((good.raft.disk_reserve_bytes, good.raft.disk_low_bytes), (1000, 2000));
    let error = format!("{:#}", marks("low_bytes = 1000").expect_err("below the reserve"));
    assert!(error.contains("[storage]") && error.contains("reserve_bytes"), "{error}");
}

#[test]
fn a_ring_of_events_that_holds_none_is_refused_by_its_own_name() {
    for key in ["bytes_max", "count_max"] {
        let text = format!("{GOOD}\n[events]\n{key} = 0\n");
        let error = format!("{:#}", load(&text).expect_err("none"));
        assert!(error.contains(&format!("events.{key}: 0 is less than 1")), "{error}");
        assert!(!error.contains("storage"), "{error}");
    }
}

#[test]
fn enrollment_needs_certificates_and_issues_them_for_a_time() {
    let section = "[enrollment]\nlisten = \"127.0.0.1:3\"\nissuer_cert_file = \"/i.pem\"\nissuer_key_file = \"/i.key\"\n";
    let error = format!("{:#}", load(&format!("{GOOD}\n{section}")).expect_err("plaintext"));
    assert!(error.contains("insecure_plaintext"), "{error}");
    let files = "ca_file = \"a\"\ncert_file = \"b\"\nkey_file = \"c\"";
    let secure = GOOD.replace("insecure_plaintext = true", files);
    assert!(load(&secure).expect("good").enrollment.is_none(), "it is off unless configured");
    let settings = load(&format!("{secure}\n{section}")).expect("good").enrollment;
    assert_eq!(settings.map(|s| s.lifetime_s), Some(24 * 60 * 60));
    for wrong in [9, 7 * 24 * 60 * 60 + 1] {
        let text = format!("{secure}\n{section}lifetime_s = {wrong}\n");
        let error = format!("{:#}", load(&text).expect_err("out of bounds"));
        assert!(error.contains("lifetime_s"), "{error}");
    }
}

#[test]
fn the_enrollment_section_may_have_its_former_name_but_not_both() {
    let files = "ca_file = \"a\"\ncert_file = \"b\"\nkey_file = \"c\"";
    let secure = GOOD.replace("insecure_plaintext = true", files);
    let keys =
        "listen = \"127.0.0.1:3\"\nissuer_cert_file = \"/i.pem\"\nissuer_key_file = \"/i.key\"\n";
    let present = format!("[enrollment]\n{keys}");
    let former = format!("[enrolment]\n{keys}");
    let of = |text: &str| load(&format!("{secure}\n{text}"));
    let settings = of(&present).expect("good").enrollment;
    assert!(settings.is_some());
    assert_eq!(of(&former).expect("good").enrollment, settings);
    let error = format!("{:#}", of(&format!("{present}{former}")).expect_err("both"));
    assert!(error.contains("duplicate field `enrollment`"), "{error}");
}

#[test]
fn spans_go_to_a_collector_beside_the_member_or_nowhere() {
    assert_eq!(load(GOOD).expect("good").tracing, TracingSettings::default());
    let to = |url: &str| load(&format!("{GOOD}\n[tracing]\notlp_endpoint = {url:?}\n"));
    let good = to("http://127.0.0.1:4317").expect("good").tracing;
    assert_eq!(good.otlp_endpoint, "http://127.0.0.1:4317");
    let error = format!("{:#}", to("https://collector:4317").expect_err("TLS"));
    assert!(error.contains("tracing.otlp_endpoint"), "{error}");
}

#[test]
fn plaintext_on_a_public_address_needs_a_second_flag() {
    for (was, is) in [("127.0.0.1:1", "0.0.0.0:1"), ("127.0.0.1:2", "[::]:2")] {
        let public = GOOD.replace(was, is) + "[advertise]\nclient = \"a:1\"\npeer = \"a:2\"\n";
        let error = format!("{:#}", load(&public).expect_err("public"));
        assert!(error.contains("insecure_plaintext_public") && error.contains(is), "{error}");
        let both = "insecure_plaintext = true\n    insecure_plaintext_public = true";
        load(&public.replace("insecure_plaintext = true", both)).expect("it is said twice");
    }
}

#[test]
fn api_keys_are_sent_in_plaintext_to_other_hosts_only_with_a_second_flag() {
    let with_api =
        |text: &str, listen: &str| load(&format!("{text}\n[api]\nlisten = {listen:?}\n"));
    assert!(load(GOOD).expect("good").api.is_none(), "no port by default");
    let api = with_api(GOOD, "127.0.0.1:3").expect("loopback").api.expect("a port");
    assert_eq!((api.listen.port(), api.advertise), (3, None));
    let error = format!("{:#}", with_api(GOOD, "0.0.0.0:3").expect_err("public"));
    assert!(error.contains("insecure_plaintext_public") && error.contains("0.0.0.0:3"), "{error}");
    let files = "ca_file = \"a\"\ncert_file = \"b\"\nkey_file = \"c\"";
    with_api(&GOOD.replace("insecure_plaintext = true", files), "0.0.0.0:3").expect("TLS");
}

#[test]
fn half_a_tls_section_is_refused() {
    let text = GOOD.replace("insecure_plaintext = true", "ca_file = \"x\"");
    assert!(format!("{:#}", load(&text).expect_err("half")).contains("[tls]"));
}

#[test]
fn a_filter_of_the_log_that_cannot_be_read_is_refused() {
    let of_file = |filter: &str| load(&format!("log = {filter:?}\n{GOOD}"));
    assert_eq!(of_file("warn,rollout_raft=debug").expect("good").log, "warn,rollout_raft=debug");
    let error = format!("{:#}", of_file("rollout_raft=loud").expect_err("no level"));
    assert!(error.contains("`log`") && error.contains("rollout_raft=loud"), "{error}");
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("c.toml");
    std::fs::write(&path, GOOD).expect("written");
    let flags = |log| ["x", "--config", path.to_str().unwrap_or_default(), "--log", log];
    assert!(Config::load(Flags::parse_from(flags("a=b=c"))).is_err());
    // An empty variable counts as unset.
    let config = Config::load(Flags::parse_from(flags(""))).expect("good");
    assert_eq!(config.log, rollout_config::coordinator::LOG);
}
