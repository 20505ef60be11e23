//! The settings that the first start in a directory fixes for every later one: names, zones, ports.
//!
//! Invariant: the file is replaced as a whole, so a crash leaves the old one or the new one.

use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};

use super::args::DevArgs;
use super::layout::Layout;
use super::ports;
use crate::output::counted;

const FORMAT: u32 = 1;

/// The lasting description of a development cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Saved {
    format: u32,
    /// Whether the cluster was formed.
    pub bootstrapped: bool,
    /// The members, in the order of their names.
    pub members: Vec<SavedMember>,
}

/// One member, which keeps its name and ports forever.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedMember {
    /// `c1`, `c2`, ...
    pub name: String,
    /// Its own zone.
    pub zone: String,
    /// For workers and clients.
    pub client_port: u16,
    /// For the other members.
    pub peer_port: u16,
    /// For health and metrics.
    pub http_port: u16,
    /// For OpenAI's HTTP API; 0 in a file of an earlier build, until the next start.
    #[serde(default)]
    pub api_port: u16,
}

impl SavedMember {
    /// The address for workers and clients.
    pub fn client_addr(&self) -> String {
        format!("127.0.0.1:{}", self.client_port)
    }

    /// The address for the other members.
    pub fn peer_addr(&self) -> String {
        format!("127.0.0.1:{}", self.peer_port)
    }

    /// The address of health and metrics.
    pub fn http_addr(&self) -> String {
        format!("127.0.0.1:{}", self.http_port)
    }

    /// The address of OpenAI's HTTP API.
    pub fn api_addr(&self) -> String {
        format!("127.0.0.1:{}", self.api_port)
    }
}

impl Saved {
    /// The saved description, or a new one that was saved before it is returned.
    ///
    /// # Errors
    /// The flags contradict the directory, or no ports are free.
    pub fn load_or_create(layout: &Layout, args: &DevArgs) -> anyhow::Result<Self> {
        let Some(mut saved) = Self::load(layout)? else {
            let saved = Self::create(args.members, args.base_port)?;
            saved.save(layout)?;
            return Ok(saved);
        };
        saved.check(layout, args)?;
        if saved.members.iter().any(|member| member.api_port == 0) {
            let ports = ports::choose(saved.members.len(), 0)?;
            saved.members.iter_mut().zip(ports).for_each(|(member, port)| member.api_port = port);
            saved.save(layout)?;
        }
        Ok(saved)
    }

    /// Refuses flags that contradict the directory.
    ///
    /// # Errors
    /// The flags contradict it.
    pub fn check(&self, layout: &Layout, args: &DevArgs) -> anyhow::Result<()> {
        let saved = self;
        if saved.members.len() != usize::from(args.members) {
            bail!(
                "{} has {} and --members asks for {}; use another --dir, or remove it",
                layout.root().display(),
                counted(saved.members.len() as u64, "member"),
                args.members
            );
        }
        let first = saved.members[0].client_port;
        if args.base_port != 0 && first != args.base_port {
            bail!(
                "{} uses ports from {first} and --base-port asks for {}; use another --dir, or remove it",
                layout.root().display(),
                args.base_port
            );
        }
        Ok(())
    }

    /// The saved description; `None` before the first start.
    ///
    /// # Errors
    /// The file cannot be read or is invalid.
    pub fn load(layout: &Layout) -> anyhow::Result<Option<Self>> {
        let path = layout.saved();
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).context(format!("cannot read {}", path.display())),
        };
        Self::parse(&text, &path).map(Some)
    }

    /// Parses the bytes of the file at `path`.
    pub(super) fn parse(bytes: &[u8], path: &Path) -> anyhow::Result<Self> {
        let saved: Self = serde_json::from_slice(bytes).with_context(|| {
            format!("{} is not a valid description of a cluster", path.display())
        })?;
        if saved.format != FORMAT || saved.members.is_empty() {
            bail!("{} has format {}, expected {FORMAT}", path.display(), saved.format);
        }
        Ok(saved)
    }

    /// The description of a cluster that is not formed.
    pub(super) fn of(members: Vec<SavedMember>) -> Self {
        Self { format: FORMAT, bootstrapped: false, members }
    }

    fn create(members: u16, base_port: u16) -> anyhow::Result<Self> {
        let ports = ports::choose(usize::from(members) * 4, base_port)?;
        let members = (0..members)
            .zip(ports.chunks_exact(4))
            .map(|(at, ports)| SavedMember {
                name: format!("c{}", at + 1),
                zone: char::from(b'a' + at as u8).to_string(),
                client_port: ports[0],
                peer_port: ports[1],
                http_port: ports[2],
                api_port: ports[3],
            })
            .collect();
        Ok(Self::of(members))
    }

    /// Replaces the saved description.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn save(&self, layout: &Layout) -> anyhow::Result<()> {
        write_atomically(&layout.saved(), &serde_json::to_vec_pretty(self)?)
    }
}

/// Replaces a file as a whole, durably.
pub(super) fn write_atomically(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let write = || {
        let temporary = path.with_extension("new");
        let mut file = std::fs::File::create(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}
