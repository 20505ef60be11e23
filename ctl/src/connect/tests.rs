use super::*;

fn flags(args: &[&str]) -> ConnectArgs {
    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        connect: ConnectArgs,
    }
    let args = std::iter::once("x").chain(args.iter().copied());
    <Cli as clap::Parser>::parse_from(args).connect
}

#[test]
fn flags_win_over_the_context_and_that_over_the_batch_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("client.toml");
    std::fs::write(
        &path,
        "endpoints = [\"a:1\"]\nca_file = \"ca.pem\"\ncert_file = \"c.pem\"\nkey_file = \"/k\"\n",
    )
    .unwrap();
    let file = Context {
        endpoints: vec!["z:9".into()],
        namespace: Some("team".into()),
        ..Context::default()
    };
    let context = path.to_str().unwrap();
    let settings = flags(&["--context", context]).settings_over(&file).unwrap();
    assert_eq!(settings.endpoints, ["a:1"]);
    assert_eq!(settings.namespace, "team");
    let Security::Mtls(files) = &settings.security else { panic!("no tls") };
    assert_eq!(files.ca, dir.path().join("ca.pem"));
    assert_eq!(files.key, PathBuf::from("/k"));
    let settings = flags(&["--context", context, "-e", "b:2,c:3", "--namespace", "n"]);
    let settings = settings.settings_over(&file).unwrap();
    assert_eq!(settings.endpoints, ["b:2", "c:3"]);
    assert_eq!(settings.namespace, "n");
}

#[test]
fn incomplete_tls_names_the_missing_flags() {
    let error = flags(&["--cert", "c.pem"]).settings().unwrap_err().to_string();
    assert!(error.contains("--ca-cert, --key"), "{error}");
    let error = flags(&["--cert", "c.pem", "--insecure-plaintext"]).settings().unwrap_err();
    assert!(matches!(error, ConnectError::TlsContradiction { .. }));
    assert!(flags(&[]).settings().is_err(), "plaintext must be asked for");
    let plain = flags(&["--insecure-plaintext"]).settings().unwrap();
    assert!(matches!(plain.security, Security::InsecurePlaintext));
    assert_eq!(plain.endpoints, [ENDPOINT_DEFAULT]);
}

#[test]
fn an_unknown_context_key_is_refused_with_its_line_and_the_nearest_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("client.toml");
    std::fs::write(&path, "endpoints = []\nca_fille = \"x\"\n").unwrap();
    let error = Context::read(&path).unwrap_err().to_string();
    assert!(error.contains("client.toml:2"), "{error}");
    assert!(error.contains("did you mean \"ca_file\""), "{error}");
}

#[test]
fn durations_have_units_and_a_bound() {
    assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
    assert_eq!(parse_duration("30"), Ok(Duration::from_secs(30)));
    assert_eq!(parse_duration("2m"), Ok(Duration::from_secs(120)));
    for bad in ["", "s", "-1s", "1.5s", "3 fortnights", "99999999999999999999s", "9000000000s"] {
        assert!(parse_duration(bad).is_err(), "{bad:?} was accepted");
    }
}
