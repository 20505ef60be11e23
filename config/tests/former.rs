//! A section may have its former name for one release.

use rollout_config::coordinator::File;
use rollout_config::worker::Config;
use rollout_config::{Daemon, former, keys};

const MEMBER: &str = r#"
    name = "c1"
    data_dir = "/d"
    [listen]
    client = "127.0.0.1:1"
    peer = "127.0.0.1:2"
    [store]
    url = "file:///s"
    [enrolment]
    listen = "127.0.0.1:3"
    issuer_cert_file = "/i.pem"
    issuer_key_file = "/i.key"
"#;
const WORKER: &str = r#"
    name = "w1"
    data_dir = "/d"
    endpoints = ["127.0.0.1:1"]
    [enrolment]
    token_file = "/t"
    endpoints = ["127.0.0.1:3"]
    [[engine]]
    kind = "mock"
"#;

fn renamed(text: &str) -> String {
    text.replace("[enrolment]", "[enrollment]")
}

#[test]
fn a_section_with_its_former_name_is_read() {
    for text in [MEMBER.to_owned(), renamed(MEMBER)] {
        let file: File = toml::from_str(&text).unwrap();
        assert_eq!(file.enrollment.unwrap().listen.port(), 3, "{text}");
    }
    for text in [WORKER.to_owned(), renamed(WORKER)] {
        let config = Config::parse(&text, "w.toml").unwrap();
        config.check().unwrap();
        assert_eq!(config.enrollment.unwrap().endpoints, ["127.0.0.1:3"], "{text}");
    }
}

#[test]
fn a_section_with_both_names_is_refused() {
    let both = |text: &str, keys: &str| format!("{text}\n[enrollment]\n{keys}\n");
    let keys = "listen = '127.0.0.1:3'\nissuer_cert_file = 'c'\nissuer_key_file = 'k'";
    let error = toml::from_str::<File>(&both(MEMBER, keys)).unwrap_err();
    assert!(error.message().contains("duplicate field `enrollment`"), "{error}");
    let error = Config::parse(&both(WORKER, "token_file = '/t'"), "w.toml").unwrap_err();
    let told = "w.toml: enrollment: [enrolment] is its former name: keep [enrollment] only";
    assert_eq!(error.to_string(), told);
}

#[test]
fn an_unknown_key_in_a_section_with_its_former_name_is_refused() {
    let text = WORKER.replace("token_file", "token_fil");
    let error = Config::parse(&text, "w.toml").unwrap_err().to_string();
    assert!(error.ends_with("did you mean enrollment.token_file?"), "{error}");
}

#[test]
fn only_the_present_name_is_listed() {
    for daemon in Daemon::ALL {
        assert!(keys(daemon).iter().any(|key| key.root() == "enrollment"), "{daemon:?}");
        assert!(keys(daemon).iter().all(|key| key.root() != "enrolment"), "{daemon:?}");
        assert!(!rollout_config::schema(daemon).to_string().contains("enrolment"), "{daemon:?}");
    }
    let mut file: toml::Table = MEMBER.parse().unwrap();
    former::rename(&mut file).unwrap();
    assert!(file.contains_key("enrollment") && !file.contains_key("enrolment"));
}
