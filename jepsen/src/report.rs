//! The report of a run: a few lines on the terminal, and one self-contained HTML page.
//!
//! *Invariant:* all plots of a page share one time axis, with the faults in the background of each.

mod axes;
mod plots;
mod timeline;

use crate::nemesis::Family;
use crate::verdict::{Judged, Recorded, Verdict};
use axes::Axis;
use std::fmt::Write as _;

/// The command that does the same again.
pub fn replay(workload: &str, nemesis: &[Family], seed: u64, secs: u64) -> String {
    let families: Vec<String> = nemesis.iter().map(|family| family.name()).collect();
    command(workload, &families, seed, secs)
}

fn command(workload: &str, nemesis: &[String], seed: u64, secs: u64) -> String {
    let nemesis = Family::listed(nemesis);
    format!(
        "rollout-jepsen run --workload {workload} --nemesis {nemesis} --seed {seed} --secs {secs}"
    )
}

const STYLE: &str = "<!doctype html><meta charset=\"utf-8\"><title>rollout-jepsen</title><style>\
     body{font:14px sans-serif;margin:2em;max-width:1100px}pre{background:#f4f4f4;padding:1em;\
     overflow-x:auto}svg{border:1px solid #ccc;display:block}h2{margin:1.5em 0 .3em}\
     svg text{font:11px sans-serif;fill:#333}.pass{color:#228833}.violation{color:#cc3311}\
     .unknown{color:#aa7700}.key{margin:.2em 0}.key span{margin-right:1.2em}</style>";

fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Pass => "pass",
        Verdict::Violation => "violation",
        Verdict::Unknown => "unknown",
    }
}

/// The report for the terminal.
pub fn text(judged: &Judged) -> String {
    let c = &judged.coverage;
    let mut text = format!("verdict: {}\n", word(judged.verdict));
    judged.violations.iter().for_each(|what| text += &format!("  violation: {what}\n"));
    judged.doubts.iter().for_each(|what| text += &format!("  doubt: {what}\n"));
    let _ = writeln!(
        text,
        "  {} operations on {} items, {} of unknown outcome, {} refused; {} configurations",
        judged.operations, judged.keys, judged.unanswered, c.refused, judged.configurations
    );
    let _ = writeln!(
        text,
        "  {} leader changes; {} writes accepted under a fault; {} of {} rows read at the end",
        c.leader_changes, c.written_under_fault, c.final_reads.0, c.final_reads.1
    );
    let (results, under) = c.completed;
    if results > 0 {
        let _ =
            writeln!(text, "  {results} results of rows accepted, {under} of them under a fault");
    }
    let recovered = c.recovered_ms.map_or("never".to_owned(), |ms| format!("after {ms} ms"));
    let _ = writeln!(
        text,
        "  recovered {recovered}; {} digests, {} on the way; {} requests repeated; {} members ended by themselves; \
         {} answers replayed, the places of {} compared with time",
        c.digests, c.compared, c.repeated, c.died, c.replayed, c.ordered
    );
    let (losses, bytes, names) = c.power_lost;
    if losses > 0 {
        let _ = writeln!(
            text,
            "  {losses} losses of power took {bytes} bytes and {names} operations on names"
        );
    }
    let (noticed, unnoticed) = c.flips;
    if noticed + unnoticed > 0 {
        let _ = writeln!(text, "  {noticed} flipped bits were noticed, {unnoticed} were not");
    }
    let _ = writeln!(
        text,
        "  {} rows stolen, {} run twice; {} sessions ended, {} of them refused again; {} messages of \
         past epochs refused",
        c.stolen, c.doubled, c.sessions_ended, c.ended_refused, c.stale_refused
    );
    if c.rows_under_fault > 0 {
        let _ = writeln!(text, "  {} rows ended under a fault", c.rows_under_fault);
    }
    let _ = writeln!(text, "  {} snapshots installed", c.snapshots);
    let faults: Vec<String> = c.faults.iter().map(|(kind, n)| format!("{kind} {n}")).collect();
    let _ = write!(text, "  proven faults: {}; unproven: {}", faults.join(", "), c.unproven);
    text
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The HTML page.
pub fn html(run: &Recorded, judged: &Judged) -> String {
    let (workload, nemesis, seed, secs) = run.plan();
    let mut page = String::from(STYLE);
    let word = word(judged.verdict);
    let _ = write!(page, "<h1 class=\"{word}\">{word}</h1>");
    let again = command(workload, nemesis, seed, secs);
    let _ = write!(page, "<p>seed {seed}; again: <code>{}</code></p>", escaped(&again));
    let _ = write!(page, "<pre>{}</pre>", escaped(&text(judged)));
    let axis = Axis::of(run);
    let _ = write!(page, "<h2>Faults</h2>{}", plots::faults(run, &axis));
    let _ = write!(page, "<h2>Answers a second</h2>{}", plots::throughput(run, &axis));
    let _ = write!(page, "<h2>Latency of answers</h2>{}", plots::latency(run, &axis));
    let _ = write!(page, "<h2>Who led when, in which term</h2>{}", plots::leaders(run, &axis));
    for key in timeline::failing(run, judged) {
        let _ = write!(page, "<h2>Item {}</h2>{}", escaped(key), timeline::of(run, judged, key));
    }
    page
}

#[cfg(test)]
mod tests;
