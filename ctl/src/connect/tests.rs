use rollout_batch::submission::config::BatchConfig;

use super::*;

/// Flags alone: the tests' environment does not count.
fn flags(args: &[&str]) -> ConnectArgs {
    use clap::{CommandFactory, FromArgMatches};
    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        connect: ConnectArgs,
    }
    let args = std::iter::once("x").chain(args.iter().copied());
    let command = Cli::command().mut_args(|arg| arg.env(None::<&'static str>));
    Cli::from_arg_matches(&command.get_matches_from(args)).unwrap().connect
}

/// Settings without a contexts file.
fn alone(args: &[&str]) -> Result<ConnectSettings, ConnectError> {
    flags(args).settings_among(&Context::default(), None)
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
    let settings = flags(&["--context", context]).settings_among(&file, None).unwrap();
    assert_eq!(settings.endpoints, ["a:1"]);
    assert_eq!(settings.namespace, "team");
    let Security::Mtls(files) = &settings.security else { panic!("no tls") };
    assert_eq!(files.ca, dir.path().join("ca.pem"));
    assert_eq!(files.key, PathBuf::from("/k"));
    let settings = flags(&["--context", context, "-e", "b:2,c:3", "--namespace", "n"]);
    let settings = settings.settings_among(&file, None).unwrap();
    assert_eq!(settings.endpoints, ["b:2", "c:3"]);
    assert_eq!(settings.namespace, "n");
}

#[test]
fn a_batch_file_that_names_no_endpoints_is_of_the_current_contexts_cluster() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("contexts.toml");
    let text = "current = \"prod\"\n[context.prod]\nendpoints = [\"a:1\"]\nnamespace = \"prod\"\n\
                ca_file = \"/ca\"\ncert_file = \"/c\"\nkey_file = \"/k\"\n";
    std::fs::write(&path, text).unwrap();
    let settings = |args: &[&str], file: Context| {
        flags(args).settings_among(&file, Some(&path)).map(|settings| {
            let tls = matches!(settings.security, Security::Mtls(_));
            (settings.endpoints.join(","), settings.namespace, tls)
        })
    };
    let team = Context { namespace: Some("team".into()), ..Context::default() };
    assert_eq!(settings(&[], team.clone()).unwrap(), ("a:1".into(), "team".into(), true));
    let none = settings(&[], Context::default()).unwrap();
    assert_eq!(none, ("a:1".into(), "prod".into(), true));
    // With endpoints it means its own cluster, with the credentials and security that it names.
    let own =
        Context { endpoints: vec!["z:9".into()], insecure_plaintext: true, ..Context::default() };
    assert_eq!(settings(&[], own).unwrap(), ("z:9".into(), "default".into(), false));
    let untold = Context { endpoints: vec!["z:9".into()], ..Context::default() };
    assert!(settings(&[], untold).is_err(), "prod's certificate is not for that one");
    // If flags specify everything, the current context does not count, and the file supplies only the namespace.
    let all = settings(&["-e", "b:2", "--insecure-plaintext"], team).unwrap();
    assert_eq!(all, ("b:2".into(), "team".into(), false));
}

#[test]
fn incomplete_tls_names_the_missing_flags() {
    let error = alone(&["--cert", "c.pem"]).unwrap_err().to_string();
    assert!(error.contains("--ca-cert, --key"), "{error}");
    let error = alone(&["--cert", "c.pem", "--insecure-plaintext"]).unwrap_err();
    assert!(matches!(error, ConnectError::TlsContradiction { .. }));
    // Plaintext must be asked for.
    for args in [&[][..], &["-e", "a:1"]] {
        let error = alone(args).unwrap_err();
        assert!(matches!(error, ConnectError::NoContext { .. }), "{error}");
        for way in ["ROLLOUT_CONTEXT", "--context", "--insecure-plaintext"] {
            assert!(error.to_string().contains(way), "{error}");
        }
    }
    let plain = alone(&["--insecure-plaintext"]).unwrap();
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
    assert_eq!(parse_duration("1m 30s"), Ok(Duration::from_secs(90)));
    assert_eq!(parse_duration("1.5s"), Ok(Duration::from_millis(1500)));
    for bad in ["", "s", "-1s", "1.s", "3 fortnights", "99999999999999999999s", "9000000000s"] {
        assert!(parse_duration(bad).is_err(), "{bad:?} was accepted");
    }
}

#[test]
fn paths_of_certificates_are_relative_to_the_batch_file() {
    let text = "[model]\nuri = \"m\"\n[input]\nglob = \"*.jsonl\"\n[output]\ndir = \"out\"\n\
                [tls]\nca_file = \"ca.pem\"\ncert_file = \"/c\"\nkey_file = \"k\"\n";
    let config = BatchConfig::parse(text, Path::new("/jobs/batch.toml"), Path::new("/jobs"));
    let context = Context::of_batch_file(&config.unwrap());
    assert_eq!(context.ca_file.as_deref(), Some(Path::new("/jobs/ca.pem")));
    assert_eq!(context.cert_file.as_deref(), Some(Path::new("/c")));
}
