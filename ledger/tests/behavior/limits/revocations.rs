//! Bounds of revocations.

use crate::bench::Bench;
use rollout_ledger::{Body, OpKind, RevocationOp, Revoked, SCHEDULING_VERSION, limits};

fn revoke(identity: &str, reason: &str) -> OpKind {
    let whose = Revoked::Identity(identity.into());
    let reason = reason.into();
    OpKind::Revocation(RevocationOp::Revoke { whose, issued_before_s: None, reason, by: None })
}

pub(crate) fn revocations() {
    let mut bench = Bench::new();
    bench.command(Body::SetVersion(SCHEDULING_VERSION));
    bench.invalid(revoke("", ""));
    bench.invalid(revoke(&"i".repeat(limits::HOLDER_BYTES_MAX + 1), ""));
    bench.invalid(revoke("worker/w", &"r".repeat(limits::TEXT_BYTES_MAX + 1)));
    let most = limits::REVOCATIONS_MAX;
    bench.all_granted((0..most).map(|n| revoke(&format!("worker/w{n}"), "")));
    bench.over(most as u64, revoke("worker/more", ""));
    bench.granted(revoke("worker/w0", ""));
    let whose = Revoked::Identity("worker/w0".into());
    bench.granted(OpKind::Revocation(RevocationOp::Withdraw { whose, by: None }));
    bench.granted(revoke("worker/more", &"r".repeat(limits::TEXT_BYTES_MAX)));
}
