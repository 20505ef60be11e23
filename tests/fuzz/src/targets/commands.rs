//! Fuzzes the commands of the log.

use rollout_ledger::Command;

use super::unhex;

/// A command that decodes is encoded as the same bytes, or as shorter ones with the same meaning.
pub(crate) fn run(bytes: &[u8]) {
    if let Some(command) = Command::decode(bytes) {
        assert_eq!(Command::decode(&command.encode()), Some(command));
    }
}

/// One command of each kind from the ledger's golden files.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let text = include_str!("../../../../ledger/tests/testdata/golden/commands.txt");
    text.lines().filter_map(|line| line.rsplit(' ').next()).map(unhex).collect()
}
