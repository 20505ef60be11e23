//! Members that enroll unenrolled clients, and workers that start with nothing but a join token.

use super::{Fleet, WorkerOptions, free_addr};
use crate::process::Process;
use anyhow::{Context, Result};
use rollout_proto::pki;
use std::path::{Path, PathBuf};

impl Fleet {
    /// Makes the intermediate CA and an enrollment address for each of these members, if the options ask
    /// for them.
    pub(super) fn open_enrollment_ports(&mut self, names: &[&str]) -> Result<()> {
        let options = &self.options;
        if options.enrollment_lifetime_s.is_none() && !options.enrollment_by_default {
            return Ok(());
        }
        if !self.path("issuer").exists() {
            pki::init_issuer(&self.path("ca"), &self.path("issuer"), 30)?;
        }
        self.enrollment_addrs.clear();
        for name in names {
            self.enrollment_addrs.insert((*name).into(), free_addr()?);
        }
        Ok(())
    }

    /// The lines of a member's configuration.
    pub(super) fn enrollment_lines(&self, name: &str) -> String {
        let Some(listen) = self.enrollment_addrs.get(name) else { return String::new() };
        let lifetime = self.options.enrollment_lifetime_s.map(|s| format!("lifetime_s = {s}\n"));
        let (cert, key) = (self.path("issuer/issuer.pem"), self.path("issuer/issuer.key"));
        format!(
            "[{}]\nlisten = {listen:?}\nissuer_cert_file = {cert:?}\nissuer_key_file = {key:?}\n\
             {}",
            self.enrollment_section(),
            lifetime.unwrap_or_default()
        )
    }

    /// The section's name in a configuration, which both builds of a fleet can read: an earlier one knows only the
    /// former name.
    fn enrollment_section(&self) -> &'static str {
        if self.options.baseline.is_some() { "enrolment" } else { "enrollment" }
    }

    /// The enrollment address of a member.
    ///
    /// # Panics
    /// If it has none.
    pub fn enrollment_addr(&self, name: &str) -> &str {
        &self.enrollment_addrs[name]
    }

    /// Makes a join token with these arguments, and returns its text.
    ///
    /// # Errors
    /// When it is refused.
    pub fn token(&self, name: &str, args: &[&str]) -> Result<String> {
        let made = self.ctl_json(&[&["token", "create", name], args].concat())?;
        Ok(made["token"].as_str().context("no token")?.to_owned())
    }

    /// Starts a worker that has a token and no certificate. Its directory is `worker-NAME`.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start_unenrolled_worker(
        &mut self,
        name: &str,
        token: &Path,
        options: &WorkerOptions,
    ) -> Result<()> {
        let endpoints: Vec<&str> = self.members.iter().map(|m| m.client.as_str()).collect();
        let enrollment_addrs: Vec<&str> =
            self.enrollment_addrs.values().map(String::as_str).collect();
        let text = format!(
            "name = {name:?}\ndata_dir = {:?}\nendpoints = {endpoints:?}\n{}\n[compute]\n\
             provider = \"none\"\n[{}]\ntoken_file = {token:?}\nendpoints = {enrollment_addrs:?}\n\
             [[engine]]\n{}",
            self.path(&format!("worker-{name}")),
            options.head,
            self.enrollment_section(),
            options.engine,
        );
        let config = self.path(&format!("worker-{name}.toml"));
        std::fs::write(&config, text)?;
        let mut command = self.program_of(name, "rollout-worker");
        command.arg("--config").arg(&config);
        let process = Process::start(command, &self.path(&format!("worker-{name}.log")))?;
        self.workers.insert(name.into(), Some(process));
        Ok(())
    }

    /// The certificate of a worker that enrolled.
    pub fn enrolled_cert(&self, name: &str) -> PathBuf {
        self.path(&format!("worker-{name}/identity/worker-{name}.pem"))
    }
}
