//! What decoders take: mutations of these come further than random bytes.

use prost::Message as _;
use rollout_engine_protocol::ToEngine;
use rollout_proto::pki::{IssueRequest, init_ca, issue, signing_request};
use rollout_proto::{Identity, Role, v1};
use rollout_storage::{
    PartRow, PartRowKind, PartWriter, SegmentWriter, SnapshotFileWriter, SnapshotHeader, Spool,
    record,
};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;

/// The hex of each line's last word.
fn unhex(text: &str) -> Vec<u8> {
    let nibble = |byte: u8| (byte as char).to_digit(16).map(|digit| digit as u8);
    let pair = |pair: &[u8]| Some(nibble(pair[0])? << 4 | nibble(*pair.get(1)?)?);
    text.as_bytes().chunks(2).map_while(pair).collect()
}

/// One of each kind that the ledger keeps for ever.
pub(crate) fn commands() -> Vec<Vec<u8>> {
    let text = include_str!("../../../ledger/tests/testdata/golden/commands.txt");
    text.lines().filter_map(|line| line.rsplit(' ').next()).map(unhex).collect()
}

fn sized(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend((bytes.len() as u16).to_le_bytes());
    out.extend(bytes);
}

/// The image after those commands, whole, and each of its records by itself behind the first.
pub(crate) fn images() -> Vec<Vec<u8>> {
    let mut ledger = rollout_ledger::Ledger::new([9; 16]);
    let mut image = std::collections::BTreeMap::new();
    for (index, command) in (1..).zip(commands()) {
        let entry = rollout_ledger::EntryId { index, term: 1 };
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
        sized(&mut one, b"M");
        sized(&mut one, meta.as_deref().unwrap_or_default());
        sized(&mut one, &key);
        sized(&mut one, &value);
        each.push(one);
        sized(&mut whole, &key);
        sized(&mut whole, &value);
    }
    each.push(whole);
    each
}

pub(crate) fn records() -> Vec<Vec<u8>> {
    [&b""[..], b"a payload"]
        .map(|payload| [b"logs".to_vec(), record::seal(b"logs", payload)].concat())
        .to_vec()
}

pub(crate) fn segments() -> Vec<Vec<u8>> {
    let mut writer = SegmentWriter::new();
    for n in 0..3u8 {
        let _ = writer.push([n; 32], u64::from(n), &[b'x'; 40][..usize::from(n) * 20]);
    }
    vec![SegmentWriter::new().finish().to_vec(), writer.finish().to_vec()]
}

fn part_row(row: u64, body: &[u8]) -> PartRow<'_> {
    PartRow { row, attempt: 7 << 16, kind: PartRowKind::Completed, body }
}

pub(crate) fn parts() -> Vec<Vec<u8>> {
    let mut writer = PartWriter::new();
    for n in 0..3 {
        let _ = writer.push(part_row(n, br#"{"choices":[]}"#));
    }
    vec![PartWriter::new().finish().to_vec(), writer.finish().to_vec()]
}

pub(crate) fn spools() -> Vec<Vec<u8>> {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("spool");
    let (mut spool, _) = Spool::open(&path).expect("opened");
    for n in 0..3 {
        spool.append(part_row(n, b"{}")).expect("appended");
    }
    spool.sync().expect("synced");
    vec![Vec::new(), std::fs::read(&path).expect("read")]
}

pub(crate) fn snapshots() -> Vec<Vec<u8>> {
    let header = SnapshotHeader {
        cluster_id: "09".repeat(16),
        member: "c1".into(),
        index: 7,
        term: 2,
        taken_unix_ms: 1,
        cluster_version: 3,
        program: "0.1.0".into(),
        salvaged: false,
        members: Vec::new(),
    };
    let mut writer = SnapshotFileWriter::new(Vec::new(), &header).expect("a header");
    for (key, value) in [(&b"M"[..], &b"meta"[..]), (b"Rx", b"")] {
        writer.record(key, value).expect("a record");
    }
    vec![writer.finish().expect("an end").0]
}

/// What the golden tests of the codec keep, each behind its kind.
pub(crate) fn consensus() -> Vec<Vec<u8>> {
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
    texts.iter().map(|text| unhex(text)).collect()
}

pub(crate) fn store_requests() -> Vec<Vec<u8>> {
    let text = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    let count = |count: u64| count.to_le_bytes().to_vec();
    vec![
        [vec![1], text("key"), text("value")].concat(),
        [vec![2], text("key"), text("old"), text("new")].concat(),
        [vec![10], count(2), text("a"), text("b")].concat(),
        [vec![11], count(1), text("a"), text("b"), vec![3], text("a")].concat(),
    ]
}

pub(crate) fn engine_messages() -> Vec<Vec<u8>> {
    // The kinds of messages, each with as many zeros as any of them has fields.
    let mut seeds: Vec<Vec<u8>> =
        (0..8u8).map(|kind| [&24u32.to_le_bytes()[..], &[kind], &[0; 23]].concat()).collect();
    let decoded: Vec<ToEngine> = seeds
        .iter()
        .filter_map(|seed| rollout_engine_protocol::read(&mut &seed[..]).ok())
        .collect();
    seeds
        .extend(decoded.iter().filter_map(|message| rollout_engine_protocol::encode(message).ok()));
    seeds
}

pub(crate) fn requests() -> Vec<Vec<u8>> {
    let id = Some(v1::RequestId { session: 7, seq: 2, ack_upto: 1 });
    let revoke = v1::RevokeRequest {
        request: id,
        identity: "worker/gpu-7".into(),
        issued_before_s: Some(1),
        ..Default::default()
    };
    let mut seeds: Vec<Vec<u8>> = (0..8).map(|kind| vec![kind]).collect();
    seeds.extend((0..8u8).map(|kind| [vec![kind], revoke.encode_to_vec()].concat()));
    // Nested messages, texts and numbers of the first fields.
    let nested =
        unhex("0a0608071002180112036162631a03646566220210012a0410012002320130380140015001");
    seeds.extend((0..8u8).map(|kind| [vec![kind], nested.clone()].concat()));
    seeds
}

pub(crate) fn credentials() -> Vec<Vec<u8>> {
    let dir = tempfile::tempdir().expect("a directory");
    init_ca(dir.path(), "fuzz").expect("an authority");
    let request = IssueRequest {
        role: Role::Client,
        name: "ann".into(),
        namespaces: vec!["a".into(), "b".into()],
        dns_names: vec!["localhost".into()],
        ip_addrs: Vec::new(),
        days: 1,
    };
    let files = issue(dir.path(), &request, dir.path()).expect("a certificate");
    let certificate = CertificateDer::from_pem_file(&files.cert).expect("PEM");
    let identity = Identity::new(Role::Worker, "gpu-7", vec!["a".into()]).expect("an identity");
    vec![
        certificate.to_vec(),
        signing_request(&dir.path().join("new.key")).expect("a request"),
        identity.to_uri().into_bytes(),
        b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".to_vec(),
    ]
}
