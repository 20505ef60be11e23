//! The ports of OpenAI's HTTP API, and keys for it.

use super::{Fleet, free_addr};
use anyhow::{Context, Result};
use std::path::PathBuf;

/// An API key.
#[derive(Clone, Debug)]
pub struct ApiKey {
    pub id: String,
    /// The text that callers send.
    pub text: String,
}

impl Fleet {
    /// Chooses an address for each of these members, if the options ask for the API.
    pub(super) fn open_api_ports(&mut self, names: &[&str]) -> Result<()> {
        if !self.options.api {
            return Ok(());
        }
        for name in names {
            self.api_addrs.insert((*name).into(), free_addr()?);
        }
        Ok(())
    }

    /// The lines of a member's configuration.
    pub(super) fn api_lines(&self, name: &str) -> String {
        let listen = self.api_addrs.get(name);
        listen.map(|listen| format!("[api]\nlisten = {listen:?}\n")).unwrap_or_default()
    }

    /// The base URL of the API at a member.
    ///
    /// # Panics
    /// If it serves none.
    pub fn api_url(&self, name: &str) -> String {
        format!("https://{}/v1", self.api_addrs[name])
    }

    /// The authority with which callers verify members.
    pub fn ca_file(&self) -> PathBuf {
        self.path("tls").join("ca.pem")
    }

    /// Creates a key with these arguments.
    ///
    /// # Errors
    /// When it is refused.
    pub fn create_api_key(&self, name: &str, args: &[&str]) -> Result<ApiKey> {
        let made = self.ctl_json(&[&["key", "create", name], args].concat())?;
        let text = made["apiKey"].as_str().context("no key")?.to_owned();
        let id = text.split('_').nth(1).context("a key without an id")?.to_owned();
        Ok(ApiKey { id, text })
    }
}
