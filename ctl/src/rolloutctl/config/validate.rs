//! `rolloutctl config validate FILE`: every problem of a configuration file.

use std::path::PathBuf;

use serde::Serialize;

use super::Daemon;
use super::check::{Problem, problems};
use super::file::File;
use crate::output::{self, Report, Table};
use crate::rolloutctl::Failure;
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Which file.
#[derive(Debug, clap::Args)]
pub(crate) struct ValidateArgs {
    /// The configuration file
    file: PathBuf,
    /// Daemon of the file [default: determined from its keys]
    #[arg(long, value_enum)]
    of: Option<Daemon>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Validation {
    file: PathBuf,
    of: &'static str,
    good: bool,
    problems: Vec<Problem>,
}

impl Report for Validation {
    const KIND: &'static str = "ConfigValidation";

    fn table(&self) -> String {
        if self.good {
            return format!("{} is a valid configuration for {}\n", self.file.display(), self.of);
        }
        let mut table = Table::new(&["KEY", "PROBLEM"]);
        for problem in &self.problems {
            table.row([problem.key.clone(), problem.problem.clone()]);
        }
        table.to_string()
    }
}

fn validate(args: ValidateArgs) -> Result<Validation, Failure> {
    let file = File::read(&args.file)?;
    let daemon = args.of.unwrap_or_else(|| Daemon::of(&file.table));
    let problems = problems(daemon, &file);
    Ok(Validation { file: args.file, of: daemon.program(), good: problems.is_empty(), problems })
}

impl Verb for ValidateArgs {
    const KIND: Kind<Self> = Kind::Once;

    /// Prints the problems. Exit status 1 if there are any.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let validation = validate(self)?;
        output::emit(globals.format, &validation)?;
        match validation.problems.len() {
            0 => Ok(()),
            n => {
                let text = format!("{} has {n} problems", validation.file.display());
                Err(Failure::failed(text).into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Vec<String> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("c.toml");
        std::fs::write(&file, text).unwrap();
        let found = validate(ValidateArgs { file, of: None }).unwrap().problems;
        found.into_iter().map(|p| format!("{}: {}", p.key, p.problem)).collect()
    }

    const GOOD: &str = "name = \"c1\"\ndata_dir = \"/d\"\n[listen]\nclient = \"127.0.0.1:1\"\n\
                        peer = \"127.0.0.1:2\"\n[tls]\ninsecure_plaintext = true\n[store]\nurl = \"file:///s\"\n";

    #[test]
    fn every_problem_of_a_member_is_listed_with_its_key() {
        assert_eq!(of(GOOD), Vec::<String>::new());
        let bad = GOOD
            .replace("data_dir", "data_dri")
            .replace("127.0.0.1:1", "c1.example:1")
            .replace("127.0.0.1:2", "0.0.0.0:2")
            + "[raft]\nheartbeat_ms = 100\n[worker]\nself_fence_ms = 5000\nfoo = 1\n\
               [events]\nbytes_max = 0\ncount_max = 0\n[storage]\nlow_bytes = 1000\n";
        let found = of(&bad).join("\n");
        for said in [
            "data_dri: unknown key; did you mean data_dir?",
            "data_dir: is missing, unless --data-dir or ROLLOUT_DATA_DIR sets it",
            "listen.client: \"c1.example:1\" is not an address and port",
            "listen.peer: is reachable from other hosts without TLS",
            "worker.foo: unknown key",
            "raft.election_min_ms: 150 is too low for raft.heartbeat_ms = 100",
            "worker.failure_ms: 5000 is too low for worker.self_fence_ms = 5000",
            "events.bytes_max: 0 is less than 1",
            "events.count_max: 0 is less than 1",
            "storage.low_bytes: 1000 is too low for storage.reserve_bytes = 536870912",
        ] {
            assert!(found.contains(said), "{said} in:\n{found}");
        }
        for good in [
            "[raft]\nprofile = \"far-zones\"\n",
            "[raft]\nheartbeat_ms = 50\nelection_min_ms = 150\n[worker]\nself_fence_ms = 1000\n",
            "[storage]\nreserve_bytes = 2147483648\n",
        ] {
            assert_eq!(of(&(GOOD.to_owned() + good)), Vec::<String>::new(), "{good}");
        }
    }

    #[test]
    fn a_section_may_have_its_former_name_but_not_both() {
        let keys = "listen = \"127.0.0.1:3\"\nissuer_cert_file = \"i\"\nissuer_key_file = \"k\"\nlifetime_s = 9\n";
        for name in ["enrollment", "enrolment"] {
            let found = of(&format!("{GOOD}[{name}]\n{keys}"));
            assert_eq!(found, ["enrollment.lifetime_s: 9 is not in 10 to 604800"], "{name}");
        }
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("c.toml");
        std::fs::write(&file, format!("{GOOD}[enrollment]\n{keys}[enrolment]\n{keys}")).unwrap();
        let error = validate(ValidateArgs { file, of: None }).err().unwrap().to_string();
        assert!(error.contains("[enrolment] is its former name"), "{error}");
    }

    #[test]
    fn an_engine_has_the_keys_of_its_kind_alone() {
        let worker = "name = \"w\"\ndata_dir = \"/d\"\nendpoints = [\"a:1\"]\n[tls]\ninsecure_plaintext = true\n";
        assert_eq!(
            of(&format!("{worker}[[engine]]\nkind = \"mock\"\nseed = 7\n")),
            Vec::<String>::new()
        );
        let found =
            of(&format!("{worker}[[engine]]\nkind = \"openai\"\nseed = 7\nslots = 0\n")).join("\n");
        assert!(found.contains("engine[0].seed: engine openai: unknown key"), "{found}");
        assert!(found.contains("engine[0].slots: 0 is not in 1 to 64"), "{found}");
    }

    #[test]
    fn output_matches_the_golden_file() {
        let problem = Problem { key: "listen.peer".into(), problem: "is missing".into() };
        let report = Validation {
            file: "c1.toml".into(),
            of: "rollout-coordinator",
            good: false,
            problems: vec![problem],
        };
        crate::golden::report("config-validate.txt", &report);
    }
}
