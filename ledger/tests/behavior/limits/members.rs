//! Bounds of the records of members.

use crate::bench::Bench;
use rollout_ledger::{Body, LeaderCause, MemberOp, OpKind, SCHEDULING_VERSION, limits};

fn started(id: u64, name: &str) -> OpKind {
    OpKind::Member(MemberOp::Started { id, name: name.into(), started_ms: 1 })
}

fn bench() -> Bench {
    let mut bench = Bench::new();
    bench.command(Body::SetVersion(SCHEDULING_VERSION));
    bench
}

pub(crate) fn seen() {
    let mut bench = bench();
    let most = limits::MEMBERS_SEEN_MAX as u64;
    bench.all_granted((0..most).map(|id| started(id, "c")));
    bench.over(most, started(most, "c"));
    bench.granted(started(0, "c"));
    bench.granted(OpKind::Member(MemberOp::Removed { id: 0 }));
    bench.granted(started(most, "c"));
}

pub(crate) fn names() {
    let mut bench = bench();
    let leads = |name: &str| {
        OpKind::Member(MemberOp::Leads { name: name.into(), cause: LeaderCause::First })
    };
    let longest = "c".repeat(limits::MEMBER_NAME_BYTES_MAX);
    for bad in ["", &format!("{longest}c")] {
        bench.invalid(started(1, bad));
        bench.invalid(leads(bad));
    }
    bench.granted(started(1, &longest));
    bench.granted(leads(&longest));
}
