//! `rolloutctl config view`: every key of a daemon, its value, and the source of the value.
//!
//! Invariant: flags override the environment, which overrides the file, which overrides the default, as in the daemon.
//! If a key takes several names, those of the weaker source stay. Absent: values of secrets;
//! configurations name files.

mod process;

use std::collections::BTreeMap;
use std::path::PathBuf;

use rollout_config::{Key, Kind};
use serde::Serialize;
use toml::{Table as Toml, Value};

use self::process::Started;
use super::Daemon;
use super::check::default_of;
use super::file::File;
use crate::output::{self, Report, Table};
use crate::rolloutctl::Failure;
use crate::rolloutctl::verb::{self, Globals, Verb};

/// Of whom, and what it is started with.
#[derive(Debug, clap::Args)]
pub(crate) struct ViewArgs {
    /// Daemon whose configuration to show
    #[arg(long, value_enum, default_value = "coordinator")]
    of: Daemon,
    /// The configuration file [default: as the daemon finds it, else that of its unit in /etc/rollout]
    #[arg(long = "file", value_name = "FILE")]
    file: Option<PathBuf>,
    /// Read flags and environment of this running process; needs the rights of its user
    #[arg(long, value_name = "PID", conflicts_with = "flags")]
    pid: Option<u32>,
    /// Flags of the daemon, after `--`
    #[arg(last = true, value_name = "FLAGS")]
    flags: Vec<String>,
}

/// The source of a key's value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "from", content = "name", rename_all = "camelCase")]
enum Origin {
    Default,
    File(PathBuf),
    Environment(String),
    Flag(String),
    /// None: the key has no value.
    Unset,
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File(path) => write!(f, "file {}", path.display()),
            Origin::Environment(name) => write!(f, "environment {name}"),
            Origin::Flag(name) => write!(f, "flag {name}"),
            Origin::Unset => f.write_str("-"),
        }
    }
}

#[derive(Debug, Serialize)]
struct Line {
    key: String,
    value: Option<Value>,
    origin: Origin,
    about: &'static str,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct View {
    of: &'static str,
    file: Option<PathBuf>,
    settings: Vec<Line>,
}

impl Report for View {
    const KIND: &'static str = "ConfigView";

    fn table(&self) -> String {
        self.columns(&[])
    }

    fn wide(&self) -> String {
        self.columns(&["MEANING"])
    }
}

impl View {
    fn columns(&self, more: &[&str]) -> String {
        let mut table = Table::new(&["KEY", "VALUE", "ORIGIN"]).and(more);
        for line in &self.settings {
            let value = line.value.as_ref().map_or("-".to_owned(), ToString::to_string);
            table.row([line.key.clone(), value, line.origin.to_string(), line.about.to_owned()]);
        }
        table.to_string()
    }
}

/// The sources of values, strongest first.
struct Sources<'a> {
    started: &'a Started,
    file: Option<&'a File>,
}

impl Sources<'_> {
    /// The value of a key; `in_file` is its value in the file.
    fn line(&self, path: String, key: &'static Key, in_file: Option<&Value>) -> Line {
        let (value, origin) = self.value(key, in_file);
        Line { key: path, value, origin, about: &key.about }
    }

    fn value(&self, key: &Key, in_file: Option<&Value>) -> (Option<Value>, Origin) {
        let empty = Toml::new();
        let table = self.file.map_or(&empty, |file| &file.table);
        let weaker = match (in_file, default_of(key, table)) {
            (Some(value), _) => {
                let path = self.file.map(|file| file.path.clone()).unwrap_or_default();
                (Some(value.clone()), Origin::File(path))
            }
            (None, "") => (None, Origin::Unset),
            (None, default) => (parse(default), Origin::Default),
        };
        let env = (!key.env.is_empty()).then(|| self.started.env.get(&key.env)).flatten();
        let (given, origin) = match (self.started.flags.get(&key.flag), env) {
            (Some(given), _) => {
                let given: Vec<String> = given.iter().flat_map(|text| split(key, text)).collect();
                (given, Origin::Flag(key.flag.clone()))
            }
            (None, Some(text)) => (split(key, text), Origin::Environment(key.env.clone())),
            (None, None) => return weaker,
        };
        (Some(typed(key, &given, weaker.0)), origin)
    }
}

