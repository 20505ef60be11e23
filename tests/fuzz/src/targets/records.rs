//! Fuzzes records on disk and workers' spools. The first byte selects the record type.

use rollout_storage::{PartRow, PartRowKind, Spool, record};

use super::{file_of, of, take_sized};

pub(crate) fn run(bytes: &[u8]) {
    let Some((kind, rest)) = bytes.split_first() else { return };
    match kind % 4 {
        0 => sealed(rest),
        1 => spool(rest),
        2 => changed_spool(rest),
        _ => {
            let (context, payload) = rest.split_at(rest.len().min(4));
            assert_eq!(record::open(context, &record::seal(context, payload)), Ok(payload));
        }
    }
}

/// A record that decodes is encoded as the same bytes.
fn sealed(bytes: &[u8]) {
    let (context, sealed) = bytes.split_at(bytes.len().min(4));
    if let Ok(payload) = record::open(context, sealed) {
        assert_eq!(record::seal(context, payload), sealed);
    }
}

/// Recovering a recovered spool gives the same rows.
fn spool(bytes: &[u8]) {
    let path = file_of("spool", bytes);
    if let Ok((spool, rows)) = Spool::open(&path) {
        drop(spool);
        let (_spool, again) = Spool::open(&path).expect("what was recovered opens");
        assert_eq!(rows, again);
    }
}

/// Rows with checksums, truncated and with one byte changed: each recovered row is one that was written.
fn changed_spool(mut bytes: &[u8]) {
    let Some((change, rest)) = bytes.split_first_chunk::<5>() else { return };
    bytes = rest;
    let path = file_of("spool", b"");
    let (mut spool, _) = Spool::open(&path).expect("an empty spool opens");
    let bodies: Vec<&[u8]> = std::iter::from_fn(|| take_sized(&mut bytes)).take(16).collect();
    for (row, body) in (0..).zip(&bodies) {
        let row = PartRow { row, attempt: 1, kind: PartRowKind::Completed, body };
        spool.append(row).expect("appended");
    }
    drop(spool);
    let mut whole = std::fs::read(&path).expect("read");
    let at = usize::from(u16::from_le_bytes([change[0], change[1]]));
    if let Some(byte) = whole.get_mut(at) {
        *byte ^= change[2];
    }
    let cut = usize::from(u16::from_le_bytes([change[3], change[4]]));
    whole.truncate(whole.len().saturating_sub(cut));
    let path = file_of("spool", &whole);
    let Ok((_spool, rows)) = Spool::open(&path) else { return };
    for row in rows {
        assert_eq!(bodies[row.row as usize], row.body, "a row that was not written");
    }
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("spool");
    let (mut spool, _) = Spool::open(&path).expect("opened");
    for row in 0..3 {
        let row = PartRow { row, attempt: 7 << 16, kind: PartRowKind::Completed, body: b"{}" };
        spool.append(row).expect("appended");
    }
    spool.sync().expect("synced");
    let spooled = std::fs::read(&path).expect("read");
    let mut seeds = vec![
        vec![1],
        of(1, &spooled),
        of(3, b"logspayload"),
        of(2, b"\x1e\0\x01\0\0\x02\0{}\x02\0{}"),
        of(2, b"\x1e\0\0\x03\0\x02\0{}\x05\0abcde"),
    ];
    seeds.extend(
        [&b""[..], b"a payload"]
            .map(|payload| of(0, &[&b"logs"[..], &record::seal(b"logs", payload)[..]].concat())),
    );
    seeds
}
