//! Settings of the cluster, which operators change while it runs.
//!
//! *Invariant:* each setting is within its bounds. An operation that sets the current value is accepted, changes
//! nothing and makes no event; a rejected one changes nothing. A change does not cordon a slot or end a cordon: it
//! applies to the next incident of each slot. Backups and restored clusters keep the settings. Only this file changes
//! them, and marks their record for the image.
//!
//! Absent: settings of one member or worker, which are in their configuration files.

use crate::kernel::codec;
use crate::kernel::limits;
use crate::kernel::reply::{Rejection, Reply};
use crate::machine::apply::Context;
use crate::machine::event::EventKind;
use crate::machine::image::ImageDelta;
use crate::machine::image_load::{LoadError, bad, read};
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation, Subject};
use crate::machine::version_gate::{SCHEDULING_VERSION, came_with};
use serde::{Deserialize, Serialize};

/// The current settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    cordon_after: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self { cordon_after: limits::CORDON_AFTER_DEFAULT }
    }
}

/// A change of one setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SettingOp {
    /// Sets [`Settings::cordon_after()`].
    CordonAfter(u32),
}

/// A setting as operators see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SettingView {
    /// Its name.
    pub name: &'static str,
    /// What it means, human-readable.
    pub meaning: &'static str,
    /// The value in force.
    pub value: u32,
    /// The value unless an operator sets another one.
    pub default: u32,
    /// The least value that an operator may set.
    pub min: u32,
    /// The greatest value that an operator may set.
    pub max: u32,
}

impl SettingOp {
    /// Every setting, as the change to a value.
    const ALL: [fn(u32) -> Self; 1] = [Self::CordonAfter];

    /// The setting of this name, and its new value.
    pub fn of_name(name: &str, value: u32) -> Option<Self> {
        Self::ALL.into_iter().map(|set| set(value)).find(|op| op.name() == name)
    }

    /// The names of all settings.
    pub fn names() -> impl Iterator<Item = &'static str> {
        Self::ALL.into_iter().map(|set| set(0).name())
    }

    /// Refuses a value out of the setting's bounds.
    fn check(self) -> Result<(), Rejection> {
        match self {
            Self::CordonAfter(to) => check_cordon_after(to),
        }
    }

    /// The setting's name, as operators write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::CordonAfter(_) => "cordon-after",
        }
    }
}

fn check_cordon_after(value: u32) -> Result<(), Rejection> {
    let bounds = limits::CORDON_AFTER;
    match bounds.contains(&value) {
        true => Ok(()),
        false => {
            let (min, max) = bounds.into_inner();
            let text = format!("cordon-after cannot be {value}: set {min} to {max}");
            Err(Rejection::Invalid(text))
        }
    }
}

impl Settings {
    /// How many counting incidents, with no finished row between them, cordon a slot. Within [`limits::CORDON_AFTER`].
    pub fn cordon_after(&self) -> u32 {
        self.cordon_after
    }

    /// Whether each setting is within its bounds.
    fn are_valid(&self) -> bool {
        check_cordon_after(self.cordon_after).is_ok()
    }

    /// Every setting.
    pub fn views(&self) -> Vec<SettingView> {
        SettingOp::ALL.into_iter().map(|set| self.view(set(0))).collect()
    }

    /// The setting that `op` would change.
    fn view(&self, op: SettingOp) -> SettingView {
        match op {
            SettingOp::CordonAfter(_) => {
                let (min, max) = limits::CORDON_AFTER.into_inner();
                SettingView {
                    name: op.name(),
                    meaning: "failures in a row after which the cluster cordons a slot",
                    value: self.cordon_after,
                    default: limits::CORDON_AFTER_DEFAULT,
                    min,
                    max,
                }
            }
        }
    }
}

came_with!(SettingOp, SETTINGS, {
    3: SettingOp::CordonAfter(_),
});

impl Operation for SettingOp {
    const SINCE: u32 = 3;
    const IN_EXCHANGE: bool = false;
    const IS_BOUNDED: bool = false;

    fn since(&self) -> u32 {
        self.came_with()
    }

