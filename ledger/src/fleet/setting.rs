//! Settings of the cluster, which operators change while it runs.
//!
//! *Invariant:* each setting is within its bounds. An operation that sets the current value is accepted, changes
//! nothing and makes no event; a rejected one changes nothing. A change does not cordon a slot or end a cordon: it
//! applies to the next incident of each slot. Backups and restored clusters keep the settings.
//!
//! Absent on purpose: settings of one member or worker, which are in their configuration files.

use crate::kernel::limits;
use crate::kernel::reply::{Rejection, Reply};
use crate::machine::apply::Context;
use crate::machine::event::EventKind;
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation};
use crate::machine::version_gate::came_with;
use serde::{Deserialize, Serialize};

/// The current settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// After how many incidents in a row that count the ledger cordons a slot. Within [`limits::CORDON_AFTER`].
    pub cordon_after: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self { cordon_after: limits::CORDON_AFTER_DEFAULT }
    }
}

/// A change of one setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SettingOp {
    /// Sets [`Settings::cordon_after`].
    CordonAfter(u32),
}

/// A setting as operators see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SettingView {
    /// Its name.
    pub name: &'static str,
    /// The value in force.
    pub value: u32,
    /// The value unless an operator sets another one.
    pub default: u32,
    /// The least value.
    pub min: u32,
    /// The greatest value.
    pub max: u32,
}

impl SettingOp {
    /// The setting of this name, and its new value.
    pub fn of_name(name: &str, value: u32) -> Option<Self> {
        let op = Self::CordonAfter(value);
        (name == op.name()).then_some(op)
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
    /// Whether each setting is within its bounds.
    pub(crate) fn are_valid(&self) -> bool {
        check_cordon_after(self.cordon_after).is_ok()
    }

    /// Every setting.
    pub fn views(&self) -> Vec<SettingView> {
        let (min, max) = limits::CORDON_AFTER.into_inner();
        vec![SettingView {
            name: SettingOp::CordonAfter(self.cordon_after).name(),
            value: self.cordon_after,
            default: limits::CORDON_AFTER_DEFAULT,
            min,
            max,
        }]
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

    fn apply(self, ledger: &mut Ledger, ctx: &mut Context) -> Result<Reply, Rejection> {
        ledger.setting_op(ctx, self)
    }
}

impl Ledger {
    pub(crate) fn setting_op(&mut self, ctx: &Context, op: SettingOp) -> Result<Reply, Rejection> {
        let SettingOp::CordonAfter(to) = op;
        check_cordon_after(to)?;
        let from = std::mem::replace(&mut self.settings.cordon_after, to);
        if from != to {
            self.dirty.settings = true;
            self.shorten_incidents();
            self.emit(ctx, EventKind::SettingChanged { setting: op.name(), from, to });
        }
        Ok(Reply::Ok)
    }

    /// The current settings.
    pub fn settings(&self) -> Settings {
        self.settings
    }

    pub(crate) fn check_settings(&self) -> Result<(), String> {
        if !self.settings.are_valid() {
            return Err(format!("settings are out of bounds: {:?}", self.settings));
        }
        let low = self.meta.version < crate::machine::version_gate::SCHEDULING_VERSION;
        match low && self.settings != Settings::default() {
            true => Err("the cluster's version knows no settings".into()),
            false => Ok(()),
        }
    }
}
