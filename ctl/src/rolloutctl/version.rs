//! `rolloutctl version`.

use serde::Serialize;

use crate::output::{self, Format, Report};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Version {
    version: &'static str,
    api_version: &'static str,
}

impl Report for Version {
    const KIND: &'static str = "Version";

    fn table(&self) -> String {
        format!("rolloutctl {}\n", self.version)
    }
}

/// Prints the version of this program, without contacting a cluster.
pub(crate) fn run(format: Format) -> anyhow::Result<()> {
    output::emit(
        format,
        &Version { version: env!("CARGO_PKG_VERSION"), api_version: output::API_VERSION },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_matches_the_golden_file() {
        let report = Version { version: "0.1.0", api_version: output::API_VERSION };
        crate::golden::report("version.txt", &report);
    }
}
