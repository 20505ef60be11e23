//! Where things are in the directory of a development cluster.
//!
//! Invariant: every path is absolute, so that a config works from any working directory.

use std::io;
use std::path::{Path, PathBuf};

use rollout_proto::TlsFiles;

/// The directory of one development cluster.
#[derive(Debug, Clone)]
pub struct Layout {
    root: PathBuf,
}

impl Layout {
    /// The layout under `dir`, which is created if it is missing.
    ///
    /// # Errors
    /// It cannot be created, or is not a directory.
    pub fn open(dir: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(dir)?;
        let layout = Self { root: dir.canonicalize()? };
        for sub in [layout.tls(), layout.logs(), layout.configs(), layout.store()] {
            std::fs::create_dir_all(sub)?;
        }
        Ok(layout)
    }

    /// The layout of an existing directory, without creating anything.
    ///
    /// # Errors
    /// The directory does not exist.
    pub fn existing(dir: &Path) -> io::Result<Self> {
        Ok(Self { root: dir.canonicalize()? })
    }

    /// The directory itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The settings that the first start fixed.
    pub fn saved(&self) -> PathBuf {
        self.root.join("dev.json")
    }

    /// The processes of the last start.
    pub fn pids(&self) -> PathBuf {
        self.root.join("pids.json")
    }

    /// The lock that a `rollout dev` holds while it runs here.
    pub fn lock(&self) -> PathBuf {
        self.root.join("dev.lock")
    }

    /// Certificates and keys.
    pub fn tls(&self) -> PathBuf {
        self.root.join("tls")
    }

    /// The certificate authority: anyone who can read its key can impersonate any identity.
    pub fn ca(&self) -> PathBuf {
        self.root.join("ca")
    }

    /// One log file per process.
    pub fn logs(&self) -> PathBuf {
        self.root.join("logs")
    }

    /// The log file of one process.
    pub fn log(&self, process: &str) -> PathBuf {
        self.logs().join(format!("{process}.log"))
    }

    /// Config files, written anew at every start.
    pub fn configs(&self) -> PathBuf {
        self.root.join("config")
    }

    /// The config file of one process.
    pub fn config(&self, process: &str) -> PathBuf {
        self.configs().join(format!("{process}.toml"))
    }

    /// The data directory of one process.
    pub fn data(&self, process: &str) -> PathBuf {
        self.root.join("data").join(process)
    }

    pub fn store(&self) -> PathBuf {
        self.root.join("store")
    }

    /// The object store as the cluster knows it.
    pub fn store_url(&self) -> String {
        format!("file://{}", self.store().display())
    }

    /// The context file of a role: `client` or `admin`.
    pub fn context(&self, role: &str) -> PathBuf {
        self.root.join(format!("{role}.toml"))
    }

    /// Variables for programs that call OpenAI's HTTP API, with a key.
    pub fn openai_env(&self) -> PathBuf {
        self.root.join("openai.env")
    }

    /// The certificate files of one identity.
    pub fn tls_files(&self, role: &str, name: &str) -> TlsFiles {
        let tls = self.tls();
        TlsFiles {
            ca: tls.join("ca.pem"),
            cert: tls.join(format!("{role}-{name}.pem")),
            key: tls.join(format!("{role}-{name}.key")),
        }
    }
}
