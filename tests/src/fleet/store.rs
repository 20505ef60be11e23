//! The object store that all processes of a fleet use.

use super::Fleet;
use crate::wait::eventually;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

impl Fleet {
    /// The object store's URL.
    pub fn store_url(&self) -> String {
        match &self.options.s3 {
            Some(s3) => s3.url(),
            None => format!("file://{}", self.path("store").display()),
        }
    }

    /// The folder of a run's objects in the store, which is a file system here. Waits until it exists.
    pub fn objects_of(&self, run: &str) -> PathBuf {
        let of_the_name = self.path(&format!("store/runs/default/{run}"));
        eventually("the run has a folder", Duration::from_secs(60), || {
            let mut folders = std::fs::read_dir(&of_the_name).ok()?;
            folders.find_map(|folder| Some(folder.ok()?.path()).filter(|path| path.is_dir()))
        })
    }

    /// Adds what a process needs to use the store, by its name, to its command.
    pub(super) fn store_into(&self, command: &mut Command, name: &str) {
        if let Some(s3) = &self.options.s3 {
            command.envs(s3.env(name));
        }
    }

    /// The same for a program of a test.
    pub fn use_store(&self, command: &mut Command, name: &str) {
        self.store_into(command, name);
    }
}
