//! Plots of a whole run: its faults, throughput, latency, and leaders.

use super::axes::{Axis, WIDTH, color};
use super::escaped;
use crate::events::EventKind;
use crate::operations::{Operation, Outcome};
use crate::value::Value;
use crate::verdict::Recorded;
use std::collections::BTreeMap;
use std::fmt::Write as _;

const HEIGHT: f64 = 160.0;
const ROW: f64 = 16.0;
const SECOND_NS: u64 = 1_000_000_000;
/// The kinds of answers: reads, accepted writes, refusals.
const KINDS: [(&str, &str); 3] =
    [("reads", "#228833"), ("done", "#4477aa"), ("refused", "#ee6677")];
/// Latency from one millisecond to a hundred seconds, in powers of ten.
const DECADES: [&str; 6] = ["1 ms", "10 ms", "100 ms", "1 s", "10 s", "100 s"];
/// Observations of a leader that are further apart start a new bar.
const APART_NS: u64 = 1_500_000_000;

fn kind(operation: &Operation) -> usize {
    match &operation.outcome {
        _ if matches!(&*operation.f, "read" | "get" | "progress" | "export") => 0,
        Outcome::Answered { value: Value::Bool(false), .. } => 2,
        _ => 1,
    }
}

fn legend() -> String {
    let mut text = String::from("<p class=\"key\">");
    for (name, color) in KINDS {
        let _ = write!(text, "<span style=\"color:{color}\">&#9632; {name}</span>");
    }
    text + "</p>"
}

/// When the last fault was healed.
fn healed_ns(run: &Recorded) -> u64 {
    let healed = run.events.iter().filter(|event| matches!(event.what, EventKind::Healed { .. }));
    healed.map(|event| event.time_ns).max().unwrap_or(0)
}

/// Each proven fault as a bar with its name.
pub(super) fn faults(run: &Recorded, axis: &Axis) -> String {
    let (mut body, mut rows): (String, Vec<f64>) = <_>::default();
    for (left, right, kind) in axis.faults() {
        let text = left.min(WIDTH - 7.0 * kind.len() as f64);
        let end = right.max(text + 7.0 * kind.len() as f64);
        let row = rows.iter().position(|taken| *taken < left.min(text)).unwrap_or(rows.len());
        match rows.get_mut(row) {
            Some(taken) => *taken = end,
            None => rows.push(end),
        }
        let y = row as f64 * ROW;
        let _ = write!(
            body,
            "<rect x=\"{left:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{}\" fill=\"{}\" \
             fill-opacity=\".5\"/><text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            y + 1.0,
            (right - left).max(1.0),
            ROW - 2.0,
            color(kind),
            text + 2.0,
            y + 12.0,
            escaped(kind)
        );
    }
    let _ = write!(body, "<path d=\"M{0:.1} 0V999\" stroke=\"#000\"/>", axis.x(healed_ns(run)));
    let note = "<p class=\"key\">the line: the last one was healed</p>";
    note.to_owned() + &axis.svg(rows.len().max(1) as f64 * ROW, &body)
}

/// The number of answers per second.
pub(super) fn throughput(run: &Recorded, axis: &Axis) -> String {
    let seconds = usize::try_from(axis.seconds()).unwrap_or(0) + 1;
    let mut counts = [vec![0u32; seconds], vec![0; seconds], vec![0; seconds]];
    for operation in &run.operations {
        let Some(at) = operation.answered_at() else { continue };
        let second = usize::try_from(at / SECOND_NS).unwrap_or(usize::MAX);
        if let Some(count) = counts[kind(operation)].get_mut(second) {
            *count += 1;
        }
    }
    // The final reads would dwarf everything else in the plot.
    let during = usize::try_from(healed_ns(run) / SECOND_NS).unwrap_or(0) + 1;
    let most = counts.iter().flat_map(|counts| counts.iter().take(during)).copied().max();
    let most = f64::from(most.unwrap_or(1).max(1));
    let mut body = String::new();
    for (counts, (_, color)) in counts.iter().zip(KINDS) {
        let mut points = String::new();
        for (second, count) in counts.iter().enumerate() {
            let x = axis.x(second as u64 * SECOND_NS);
            let _ = write!(
                points,
                "{x:.1},{:.1} ",
                HEIGHT * (1.0 - (f64::from(*count) / most).min(1.0))
            );
        }
        let _ = write!(body, "<polyline points=\"{points}\" fill=\"none\" stroke=\"{color}\"/>");
    }
    let _ = write!(body, "<text x=\"4\" y=\"12\">{most}</text>");
    legend() + &axis.svg(HEIGHT, &body)
}

/// The latency of each answer, by time.
pub(super) fn latency(run: &Recorded, axis: &Axis) -> String {
    let mut body = String::new();
    for (decade, name) in DECADES.iter().enumerate() {
        let y = HEIGHT * (1.0 - decade as f64 / 5.0);
        let _ = write!(
            body,
            "<path d=\"M0 {y:.1}H{WIDTH}\" stroke=\"#0002\"/><text x=\"4\" y=\"{:.1}\">{name}</text>",
            (y - 2.0).max(10.0)
        );
    }
    for operation in &run.operations {
        let Some(at) = operation.answered_at() else { continue };
        let ms = (at - operation.called_at) as f64 / 1e6;
        let y = HEIGHT * (1.0 - ms.clamp(1.0, 100_000.0).log10() / 5.0);
        let (x, color) = (axis.x(at), KINDS[kind(operation)].1);
        let _ = write!(body, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"1\" fill=\"{color}\"/>");
    }
    legend() + &axis.svg(HEIGHT, &body)
}

/// When each member said that it leads.
pub(super) fn leaders(run: &Recorded, axis: &Axis) -> String {
    let mut members: BTreeMap<&str, Vec<(u64, u64, u64)>> = BTreeMap::new();
    for event in &run.events {
        let EventKind::Status { member, role, term, .. } = &event.what else { continue };
        let led = members.entry(member).or_default();
        if role != "leader" {
            continue;
        }
        match led.last_mut() {
            Some((_, to, last)) if last == term && event.time_ns - *to < APART_NS => {
                *to = event.time_ns;
            }
            _ => led.push((event.time_ns, event.time_ns, *term)),
        }
    }
    let mut body = String::new();
    for (row, (member, led)) in members.iter().enumerate() {
        let y = row as f64 * 30.0;
        for (from, to, term) in led {
            let (left, right) = (axis.x(*from), axis.x(*to));
            let _ = write!(
                body,
                "<rect x=\"{left:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"20\" fill=\"#4477aa\" \
                 fill-opacity=\".7\"><title>{} in term {term}</title></rect>\
                 <text x=\"{:.1}\" y=\"{:.1}\">{}, {term}</text>",
                y + 5.0,
                (right - left).max(2.5),
                escaped(member),
                left + 2.0,
                y + 19.0,
                escaped(member)
            );
        }
    }
    axis.svg(members.len().max(1) as f64 * 30.0, &body)
}
