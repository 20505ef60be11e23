//! Fuzzes images of the ledger: records, each a key and a value, both preceded by a two-byte length.

use std::collections::BTreeMap;

use rollout_ledger::{EntryId, Ledger};

use super::{commands, push_sized, take_sized};

/// An image that loads must be written again in full.
pub(crate) fn run(mut bytes: &[u8]) {
    let mut sized = || take_sized(&mut bytes).map(<[u8]>::to_vec);
    let records = std::iter::from_fn(|| Some((sized()?, sized()?)));
    let records: Vec<(Vec<u8>, Vec<u8>)> =
        records.filter(|(key, _)| key.first().is_some_and(u8::is_ascii_uppercase)).collect();
    if let Ok(mut ledger) = Ledger::load(records) {
        drop(ledger.drain_dirty());
    }
}

/// The whole image after the golden commands, and each of its records alone after the first.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let mut ledger = Ledger::new([9; 16]);
    let mut image = BTreeMap::new();
    for (index, command) in (1..).zip(commands::seeds()) {
        let entry = EntryId { index, term: 1 };
        ledger.apply(entry, &command).expect("a command of this version");
        let delta = ledger.drain_dirty();
        image.extend(delta.puts);
        for key in &delta.deletes {
            image.remove(key);
        }
    }
    let meta = image.get(&b"M"[..]).cloned();
    let image = image.into_iter().filter(|(_, value)| value.len() < 1 << 16);
    let mut whole = Vec::new();
    let mut each = Vec::new();
    for (key, value) in image {
        let mut one = Vec::new();
        push_sized(&mut one, b"M");
        push_sized(&mut one, meta.as_deref().unwrap_or_default());
        push_sized(&mut one, &key);
        push_sized(&mut one, &value);
        each.push(one);
        push_sized(&mut whole, &key);
        push_sized(&mut whole, &value);
    }
    each.push(whole);
    each
}
