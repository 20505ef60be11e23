//! The part of the Python engine host that does not need vLLM.

use std::path::Path;
use std::process::Command;

#[test]
fn the_engine_hosts_own_tests_pass() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../worker/python");
    let ran = Command::new("python3")
        .args(["-m", "unittest", "discover", "-v", "-s"])
        .arg(package.join("tests"))
        .env("PYTHONPATH", &package)
        .output()
        .expect("python3 starts");
    let stderr = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{stderr}");
    assert!(!stderr.contains("Ran 0 tests"), "{stderr}");
}
