//! What members know of each kind of operation, for every operation that the ledger keeps the bytes of.
//!
//! *Invariant:* the test fails until a golden command of the ledger has an operation of each kind. A fact that changes
//! for a kind changes its lines: since which cluster version there is such an operation, whether it costs more the
//! larger the state is, whether it adds to the ledger, the rows that it counts for, whether a quota may refuse it, and
//! whether a worker's stream waits for it.
//! Absent: who may ask for what, which is decided by methods.

use super::bytes_of;
use rollout_ledger::id::{CoordEpoch, LedgerMs};
use rollout_ledger::{
    Body, CheckpointOp, Command, DatasetOp, MemberOp, Op, OpKind, RevocationOp, SettingOp, ShardOp,
    StoreOp, TokenOp, TrainerOp, check_body_version, check_version, op,
};
use rollout_recorded::check;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

/// Files of `ledger/tests/testdata/golden`, each line a name and the bytes of a command.
const FILES: [&str; 2] = ["commands", "commands_more"];

/// A function a type that names the kind of a value.
macro_rules! names {
    ($($name:ident($kind:ident): $($variant:ident)+;)*) => {
        $(fn $name(value: &$kind) -> &'static str {
            match value {
                $($kind::$variant { .. } => stringify!($variant),)+
            }
        })*
    };
}

names! {
    store_op(StoreOp): Set Add CompareSet Append Delete Push Pop;
    dataset(DatasetOp): Create Delete;
    trainer(TrainerOp): Join Keep Leave Recover DeleteJob;
    shard(ShardOp): Claim Finish Release;
    checkpoint(CheckpointOp): Begin Report Abort Retain Label Forget;
    token(TokenOp): Create Revoke Spend;
    revocation(RevocationOp): Revoke Withdraw;
    setting(SettingOp): CordonAfter;
    member(MemberOp): Leads Started Stopped Unreachable Reachable Removed;
}

/// The name of an operation's kind and, of a group, that of the kind in it.
fn name(kind: &OpKind) -> (&'static str, &'static str) {
    let inner = match kind {
        OpKind::Dataset(inner) => dataset(inner),
        OpKind::Trainer(inner) => trainer(inner),
        OpKind::Shard(inner) => shard(inner),
        OpKind::Checkpoint(inner) => checkpoint(inner),
        OpKind::Token(inner) => token(inner),
        OpKind::Revocation(inner) => revocation(inner),
        OpKind::Member(inner) => member(inner),
        OpKind::Setting(inner) => setting(inner),
        _ => "",
    };
    (kind.name(), inner)
}

/// The ledger's golden commands, by file and name.
fn commands() -> Vec<(String, Command)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ledger/tests/testdata/golden");
    let mut commands = Vec::new();
    for file in FILES {
        let path = folder.join(file).with_extension("txt");
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| {
            panic!("{}: {e}: test golden of rollout-ledger writes it first", path.display())
        });
        for line in text.lines() {
            let (name, hex) = line.split_once(' ').expect("a name and bytes");
            let command = Command::decode(&bytes_of(hex)).expect("a command");
            commands.push((format!("{file}.{name}"), command));
        }
    }
    commands
}

fn command(body: Body) -> Command {
    Command { epoch: CoordEpoch(1), at: LedgerMs(1), wall_ms: 1, body }
}

fn yes(is: bool) -> &'static str {
    if is { "yes" } else { "no" }
}

/// The first cluster version that takes it.
fn since(takes: impl Fn(u32) -> bool) -> u32 {
    (0..100).find(|version| takes(*version)).expect("some version takes it")
}

fn facts(op: &Op) -> String {
    let since = since(|version| check_version(&op.kind, version).is_ok());
    let costly = command(Body::Ops(vec![op.clone()])).is_costly();
    format!(
        "since {since}, heavy {}, grows {}, rows {}, quota {}, exchange {}",
        yes(costly),
        yes(op.kind.grows()),
        op.kind.rows(),
        yes(op.kind.is_bounded()),
        yes(op.kind.in_exchange()),
    )
}

/// The name of a kind in `operations.txt`, which keeps the name that the kind had first.
fn recorded(kind: &'static str) -> &'static str {
    match kind {
        "ReuseResults" => "Carry",
        "SettleWebhook" => "Noticed",
        "SuspectWithUnreportedStarts" => "SuspectUnheard",
        "ClaimSpeculatively" => "Duplicate",
        _ => kind,
    }
}

/// An operation by its kinds, and where it does several things to a store, each alone.
fn shown(op: &Op, text: &mut String) {
    let (kind, inner) = name(&op.kind);
    let kind = recorded(kind);
    let separator = if inner.is_empty() { "" } else { "::" };
    // invariant: writing to a string does not fail.
    let _ = writeln!(text, "  {kind}{separator}{inner}: {}", facts(op));
    let (OpKind::Store(op::UseStore { ops, .. })
    | OpKind::RoundStore(op::UseRoundStore { ops, .. })) = &op.kind
    else {
        return;
    };
    for one in ops {
        let mut alone = op.clone();
        match &mut alone.kind {
            OpKind::Store(op::UseStore { ops, .. })
            | OpKind::RoundStore(op::UseRoundStore { ops, .. }) => *ops = vec![one.clone()],
            _ => {}
        }
        let _ = writeln!(text, "    {}: {}", store_op(one), facts(&alone));
    }
}

#[test]
fn the_record_of_each_operation_kind_is_kept() {
    let (mut text, mut seen) = (String::new(), BTreeSet::new());
    for (of, command) in commands() {
        let since = since(|version| check_body_version(&command.body, version).is_ok());
        // invariant: writing to a string does not fail.
        let _ = writeln!(text, "{of}: since {since}, heavy {}", yes(command.is_costly()));
        seen.extend(command.body.ops().map(|op| name(&op.kind).0));
        command.body.ops().for_each(|op| shown(op, &mut text));
    }
    let missing: Vec<_> = OpKind::NAMES.iter().filter(|kind| !seen.contains(*kind)).collect();
    assert!(missing.is_empty(), "no golden command of the ledger has {missing:?}");
    check(concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/operations.txt"), &text);
}
