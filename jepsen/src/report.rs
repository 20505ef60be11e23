//! What a person reads of a run: a few lines on the terminal, and one HTML page that needs nothing
//! else.

use crate::events::What;
use crate::operations::{Operation, Outcome};
use crate::run::Args;
use crate::verdict::{Judged, Recorded, Verdict, bands};
use std::fmt::Write as _;

const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 160.0;
const COLORS: [&str; 3] = ["#4477aa", "#ee6677", "#228833"];

/// The command that does the same again.
pub fn replay(args: &Args) -> String {
    let families: Vec<String> = args.nemesis.iter().map(|family| family.name()).collect();
    command(args.workload.name(), &families, args.seed, args.secs)
}

fn command(workload: &str, nemesis: &[String], seed: u64, secs: u64) -> String {
    let nemesis = nemesis.join(",");
    format!(
        "rollout-jepsen run --workload {workload} --nemesis {nemesis} --seed {seed} --secs {secs}"
    )
}

fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Pass => "pass",
        Verdict::Violation => "violation",
        Verdict::Unknown => "unknown",
    }
}

/// For the terminal.
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
    let recovered = c.recovered_ms.map_or("never".to_owned(), |ms| format!("after {ms} ms"));
    let _ = writeln!(
        text,
        "  recovered {recovered}; {} digests, {} on the way; {} requests repeated; {} members ended by themselves; \
         {} answers replayed",
        c.digests, c.compared, c.repeated, c.died, c.replayed
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

/// The page.
pub fn html(run: &Recorded, judged: &Judged) -> String {
    let (workload, nemesis, seed, secs) = run.plan();
    let mut page = String::from(
        "<!doctype html><meta charset=\"utf-8\"><title>rollout-jepsen</title><style>\
         body{font:14px sans-serif;margin:2em;max-width:1060px}pre{background:#f4f4f4;padding:1em;\
         overflow-x:auto}svg{border:1px solid #ccc}h2{margin-top:1.5em}</style>",
    );
    let _ = write!(page, "<h1>{}</h1>", word(judged.verdict));
    let again = command(workload, nemesis, seed, secs);
    let _ = write!(page, "<p>seed {seed}; again: <code>{}</code></p>", escaped(&again));
    let _ = write!(page, "<pre>{}</pre>", escaped(&text(judged)));
    let end = run.events.iter().map(|event| event.time_ns).max().unwrap_or(1).max(1);
    let faults = fault_bands(run, end);
    let _ =
        write!(page, "<h2>Answers a second (faults in grey)</h2>{}", throughput(run, end, &faults));
    let _ =
        write!(page, "<h2>Latency, log scale, 1 ms to 100 s</h2>{}", latency(run, end, &faults));
    let _ = write!(page, "<h2>Who led when</h2>{}", leaders(run, end, &faults));
    if let Some(key) = &judged.violated_key {
        let _ = write!(page, "<h2>Item {}</h2>{}", escaped(key), timeline(run, key));
    }
    page
}

fn x(time_ns: u64, end: u64) -> f64 {
    time_ns.min(end) as f64 / end as f64 * WIDTH
}

fn svg(body: &str) -> String {
    format!(
        "<svg width=\"{WIDTH}\" height=\"{HEIGHT}\" viewBox=\"0 0 {WIDTH} {HEIGHT}\">{body}</svg>"
    )
}

fn fault_bands(run: &Recorded, end: u64) -> String {
    let mut body = String::new();
    for (from, to, kind) in bands(&run.events) {
        let (left, right) = (x(from, end), x(to, end));
        let _ = write!(
            body,
            "<rect x=\"{left:.1}\" y=\"0\" width=\"{:.1}\" height=\"{HEIGHT}\" fill=\"#8884\">\
             <title>{}</title></rect>",
            right - left,
            escaped(kind)
        );
    }
    body
}

fn throughput(run: &Recorded, end: u64, faults: &str) -> String {
    let seconds = usize::try_from(end / 1_000_000_000).unwrap_or(0) + 1;
    let mut counts = vec![0u32; seconds];
    for at in run.operations.iter().filter_map(Operation::answered_at) {
        if let Some(count) = counts.get_mut(usize::try_from(at / 1_000_000_000).unwrap_or(0)) {
            *count += 1;
        }
    }
    let most = f64::from(counts.iter().copied().max().unwrap_or(1).max(1));
    let mut points = String::new();
    for (second, count) in counts.iter().enumerate() {
        let left = x(second as u64 * 1_000_000_000, end);
        let _ = write!(points, "{left:.1},{:.1} ", HEIGHT * (1.0 - f64::from(*count) / most));
    }
    let line = format!("<polyline points=\"{points}\" fill=\"none\" stroke=\"{}\"/>", COLORS[0]);
    svg(&format!("{faults}{line}<text x=\"4\" y=\"14\">{most} at most</text>"))
}

fn latency(run: &Recorded, end: u64, faults: &str) -> String {
    let mut body = faults.to_owned();
    for operation in &run.operations {
        let Some(at) = operation.answered_at() else { continue };
        let ms = (at - operation.called_at) as f64 / 1e6;
        let y = HEIGHT * (1.0 - ms.max(1.0).log10() / 5.0);
        let color = if &*operation.f == "read" { COLORS[2] } else { COLORS[0] };
        let left = x(at, end);
        let _ = write!(body, "<circle cx=\"{left:.1}\" cy=\"{y:.1}\" r=\"1\" fill=\"{color}\"/>");
    }
    svg(&body)
}

fn leaders(run: &Recorded, end: u64, faults: &str) -> String {
    let mut body = faults.to_owned();
    for event in &run.events {
        let What::Status { member, role, term, .. } = &event.what else { continue };
        if role != "leader" {
            continue;
        }
        let row = member.bytes().last().map_or(0, |last| usize::from(last.wrapping_sub(b'1')) % 3);
        let _ = write!(
            body,
            "<rect x=\"{:.1}\" y=\"{}\" width=\"2.5\" height=\"30\" fill=\"{}\"><title>{} in term \
             {term}</title></rect>",
            x(event.time_ns, end),
            10 + 50 * row,
            COLORS[row],
            escaped(member)
        );
    }
    svg(&body)
}

fn timeline(run: &Recorded, key: &str) -> String {
    let mut rows = String::from("<pre>");
    let mut of: Vec<&Operation> =
        run.operations.iter().filter(|operation| operation.key.as_deref() == Some(key)).collect();
    of.sort_by_key(|operation| operation.called_at);
    for operation in of {
        let answer = match &operation.outcome {
            Outcome::Answered { value, at, .. } => format!("{:>9.3} s  {value}", *at as f64 / 1e9),
            Outcome::Unknown => "unknown".to_owned(),
        };
        let called = operation.called_at as f64 / 1e9;
        let what = format!("{called:>9.3} s  {} {} -> {answer}", operation.f, operation.input);
        let _ = writeln!(rows, "{}", escaped(&what));
    }
    rows + "</pre>"
}
