//! Owns: the names of an output's files.
//!
//! Invariant: a name of another series or format is never mistaken for one of this output.
//! Absent: files.

use super::format::OutputFormat;

/// The names of an output's files.
#[derive(Debug, Clone)]
pub(super) struct Names {
    format: OutputFormat,
    /// The names that were written.
    written: Vec<String>,
}

impl Names {
    /// The list of files of a sharded output.
    pub(super) const MANIFEST: &str = "manifest.json";

    pub(super) fn new(format: OutputFormat) -> Self {
        Self { format, written: Vec::new() }
    }

    /// The name of a file, which counts as written from now on.
    pub(super) fn take(&mut self, stem: &str, shard: Option<u32>) -> String {
        let ending = self.format.ending();
        let name = match shard {
            Some(shard) => format!("{stem}-{shard:05}.{ending}"),
            None => format!("{stem}.{ending}"),
        };
        self.written.push(name.clone());
        name
    }

    /// Whether a name belongs to an earlier output of this format and not to this output.
    pub(super) fn is_stale(&self, name: &str) -> bool {
        !self.written.iter().any(|written| written == name) && Self::are_of(self.format, name)
    }

    /// Whether a name belongs to any output of that format.
    pub(super) fn are_of(format: OutputFormat, name: &str) -> bool {
        let [completions, errors] = [format.completions(), format.errors()];
        let Some((stem, ending)) = name.rsplit_once('.') else { return false };
        let of = |series: &str| match stem.strip_prefix(series) {
            Some("") => true,
            Some(shard) => shard.strip_prefix('-').is_some_and(|digits| {
                digits.len() >= 5 && digits.bytes().all(|byte| byte.is_ascii_digit())
            }),
            None => false,
        };
        ending == format.ending() && (of(completions) || of(errors))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_of_an_earlier_output_of_the_same_format_are_stale() {
        let mut names = Names::new(OutputFormat::Jsonl);
        assert_eq!(names.take("completions", Some(3)), "completions-00003.jsonl");
        assert_eq!(names.take("errors", None), "errors.jsonl");
        for (name, stale) in [
            ("completions-00003.jsonl", false),
            ("errors.jsonl", false),
            ("completions.jsonl", true),
            ("completions-00004.jsonl", true),
            ("errors-00000.jsonl", true),
            ("completions-4.jsonl", false),
            ("completions-mine1.jsonl", false),
            ("completions.parquet", false),
            ("output.jsonl", false),
            ("run-id", false),
        ] {
            assert_eq!(names.is_stale(name), stale, "{name}");
        }
    }
}