/// Commas separate list items, in flags and in variables.
fn split(key: &Key, text: &str) -> Vec<String> {
    match key.kind {
        Kind::Texts | Kind::Map => text.split(',').map(str::to_owned).collect(),
        _ => vec![text.to_owned()],
    }
}

fn parse(toml: &str) -> Option<Value> {
    let table: Toml = format!("v = {toml}").parse().ok()?;
    table.get("v").cloned()
}

/// Flags and variables are text: converts it as the daemon does.
fn typed(key: &Key, given: &[String], weaker: Option<Value>) -> Value {
    let text = given.last().cloned().unwrap_or_default();
    match key.kind {
        Kind::Integer(..) | Kind::Count(..) => {
            text.parse().map_or(Value::String(text), Value::Integer)
        }
        Kind::Bool => Value::Boolean(text.is_empty() || text == "true"),
        // A daemon adds stores to those of its file; endpoints replace them.
        Kind::Texts => {
            let kept = weaker.filter(|_| key.path == "store.urls");
            let mut all = match kept {
                Some(Value::Array(list)) => list,
                _ => Vec::new(),
            };
            all.extend(given.iter().cloned().map(Value::String));
            Value::Array(all)
        }
        Kind::Map => {
            let mut map = match weaker {
                Some(Value::Table(map)) => map,
                _ => Toml::new(),
            };
            for entry in given {
                let (name, value) = entry.split_once('=').unwrap_or((entry, ""));
                map.insert(name.to_owned(), Value::String(value.to_owned()));
            }
            Value::Table(map)
        }
        _ => Value::String(text),
    }
}

const ENGINE: &str = "engine[].";

fn lines(daemon: Daemon, started: &Started, file: Option<&File>) -> Vec<Line> {
    let sources = Sources { started, file };
    let plain = daemon.keys().iter().filter(|key| !key.path.starts_with(ENGINE));
    let mut lines: Vec<Line> = plain
        .map(|key| sources.line(key.path.clone(), key, file.and_then(|file| file.get(&key.path))))
        .collect();
    // A worker's --engine replaces the file's engines, and its other engine flags count only then.
    let by_flag = started.flags.get("--engine").and_then(|kind| kind.last());
    let blocks: Vec<Toml> = match by_flag {
        Some(kind) => {
            vec![Toml::from_iter([("kind".to_owned(), Value::String(kind.clone()))])]
        }
        None => file.map(File::engines).unwrap_or_default().into_iter().cloned().collect(),
    };
    let bare = Started { flags: BTreeMap::new(), env: started.env.clone() };
    for (at, block) in blocks.iter().enumerate() {
        let kind = block.get("kind").and_then(Value::as_str).unwrap_or_default();
        for key in daemon.keys().iter().filter(|key| key.has(kind)) {
            let Some(name) = key.path.strip_prefix(ENGINE) else { continue };
            let in_file = block.get(name).filter(|_| by_flag.is_none());
            let sources = match by_flag {
                Some(_) => &sources,
                None => &Sources { started: &bare, file },
            };
            lines.push(sources.line(format!("engine[{at}].{name}"), key, in_file));
        }
    }
    lines
}

impl Verb for ViewArgs {
    const KIND: verb::Kind<Self> = verb::Kind::Once;

