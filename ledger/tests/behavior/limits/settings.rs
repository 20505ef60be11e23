//! Bounds of the cluster's settings.

use crate::bench::Bench;
use rollout_ledger::{Body, OpKind, SCHEDULING_VERSION, SettingOp, limits};

pub(crate) fn cordon_after() {
    let mut bench = Bench::new();
    bench.command(Body::SetVersion(SCHEDULING_VERSION));
    let set = |value| OpKind::Setting(SettingOp::CordonAfter(value));
    let (least, most) = limits::CORDON_AFTER.into_inner();
    for bad in [least - 1, most + 1, u32::MAX] {
        bench.invalid(set(bad));
        assert_eq!(bench.ledger.settings().cordon_after(), limits::CORDON_AFTER_DEFAULT);
    }
    for good in [least, most] {
        bench.granted(set(good));
        assert_eq!(bench.ledger.settings().cordon_after(), good);
    }
}