    fn cost(&self) -> Cost {
        // All slots.
        Cost::GrowsWithState
    }

    fn grows(&self) -> bool {
        // One record.
        false
    }

    fn rows(&self) -> u64 {
        0
    }

    fn subject<'a>(&'a self, _: &'a Ledger) -> Subject<'a> {
        Subject::Cluster
    }

    fn dry_run(&self, _: &Ledger) -> Option<Result<(), Rejection>> {
        Some(self.check())
    }

    fn apply(self, ledger: &mut Ledger, ctx: &mut Context) -> Result<Reply, Rejection> {
        ledger.setting_op(ctx, self)
    }
}

/// The settings of the cluster, and whether their record differs from the image.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClusterSettings {
    current: Settings,
    dirty: bool,
}

/// Below the tag of the meta record, which is that letter alone: no letter is left.
pub(crate) const SETTINGS_KEY: &[u8] = b"Ms";

impl ClusterSettings {
    /// How many counting incidents, with no finished row between them, cordon a slot.
    pub(crate) fn cordon_after(&self) -> u32 {
        self.current.cordon_after
    }

    /// Sets a setting that is within its bounds. Returns its former value and the present one.
    fn set(&mut self, op: SettingOp) -> (u32, u32) {
        let SettingOp::CordonAfter(to) = op;
        let from = std::mem::replace(&mut self.current.cordon_after, to);
        self.dirty |= from != to;
        (from, to)
    }

    /// Takes the record, if it changed since the last call.
    pub(crate) fn drain(&mut self, delta: &mut ImageDelta) {
        if std::mem::take(&mut self.dirty) {
            delta.set(SETTINGS_KEY.to_vec(), self.record());
        }
    }

    /// Forgets whether the record differs from the image, because there is no image yet.
    pub(crate) fn forget_dirty(&mut self) {
        self.dirty = false;
    }

    /// `None` while every setting has its default: members of an earlier build have no such record.
    pub(crate) fn record(&self) -> Option<Vec<u8>> {
        (self.current != Settings::default()).then(|| codec::encode(&self.current))
    }

    /// Reads the record, and checks the bounds of the settings: outside of them, slots could be cordoned without a
    /// failure, or never.
    pub(crate) fn load(&mut self, key: &[u8], value: &[u8]) -> Result<(), LoadError> {
        self.current = read(key, value)?;
        match self.current.are_valid() {
            true => Ok(()),
            false => Err(bad(key)),
        }
    }

    /// Checks the invariants of the settings.
    pub(crate) fn check(&self, version: u32) -> Result<(), String> {
        if !self.current.are_valid() {
            return Err(format!("settings are out of bounds: {:?}", self.current));
        }
        match version < SCHEDULING_VERSION && self.current != Settings::default() {
            true => Err("the cluster's version knows no settings".into()),
            false => Ok(()),
        }
    }
}

impl Ledger {
    fn setting_op(&mut self, ctx: &Context, op: SettingOp) -> Result<Reply, Rejection> {
        op.check()?;
        let (from, to) = self.settings.set(op);
        if from != to {
            self.shorten_incidents();
            self.emit(ctx, EventKind::SettingChanged { setting: op.name(), from, to });
        }
        Ok(Reply::Ok)
    }

    /// The current settings.
    pub fn settings(&self) -> Settings {
        self.settings.current
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_is_in_the_list_with_a_name_and_a_meaning() {
        assert_eq!(SettingOp::ALL.len(), SETTINGS.len(), "{SETTINGS:?}");
        for view in Settings::default().views() {
            assert!(!view.meaning.is_empty(), "{}", view.name);
            let op = SettingOp::of_name(view.name, view.max).expect("a name of the list");
            assert_eq!((op.name(), op.check()), (view.name, Ok(())));
        }
        let names: std::collections::BTreeSet<&str> = SettingOp::names().collect();
        assert_eq!(names.len(), SettingOp::ALL.len(), "two settings have one name: {names:?}");
        assert_eq!(SettingOp::of_name("cordon-after", 5), Some(SettingOp::CordonAfter(5)));
        assert_eq!(SettingOp::of_name("cordon_after", 5), None);
    }
}
