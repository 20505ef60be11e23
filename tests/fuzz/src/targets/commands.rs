//! Commands of the log.

use rollout_ledger::Command;

use super::unhex;

/// A command that decodes is written as the same bytes again, or as shorter ones that mean the same.
pub(crate) fn run(bytes: &[u8]) {
    if let Some(command) = Command::decode(bytes) {
        assert_eq!(Command::decode(&command.encode()), Some(command));
    }
}

/// One of each kind that the ledger keeps for ever.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let text = include_str!("../../../../ledger/tests/testdata/golden/commands.txt");
    text.lines().filter_map(|line| line.rsplit(' ').next()).map(unhex).collect()
}
