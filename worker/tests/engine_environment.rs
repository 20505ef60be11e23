//! The environment of an engine's process: the engine is a script that writes it to a file.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long the worker may take to start its engine, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Writes the environment to a file, completely or not at all, and waits to be killed.
fn engine(dir: &Path) -> std::path::PathBuf {
    let (path, out) = (dir.join("engine.sh"), dir.join("environment"));
    let out = out.display();
    let script = format!("#!/bin/sh\nenv >{out}.part\nmv {out}.part {out}\nexec sleep 600\n");
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

fn environment(dir: &Path) -> BTreeMap<String, String> {
    let since = Instant::now();
    loop {
        if let Ok(text) = std::fs::read_to_string(dir.join("environment")) {
            let pairs = text.lines().filter_map(|line| line.split_once('='));
            return pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        }
        assert!(since.elapsed() < PATIENCE, "the engine was not started");
        std::thread::sleep(Duration::from_millis(20)); // The poll; the condition decides.
    }
}

#[test]
fn an_engines_process_gets_what_engines_need_and_no_credentials() {
    let dir = tempfile::tempdir().unwrap();
    let config = format!(
        "name = \"w1\"\ndata_dir = {:?}\nendpoints = [\"127.0.0.1:1\"]\n[tls]\ninsecure_plaintext = true\n\
         [compute]\nprovider = \"none\"\n[[engine]]\nkind = \"mock\"\nprocess = true\nprogram = {:?}\n\
         pass_env = [\"AWS_REGION\", \"TEAM_*\"]\n",
        dir.path().join("data"),
        engine(dir.path()),
    );
    std::fs::write(dir.path().join("w.toml"), config).unwrap();
    let needed = [
        ("HOME", "/home/of-the-test"),
        ("LC_ALL", "C.UTF-8"),
        ("TZ", "UTC"),
        ("LD_LIBRARY_PATH", "/opt/libraries"),
        ("CUDA_VISIBLE_DEVICES", "0,1"),
        ("NCCL_DEBUG", "WARN"),
        ("VLLM_LOGGING_LEVEL", "DEBUG"),
        ("HF_HOME", "/models"),
        ("HTTPS_PROXY", "http://proxy.example:3128"),
    ];
    let passed = [("AWS_REGION", "eu-1"), ("TEAM_A", "a"), ("TEAM_B", "b")];
    let secrets = [
        "AWS_SECRET_ACCESS_KEY",
        "AZURE_STORAGE_ACCOUNT_KEY",
        "GOOGLE_APPLICATION_CREDENTIALS",
        "CLOUDSDK_AUTH_ACCESS_TOKEN",
        "HF_TOKEN",
        "VLLM_API_KEY",
        "OPENAI_API_KEY",
        "OTEL_EXPORTER_OTLP_HEADERS",
        "ROLLOUT_OF_THE_TEST",
        "NOTHING_THAT_WE_KNOW",
    ];
    let child = Command::new(env!("CARGO_BIN_EXE_rollout-worker"))
        .arg("--config")
        .arg(dir.path().join("w.toml"))
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap())
        .envs(needed.into_iter().chain(passed))
        .envs(secrets.map(|name| (name, "withheld")))
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let agent = Agent(child);
    let environment = environment(dir.path());
    for (name, value) in needed.into_iter().chain(passed) {
        assert_eq!(environment.get(name).map(String::as_str), Some(value), "{name}");
    }
    for name in secrets {
        assert!(!environment.contains_key(name), "the engine has {name}");
    }
    // The variables that the agent passes to its engine.
    for name in ["PATH", "ROLLOUT_ENGINE_FD", "ROLLOUT_CRASH_FILE"] {
        assert!(environment.contains_key(name), "the engine lacks {name}");
    }
    // Nor can it read what the agent keeps from it.
    // SAFETY: geteuid(2) reads no memory and cannot fail.
    if unsafe { libc::geteuid() } == 0 {
        eprintln!("NOT RUN: an engine that reads its agent's environment: root may read all");
    } else {
        let read = std::fs::read(format!("/proc/{}/environ", agent.0.id()));
        let error = read.expect_err("a process of the same user reads the agent's environment");
        assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied);
    }
}
