//! `rolloutctl key describe ID...`.

use serde::Serialize;

use super::summary::Key;
use crate::output::{self, Report};
use crate::rolloutctl::for_each_name::for_each_name;
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Which key.
#[derive(Debug, clap::Args)]
pub(crate) struct DescribeArgs {
    /// The key's id, or several
    #[arg(value_name = "ID", required = true)]
    ids: Vec<String>,
}

#[derive(Serialize)]
#[serde(transparent)]
struct Described(Key);

impl Report for Described {
    const KIND: &'static str = "Key";

    fn table(&self) -> String {
        self.0.described()
    }
}

impl Verb for DescribeArgs {
    const KIND: Kind<Self> = Kind::ReadOnly;

    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        for_each_name(self.ids, globals.format, None, async |id, format| {
            let client = globals.connect.settings()?.client(None)?;
            output::emit(format, &Described(super::fetch(&client, &id).await?))
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::super::summary::sample;
    use super::*;

    #[test]
    fn output_matches_the_golden_file() {
        crate::golden::report("key-describe.txt", &Described(sample().into()));
    }
}
