//! The setting `cordon-after`: the number of counted failures in a row after which the ledger cordons a slot.

use crate::fleet::Fleet;
use rollout_ledger::{
    Body, Evidence, FailureClass, HeldRows, Ledger, OpKind, Rejection, Reply, SettingOp, Settings,
    op,
};
use std::collections::BTreeMap;

const SECOND: u64 = 1000;
/// The key of the settings' record.
const KEY: &[u8] = b"Ms";

/// A run, and two workers with one slot each.
fn fleet() -> Fleet {
    let mut fleet = Fleet::new(3);
    fleet.run("default", "chat", 100);
    fleet.worker("default", "w1", 1);
    fleet.worker("default", "w2", 1);
    fleet
}

fn setting(value: u32) -> OpKind {
    OpKind::Setting(SettingOp::CordonAfter(value))
}

/// The engine of the first slot dies without a row.
fn die(fleet: &mut Fleet) {
    fleet.died(0, Vec::new(), FailureClass::EngineDied);
}

/// Fails the next row on the first slot.
fn fail_next(fleet: &mut Fleet) -> HeldRows {
    let held = fleet.pull(0, 1).remove(0).held;
    let (slot, class) = (fleet.slots[0].0, FailureClass::Transient);
    let (code, message) = ("ENGINE_ERROR".into(), "no such model".into());
    let evidence = Evidence::default();
    fleet.op(OpKind::Fail(op::Fail { slot, held: held.clone(), class, code, message, evidence }));
    held
}

fn records(ledger: &Ledger) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut records = BTreeMap::new();
    ledger.for_each_record(|key, value| drop(records.insert(key.to_vec(), value.to_vec())));
    records
}

#[test]
fn the_configured_number_of_deaths_cordons_a_slot() {
    for after in [1, 2, 5, 20] {
        let mut fleet = fleet();
        fleet.op(setting(after));
        for death in 1..=after {
            assert_eq!(fleet.cordon(0), None, "before death {death} of {after}");
            fleet.lead();
            die(&mut fleet);
        }
        assert!(fleet.cordon(0).is_some(), "after {after} deaths");
    }
}

#[test]
fn the_configured_number_of_counted_failures_cordons_a_slot() {
    for after in [1, 5] {
        let mut fleet = fleet();
        fleet.op(setting(after));
        for counted in 0..after {
            // A failure counts when another slot has completed the row.
            let failed = fail_next(&mut fleet);
            assert_eq!(fleet.cordon(0), None, "{counted} of {after} failures count");
            fleet.tick(SECOND);
            let held = fleet.pull(1, 1).remove(0).held;
            assert_eq!(held.rows, failed.rows);
            fleet.done(1, held);
            fleet.lead();
        }
        // A slot is judged with its next failure.
        fail_next(&mut fleet);
        assert!(fleet.cordon(0).is_some(), "{after} failures count");
    }
}

#[test]
fn a_change_applies_to_the_next_failure_and_ends_no_cordon() {
    let mut fleet = fleet();
    fleet.op(setting(20));
    for _ in 0..15 {
        die(&mut fleet);
    }
    fleet.op(setting(3));
    fleet.lead();
    assert_eq!(fleet.cordon(0), None, "a change cordons no slot");
    die(&mut fleet);
    assert!(fleet.cordon(0).is_some());
    fleet.op(setting(20));
    fleet.lead();
    assert!(fleet.cordon(0).is_some(), "a change ends no cordon");
}

#[test]
fn an_image_a_backup_and_a_restored_cluster_keep_the_setting() {
    let mut fleet = fleet();
    let plain = records(&fleet.ledger);
    assert!(!plain.contains_key(KEY), "an earlier build knows no such record");
    fleet.op(setting(7));
    fleet.lead();
    assert_eq!(fleet.ledger.settings().cordon_after(), 7);
    let saved = records(&fleet.ledger);
    let loaded = Ledger::load(saved.clone()).expect("it loads").restored([8; 16], 1);
    assert_eq!(loaded.settings().cordon_after(), 7);
    loaded.check_invariants().expect("they hold");
    // One that is out of its bounds is no image.
    let mut bad = saved;
    *bad.get_mut(KEY).and_then(|record| record.last_mut()).expect("its value") = 0;
    assert!(Ledger::load(bad).is_err());
    fleet.op(setting(Settings::default().cordon_after()));
    fleet.lead();
    assert_eq!(fleet.ledger.settings(), Settings::default());
    assert!(!records(&fleet.ledger).contains_key(KEY), "the default needs no record");
}

#[test]
fn below_its_version_a_cluster_has_no_settings_and_writes_none() {
    let mut fleet = Fleet::new(2);
    let reply = fleet.apply(Body::Ops(vec![setting(5).into()]));
    let low = Rejection::VersionLow { needs: 3, version: 2 };
    assert_eq!(reply, Reply::Rejected(low));
    assert_eq!(fleet.ledger.settings(), Settings::default());
    assert!(!records(&fleet.ledger).contains_key(KEY));
    fleet.apply(Body::SetVersion(3));
    fleet.op(setting(5));
    assert_eq!(fleet.ledger.settings().cordon_after(), 5);
}
