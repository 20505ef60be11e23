//! Owns: the batch file of a command that has none: `rollout infer batch --model M --input FILE --output DIR`.
//!
//! Invariant: the file is in the output directory before the directory is reserved, so the run can be resumed like any
//! other. A different file with this name is refused, never replaced.
//! Absent: the keys of a batch file (`batch::config`).

use rollout_batch::export::atomic_file::{self, Replace};
use rollout_batch::submission::config::BatchConfig;
use rollout_batch::submission::error::BatchError;

use super::super::error::CommandError;
use std::path::{Path, PathBuf};

use crate::rollout::cli::BatchArgs;

const NAME: &str = "batch.toml";

/// The flags that replace a batch file.
struct Flags<'a> {
    model: &'a str,
    input: &'a [String],
    output: &'a Path,
}

impl Flags<'_> {
    fn path(&self) -> PathBuf {
        self.output.join(NAME)
    }

    /// The file's text. Paths of the input are relative to `base`.
    fn text(&self, base: &Path) -> String {
        let base = glob::Pattern::escape(&base.display().to_string());
        let from_base = |input: &String| match input.contains("://") || input.starts_with('/') {
            true => input.clone(),
            false => format!("{base}/{input}"),
        };
        let globs: Vec<String> = self.input.iter().map(from_base).collect();
        let block =
            |key: &str, value: toml::Value| toml::Table::from_iter([(key.to_owned(), value)]);
        let blocks = [
            ("model", block("uri", self.model.into())),
            ("input", block("glob", globs.into())),
            ("output", block("dir", ".".into())),
        ];
        let blocks = blocks.map(|(name, block)| (name.to_owned(), block.into()));
        toml::Table::from_iter(blocks).to_string()
    }
}

impl BatchArgs {
    /// The path of the batch file, which `write_batch_file` writes if the command names none.
    pub(in crate::rollout) fn batch_file(&self) -> PathBuf {
        match &self.config {
            Some(path) => path.clone(),
            None => self.flags().path(),
        }
    }

    /// Reads the batch file, or checks the flags that replace it.
    pub(super) fn read_batch_file(&self) -> Result<BatchConfig, CommandError> {
        match &self.config {
            Some(path) => Ok(BatchConfig::read(path)?),
            None => {
                let text = self.flags().text(&here()?);
                let output = self.flags().output;
                Ok(BatchConfig::parse(&text, &self.batch_file(), output)?)
            }
        }
    }

    /// Writes the batch file into the output directory, if the command names none.
    pub(super) fn write_batch_file(&self) -> Result<(), CommandError> {
        if self.config.is_some() {
            return Ok(());
        }
        let flags = self.flags();
        let (path, text) = (flags.path(), flags.text(&here()?));
        let failed = |source| BatchError::Output { path: path.clone(), source };
        if atomic_file::write(flags.output, NAME, &text, Replace::Nothing).map_err(failed)? {
            return Ok(());
        }
        match std::fs::read_to_string(&path).map_err(failed)? == text {
            true => Ok(()),
            false => Err(CommandError::Usage(format!(
                "{0} belongs to a batch with other flags: choose another --output, or run that batch with --config {0}",
                path.display()
            ))),
        }
    }

    /// clap requires all three if there is no batch file.
    fn flags(&self) -> Flags<'_> {
        Flags {
            model: self.model.as_deref().unwrap_or_default(),
            input: &self.input,
            output: self.output.as_deref().unwrap_or(Path::new("")),
        }
    }
}

fn here() -> Result<PathBuf, CommandError> {
    std::env::current_dir().map_err(|error| {
        CommandError::Usage(format!("the working directory cannot be read: {error}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_means_the_same_from_any_directory() {
        let input =
            ["a/*.jsonl".to_owned(), "/b.jsonl".to_owned(), "s3://bucket/c.jsonl".to_owned()];
        let flags = Flags { model: "it's \"a\" model", input: &input, output: Path::new("out") };
        let config =
            BatchConfig::parse(&flags.text(Path::new("/job [1]")), &flags.path(), flags.output)
                .unwrap();
        assert_eq!(config.model.uri, "it's \"a\" model");
        let globs = ["/job [[]1[]]/a/*.jsonl", "/b.jsonl", "s3://bucket/c.jsonl"];
        assert_eq!(config.input.glob.list(), globs);
        assert_eq!(config.output.dir.to_str(), Some("out"));
    }
}
