//! Programs that users and workers run against the fleet, each with its own links and certificate.

use super::{Fleet, MEMBERS};
use anyhow::Result;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;

impl Fleet {
    /// Links of `name` to every member: their names and where to dial.
    fn links(&self, name: &str) -> Result<Vec<(String, String)>> {
        let link = |member: &super::FleetMember| {
            let link = self.network.link(name, &member.name, &member.client)?;
            Ok((member.name.clone(), link))
        };
        self.members.iter().map(link).collect()
    }

    fn tls_lines(&self, stem: &str) -> String {
        let tls = self.dir.join("tls");
        let tls = tls.display();
        format!(
            "ca_file = \"{tls}/ca.pem\"\ncert_file = \"{tls}/{stem}.pem\"\n\
             key_file = \"{tls}/{stem}.key\"\n"
        )
    }

    /// Writes the context of a user of this name, and returns the file.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn context(&self, name: &str) -> Result<PathBuf> {
        let links = self.links(name)?;
        let endpoints = links.iter().take(MEMBERS).map(|(_, link)| link.as_str());
        let endpoints: Vec<&str> = endpoints.collect();
        let dials: Vec<String> = links.iter().map(|(to, link)| format!("{to}={link}")).collect();
        let tls = self.tls_lines(&format!("client-{name}"));
        let text = format!("endpoints = {endpoints:?}\ndial_map = {dials:?}\n{tls}");
        let path = self.dir.join(format!("{name}.context.toml"));
        std::fs::write(&path, text)?;
        Ok(path)
    }

    /// Writes the configuration of a worker of this name, and returns the file. `head` is extra lines for its top,
    /// `engine` the lines of its only engine.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn worker_config(&self, name: &str, head: &str, engine: &str) -> Result<PathBuf> {
        let links = self.links(name)?;
        let endpoints = links.iter().take(MEMBERS).map(|(_, link)| link.as_str());
        let endpoints: Vec<&str> = endpoints.collect();
        let mut dial_map = String::new();
        for (to, link) in &links {
            writeln!(dial_map, "{to} = {link:?}")?;
        }
        let text = format!(
            "name = {name:?}\ndata_dir = {:?}\nendpoints = {endpoints:?}\n{head}\n[compute]\n\
             provider = \"none\"\n[tls]\n{}[dial_map]\n{dial_map}[[engine]]\n{engine}",
            self.worker_dir(name),
            self.tls_lines(&format!("worker-{name}")),
        );
        let path = self.dir.join(format!("worker-{name}.toml"));
        std::fs::write(&path, text)?;
        Ok(path)
    }

    /// The data directory of a worker of this name.
    pub fn worker_dir(&self, name: &str) -> PathBuf {
        self.dir.join(format!("worker-{name}"))
    }

    /// One of rollout's programs, without arguments.
    pub fn program(&self, name: &str) -> Command {
        Command::new(self.builds.current().join(name))
    }
}
