//! The build refuses a contract with a method that has no roles, or has one twice.
//!
//! Invariant: these tests run the code of `build.rs`, on the options that the contract has.
//! Absent: the options of the contract. `docs/authorization.md` shows them.

#[path = "../build/methods.rs"]
mod methods;

use std::path::Path;

/// The list of a contract whose only service has these methods.
fn listed(methods: &str) -> Result<String, String> {
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
    methods::list(&compiler.descriptor_pool()).map_err(|error| error.to_string())
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
        "    Method { path: \"/rollout.v1.Test/Close\", roles: &[Role::Newcomer], audited: false, \
         client_streaming: false, server_streaming: true },\n",
        "    Method { path: \"/rollout.v1.Test/Open\", roles: &[Role::Client, Role::Admin], \
         audited: true, client_streaming: false, server_streaming: true },\n",
        "]\n",
    ];
    assert_eq!(listed(&format!("{open}{close}")), Ok(lines.concat()));
}
