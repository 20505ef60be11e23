//! The build refuses a contract with a method that has no roles, or has one twice, or whose dry run is undecided.
//!
//! Invariant: these tests run the code of `build.rs`, on the options that the contract has.
//! Absent: the options of the contract. `docs/authorization.md` shows them.

#[path = "../build/methods.rs"]
mod methods;

use std::path::Path;

use protox::prost_reflect::DescriptorPool;

/// The list of a contract whose only service has these methods.
fn listed(methods: &str) -> Result<String, String> {
    methods::list(&contract(methods)).map_err(|error| error.to_string())
}

/// The dry runs of a contract whose only service has these methods.
fn dry_runs(methods: &str) -> Result<String, String> {
    methods::dry_runs(&contract(methods)).map_err(|error| error.to_string())
}

fn contract(methods: &str) -> DescriptorPool {
    let dir = tempfile::tempdir().expect("a directory");
    let text = format!(
        "syntax = \"proto3\";\npackage {};\nimport \"rollout/options/v1/options.proto\";\n\
         message Nothing {{}}\nservice Test {{\n{methods}\n}}\n",
        methods::PACKAGE
    );
    std::fs::write(dir.path().join("test.proto"), text).expect("written");
    let contract = Path::new(env!("CARGO_MANIFEST_DIR")).join("proto");
    let mut compiler =
        protox::Compiler::new([contract.as_path(), dir.path()]).expect("folders of .proto files");
    compiler.include_imports(true).open_file("test.proto").expect("a valid file");
    compiler.descriptor_pool()
}

fn rpc(name: &str, options: &[&str]) -> String {
    let option = |option: &&str| format!("option (rollout.options.v1.{option};\n");
    let options: String = options.iter().map(option).collect();
    format!("rpc {name}(Nothing) returns (stream Nothing) {{\n{options}}}\n")
}

#[test]
fn a_method_without_roles_ends_the_build_with_an_error_that_names_it() {
    let open = rpc("Open", &["roles) = ROLE_CLIENT"]);
    let audited = rpc("Close", &["audited) = true"]);
    for without in ["rpc Close(Nothing) returns (Nothing);", audited.as_str()] {
        let error = listed(&format!("{open}{without}")).expect_err("it has no roles");
        assert!(error.starts_with("/rollout.v1.Test/Close has no roles"), "{error}");
        assert!(error.contains("option (rollout.options.v1.roles) = ROLE_CLIENT;"), "{error}");
    }
    let error = listed(&rpc("Close", &["roles) = ROLE_UNSPECIFIED"])).expect_err("no role");
    assert_eq!(error, "/rollout.v1.Test/Close has the unknown role 0");
    let twice = rpc("Close", &["roles) = ROLE_ADMIN", "roles) = ROLE_ADMIN"]);
    let error = listed(&twice).expect_err("a role twice");
    assert_eq!(error, "/rollout.v1.Test/Close has Role::Admin twice: remove one line");
}

#[test]
fn methods_are_listed_in_the_order_of_their_paths_with_their_options() {
    let open = rpc("Open", &["roles) = ROLE_CLIENT", "roles) = ROLE_ADMIN", "audited) = true"]);
    let close = rpc("Close", &["roles) = ROLE_NEWCOMER"]);
    let lines = [
        "&[\n",
        "    Method { path: \"/rollout.v1.Test/Close\", roles: &[Role::Unenrolled], audited: false, \
         client_streaming: false, server_streaming: true },\n",
        "    Method { path: \"/rollout.v1.Test/Open\", roles: &[Role::Client, Role::Admin], \
         audited: true, client_streaming: false, server_streaming: true },\n",
        "]\n",
    ];
    assert_eq!(listed(&format!("{open}{close}")), Ok(lines.concat()));
}

#[test]
fn the_build_lists_the_methods_that_have_a_dry_run() {
    let change = |name: &str, more: &str| {
        let options = "option (rollout.options.v1.audited) = true; option (rollout.options.v1.";
        format!("rpc {name}(Nothing) returns (Nothing) {{ {options}{more}; }}\n")
    };
    let read = "rpc Read(Nothing) returns (Nothing);\n";
    let methods = change("SetTime", "dry_run) = true")
        + &change("Delete", "dry_run) = true")
        + &change("Leave", "no_dry_run) = \"only programs send it\"")
        + read;
    let text = dry_runs(&methods).expect("each has what it needs");
    let lines: Vec<&str> =
        text.lines().map(str::trim).filter(|line| line.starts_with('"')).collect();
    let expected = [
        r#""/rollout.v1.Test/Delete" => test.delete(Nothing);"#,
        r#""/rollout.v1.Test/SetTime" => test.set_time(Nothing);"#,
    ];
    assert_eq!(lines, expected);
}

/// A verb whose request the leader cannot check plans from what it reads, which proves little.
#[test]
fn an_audited_method_has_a_dry_run_or_a_reason_to_have_none() {
    let reason = "no_dry_run) = \"only programs send it\"";
    for (options, problem) in [
        (&["audited) = true"] as &[&str], "is audited: add dry_run"),
        (&["audited) = true", "no_dry_run) = \"\""], "is audited: add dry_run"),
        (&["audited) = true", "dry_run) = true", reason], "has a dry run: remove no_dry_run"),
        (&["dry_run) = true"], "is not audited: remove"),
        (&[reason], "is not audited: remove"),
        (&["audited) = true", "dry_run) = true"], "is a stream, which has no dry run"),
    ] {
        let error = dry_runs(&rpc("Close", options)).expect_err(problem);
        assert!(error.starts_with(&format!("/rollout.v1.Test/Close {problem}")), "{error}");
    }
}