    /// Prints the keys. Exit status 4 if the named file does not exist.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let daemon = self.of;
        let started = match self.pid {
            Some(pid) => Started::of_process(pid)?,
            None => Started::here(&self.flags),
        };
        let named = self
            .file
            .or_else(|| started.flags.get("--config").and_then(|all| all.last()).map(PathBuf::from))
            .or_else(|| started.env.get(daemon.file_env()).map(PathBuf::from));
        let usual = daemon.file_usual();
        let file = match named {
            Some(path) => Some(File::read(&path)?),
            None if usual.exists() => Some(File::read(usual)?),
            None if daemon == Daemon::Worker => None,
            None => {
                let text = format!("no file: name one, or write {}", usual.display());
                return Err(Failure::not_found(text).into());
            }
        };
        let settings = lines(daemon, &started, file.as_ref());
        let file = file.map(|file| file.path);
        output::emit(globals.format, &View { of: daemon.program(), file, settings })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn started(flags: &[&str], env: &[(&str, &str)]) -> Started {
        let flags: Vec<String> = flags.iter().map(ToString::to_string).collect();
        let mut started = Started::here(&flags);
        started.env = env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        started
    }

    fn file(text: &str) -> File {
        File { path: "c.toml".into(), table: text.parse().unwrap() }
    }

    #[test]
    fn each_value_has_the_strongest_source_that_gives_one() {
        let file = file(
            "name = \"c1\"\nlog = \"warn\"\n[raft]\nprofile = \"far-zones\"\n[dial_map]\na = \"h:1\"\n",
        );
        let env = [("ROLLOUT_DATA_DIR", "/env"), ("ROLLOUT_LOG", "debug")];
        let started = started(&["--name=c9", "--dial-map", "b=h:2"], &env);
        let lines = lines(Daemon::Coordinator, &started, Some(&file));
        let of = |key: &str| {
            let line = lines.iter().find(|line| line.key == key).unwrap();
            let value = line.value.as_ref().map_or("-".to_owned(), ToString::to_string);
            format!("{value} from {}", line.origin)
        };
        assert_eq!(of("name"), "\"c9\" from flag --name");
        assert_eq!(of("data_dir"), "\"/env\" from environment ROLLOUT_DATA_DIR");
        assert_eq!(of("log"), "\"debug\" from environment ROLLOUT_LOG");
        assert_eq!(of("raft.profile"), "\"far-zones\" from file c.toml");
        assert_eq!(of("raft.heartbeat_ms"), "300 from default");
        assert_eq!(of("zone"), "\"\" from default");
        assert_eq!(of("cluster_id"), "- from -");
        assert!(of("dial_map").contains("a = \"h:1\"") && of("dial_map").contains("b = \"h:2\""));
    }

    #[test]
    fn engines_are_those_of_the_file_or_the_one_of_the_flags() {
        let file = file("[[engine]]\nkind = \"mock\"\nseed = 7\n[[engine]]\nkind = \"openai\"\n");
        let keys = |flags: &[&str]| {
            let lines = lines(Daemon::Worker, &started(flags, &[]), Some(&file));
            let engines = lines.into_iter().filter(|line| line.key.starts_with("engine"));
            engines.map(|line| (line.key, line.value)).collect::<BTreeMap<_, _>>()
        };
        let two = keys(&[]);
        assert_eq!(two["engine[0].seed"], Some(Value::Integer(7)));
        assert!(two.contains_key("engine[1].timeout_ms") && !two.contains_key("engine[1].seed"));
        let one = keys(&["--engine", "mock", "--slots", "3"]);
        assert_eq!(one["engine[0].slots"], Some(Value::Integer(3)));
        assert_eq!(one["engine[0].seed"], Some(Value::Integer(0)));
        assert!(!one.contains_key("engine[1].kind"));
    }

    #[test]
    fn output_matches_the_golden_file() {
        let line = |key: &str, value: Option<Value>, origin: Origin| Line {
            key: key.into(),
            value,
            origin,
            about: "what it is for",
        };
        let settings = vec![
            line("name", Some("c1".into()), Origin::File("c1.toml".into())),
            line("raft.election_min_ms", Some(150.into()), Origin::Default),
            line("tls.ca_file", None, Origin::Unset),
        ];
        let report = View { of: "rollout-coordinator", file: Some("c1.toml".into()), settings };
        crate::golden::report("config-view.txt", &report);
    }
}
