//! Certificates of the fleet's processes and users, and clients that present them.

use super::{COMMAND_MAX, Fleet, Member};
use anyhow::Result;
use rollout_proto::pki::{self, IssueRequest};
use rollout_proto::{Client, ClientConfig, Role, Security, TlsFiles};

impl Fleet {
    pub(super) fn issue(&self, role: Role, name: &str) -> Result<TlsFiles> {
        let request = IssueRequest {
            role,
            name: name.into(),
            namespaces: Vec::new(),
            dns_names: vec!["localhost".into()],
            ip_addrs: vec![[127, 0, 0, 1].into()],
            days: 2,
        };
        Ok(pki::issue(&self.path("ca"), &request, &self.path("tls"))?)
    }

    /// A worker's certificate, for a test that plays a worker of that name.
    ///
    /// # Errors
    /// When it cannot be issued.
    pub fn certify_worker(&self, name: &str) -> Result<Security> {
        self.issue(Role::Worker, name)?;
        Ok(self.security("worker", name))
    }

    /// The certificate of a client besides the fleet's own.
    ///
    /// # Errors
    /// When it cannot be issued.
    pub fn certify_client(&self, name: &str) -> Result<Security> {
        self.issue(Role::Client, name)?;
        Ok(self.security("client", name))
    }

    /// The certificate of one of the fleet's processes, by role and name, for a program of the test.
    pub fn security(&self, role: &str, name: &str) -> Security {
        let file = |end: &str| self.path("tls").join(format!("{role}-{name}.{end}"));
        Security::Mtls(TlsFiles {
            ca: self.path("tls").join("ca.pem"),
            cert: file("pem"),
            key: file("key"),
        })
    }

    /// A client of the present members, which waits for a leader as long as a command may take.
    ///
    /// # Errors
    /// When it has no usable certificate.
    pub fn client(&self, role: &str, name: &str) -> Result<Client> {
        let endpoints = self.members.iter().map(|m| m.client.clone()).collect();
        let mut config = ClientConfig::new(endpoints, self.security(role, name));
        config.timeout = COMMAND_MAX;
        Ok(Client::new(config)?)
    }

    pub(super) fn tls_lines(&self, stem: &str) -> String {
        let dir = self.path("tls");
        let (ca, dir) = (dir.join("ca.pem"), dir.display());
        format!(
            "ca_file = {ca:?}\ncert_file = \"{dir}/{stem}.pem\"\nkey_file = \"{dir}/{stem}.key\"\n"
        )
    }

    pub(super) fn write_context(&self, name: &str, stem: &str) -> Result<()> {
        let endpoints: Vec<&str> = self.members.iter().map(|m| m.client.as_str()).collect();
        let named = |m: &Member| format!("{}={}", m.name, m.client);
        let dial_map: Vec<String> = match self.options.alone {
            Some(_) => self.members.iter().map(named).collect(),
            None => Vec::new(),
        };
        let tls = self.tls_lines(stem);
        let text = format!("endpoints = {endpoints:?}\ndial_map = {dial_map:?}\n{tls}");
        Ok(std::fs::write(self.path(&format!("{name}.toml")), text)?)
    }
}
