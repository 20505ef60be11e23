//! The time axis that all plots of a page share, and the faults in the background of each.
//!
//! *Invariant:* everything drawn lies within the axis.

use super::escaped;
use crate::verdict::{Recorded, bands};
use std::fmt::Write as _;

pub(super) const WIDTH: f64 = 1000.0;
/// Height of the numbers below the axis.
const FOOT: f64 = 16.0;
const SECOND_NS: u64 = 1_000_000_000;

/// Families of faults by the beginnings of their kinds, with a color each.
const FAMILIES: &[(&str, &str)] = &[
    ("partition", "#4477aa"),
    ("kill", "#ee6677"),
    ("pause", "#ccbb44"),
    ("power", "#aa3377"),
    ("clock", "#66ccee"),
    ("disk", "#997700"),
    ("bitflip", "#228833"),
    ("snapshot", "#777777"),
    ("worker", "#ee8866"),
];

/// An interval of time drawn across the page.
pub(super) struct Axis {
    from_ns: u64,
    to_ns: u64,
    faults: Vec<(u64, u64, String)>,
}

/// The color of a kind of fault.
pub(super) fn color(kind: &str) -> &'static str {
    let family = FAMILIES.iter().find(|(family, _)| kind.starts_with(family));
    family.map_or("#888888", |(_, color)| color)
}

impl Axis {
    /// The axis of a whole run.
    pub(super) fn of(run: &Recorded) -> Self {
        let to_ns = run.events.iter().map(|event| event.time_ns).max().unwrap_or(1).max(1);
        let faults = bands(&run.events).into_iter();
        let faults = faults.map(|(from, to, kind)| (from, to, kind.to_owned())).collect();
        Self { from_ns: 0, to_ns, faults }
    }

    /// The axis of a part of the run.
    pub(super) fn part(&self, from_ns: u64, to_ns: u64) -> Self {
        Self { from_ns, to_ns: to_ns.max(from_ns + 1), faults: self.faults.clone() }
    }

    /// The end, in whole seconds.
    pub(super) fn seconds(&self) -> u64 {
        self.to_ns / SECOND_NS
    }

    pub(super) fn x(&self, time_ns: u64) -> f64 {
        let since = time_ns.clamp(self.from_ns, self.to_ns) - self.from_ns;
        since as f64 / (self.to_ns - self.from_ns) as f64 * WIDTH
    }

    /// Proven faults within it: from, to, kind.
    pub(super) fn faults(&self) -> impl Iterator<Item = (f64, f64, &str)> {
        let within =
            self.faults.iter().filter(|(from, to, _)| *from < self.to_ns && *to > self.from_ns);
        within.map(|(from, to, kind)| (self.x(*from), self.x(*to), kind.as_str()))
    }

    /// A drawing of this height over the faults, with a scale in seconds below it.
    pub(super) fn svg(&self, height: f64, body: &str) -> String {
        let mut drawn = String::new();
        for (left, right, kind) in self.faults() {
            let _ = write!(
                drawn,
                "<rect x=\"{left:.1}\" y=\"0\" width=\"{:.1}\" height=\"{height}\" fill=\"{}\" \
                 fill-opacity=\".18\"><title>{}</title></rect>",
                right - left,
                color(kind),
                escaped(kind)
            );
        }
        let span = (self.to_ns - self.from_ns) as f64 / SECOND_NS as f64;
        let steps = [0.001, 0.01, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 600.0];
        let step = steps.into_iter().find(|step| span / step <= 16.0).unwrap_or(3600.0);
        let mut at = (self.from_ns as f64 / SECOND_NS as f64 / step).ceil() * step;
        while at * (SECOND_NS as f64) < self.to_ns as f64 {
            let x = self.x((at * SECOND_NS as f64) as u64);
            let _ = write!(
                drawn,
                "<path d=\"M{x:.1} 0V{height}\" stroke=\"#0001\"/><text x=\"{:.1}\" y=\"{}\">{} s</text>",
                x + 2.0,
                height + 12.0,
                (at * 1000.0).round() / 1000.0
            );
            at += step;
        }
        let all = height + FOOT;
        format!(
            "<svg width=\"{WIDTH}\" height=\"{all}\" viewBox=\"0 0 {WIDTH} {all}\">{drawn}{body}</svg>"
        )
    }
}
