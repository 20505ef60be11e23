//! Fuzzes messages between members, and the consensus state on disk. The first byte selects the decoder. New decoders
//! get new bytes, so that kept inputs keep their meaning.

use super::{of, unhex};

const LOG_SIZE: u8 = 255;

pub(crate) fn run(bytes: &[u8]) {
    match bytes.split_first() {
        Some((&LOG_SIZE, rest)) => rollout_raft::fuzzing::log_size(rest),
        _ => rollout_raft::fuzzing::decode(bytes),
    }
}

/// The golden bytes of the codec and the size of a log, each preceded by its kind.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    const ID: &str = "03000000000000000201000000000000";
    const MEMBERSHIP: &str = "0200000001000000010000000000000002000000010000000000000009000000000000000300000001000000000000000100000000000000010000006103000000703a3103000000633a32010000007a01000000020000000109000000000000000900000000000000010000006203000000703a3103000000633a32010000007a01000000020000000207000000000000000a000000000000000a00000000000000010000006c03000000703a3103000000633a32010000007a010000000200000000";
    let digest = "aa".repeat(32);
    let texts = [
        format!("000102{ID}{MEMBERSHIP}"),
        format!("000101{ID}616263"),
        format!("0101{ID}"),
        "02010500000000000000020000000000000001".to_owned(),
        format!("030101{ID}{MEMBERSHIP}"),
        format!(
            "040105000000000000000200000000000000010001{ID}02000000150000000101{ID}616263120000000100{ID}"
        ),
        format!("05010001{ID}"),
        format!("050101{ID}"),
        format!("0601050000000000000002000000000000000001{ID}01"),
        format!("07010500000000000000020000000000000001090000000000000001{ID}"),
        format!("08010201{ID}00"),
        format!(
            "0901050000000000000002000000000000000101{ID}01{ID}{MEMBERSHIP}0100000001000000660300000000000000{digest}"
        ),
    ];
    let golden = texts.iter().map(|text| unhex(text));
    golden.chain([of(LOG_SIZE, &rollout_raft::fuzzing::encoded_log_size())]).collect()
}
