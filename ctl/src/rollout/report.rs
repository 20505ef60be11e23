//! Owns: messages about an input and a submission.
//!
//! Invariant: lists are bounded and report how much they omit.
//! Absent: progress, and the outcome of a run (`outcome`).

use std::path::Path;

use indicatif::{HumanBytes, HumanCount, HumanDuration};
use rollout_batch::input::csv;
use rollout_batch::input::files::InputFile;
use rollout_batch::input::scan::{LineError, Scan};
use rollout_batch::submission::job::Submitted;
use rollout_batch::submission::spec;
use rollout_batch::submission::speed::Speed;
use rollout_batch::submission::tokens::Counted;
use rollout_proto::v1;

use crate::output;

/// The errors of an input, one a line: file, line, column.
pub(super) fn errors(scan: &Scan, files: &[InputFile], max: usize) -> String {
    places("", &scan.errors, scan.error_count, files, max)
}

/// The warnings about what engines may not know, in the same format.
pub(super) fn warnings(scan: &Scan, files: &[InputFile], max: usize) -> String {
    places("warning: ", &scan.warnings, scan.warning_count, files, max)
}

fn places(kind: &str, notes: &[LineError], count: u64, files: &[InputFile], max: usize) -> String {
    let mut text = String::new();
    for note in notes.iter().take(max) {
        let file = files.get(note.file as usize).map(|file| file.path.display().to_string());
        let (file, line, message) = (file.unwrap_or_default(), note.line, &note.message);
        let unit = if csv::is_named(Path::new(&file)) { "line" } else { "row" };
        text += &match (line, note.column) {
            (0, _) => format!("{kind}{file}: {message}\n"),
            (line, 0) => format!("{kind}{file}: {unit} {line}: {message}\n"),
            (line, column) => format!("{kind}{file}:{line}:{column}: {message}\n"),
        };
    }
    let shown = notes.len().min(max) as u64;
    if count > shown {
        text += &format!("{kind}and {} more\n", HumanCount(count - shown));
    }
    text
}

/// The run that would be submitted.
pub(super) fn plan(
    name: &str,
    spec: &v1::RunSpec,
    files: &[InputFile],
    scan: &Scan,
    output: &Path,
) -> String {
    let engine = spec.engine.clone().unwrap_or_default();
    let bytes = files.iter().map(|file| file.bytes).sum();
    let mut text = String::new();
    let mut line = |what: &str, value: String| text += &format!("{what:<10} {value}\n");
    line("run", name.to_owned());
    line("model", format!("{} {} {}", engine.model, engine.revision, engine.task));
    line("model id", spec::model_id(spec).to_hex());
    line("options", engine.options_json);
    line("sampling", spec.sampling_json.clone());
    line("files", HumanCount(files.len() as u64).to_string());
    line("bytes", HumanBytes(bytes).to_string());
    line("rows", HumanCount(scan.rows).to_string());
    if scan.repeated > 0 {
        line(
            "repeated",
            format!("{} equal to an earlier one", output::counted(scan.repeated, "row")),
        );
    }
    line("segments", HumanCount(scan.segments.into()).to_string());
    line("output", output.display().to_string());
    text
}

/// The token counts of an input, and the estimated time.
pub(super) fn tokens(
    counted: &Counted,
    of_engines: Option<u64>,
    speed: Option<(String, Speed)>,
) -> String {
    let mut text = String::new();
    let mut line = |what: &str, value: String| text += &format!("{what:<10} {value}\n");
    let room = match counted.model_len {
        Some(room) if Some(room) == of_engines => {
            format!("of {} that the workers' engines have room for", HumanCount(room))
        }
        Some(room) => {
            format!(
                "of {}, as the model's files say; no worker says its engine's",
                HumanCount(room)
            )
        }
        None => "and neither workers nor the model's files say how many there is room for: \
                 rows that are too long are not found"
            .to_owned(),
    };
    let (all, longest) = (HumanCount(counted.prompt_tokens), HumanCount(counted.longest));
    line("tokens", format!("{all} of prompts, at most {longest} in one {room}"));
    let most = HumanCount(counted.completion_tokens_max);
    match counted.unbounded {
        0 => line("", format!("at most {most} of completions")),
        some => line(
            "",
            format!(
                "at most {most} of completions, and {} without a bound",
                output::counted(some, "row")
            ),
        ),
    }
    match speed {
        Some((whose, speed)) => {
            let time = speed.estimate(counted.rows, counted.prompt_tokens);
            line("time", format!("about {}, at the speed of {whose}", HumanDuration(time)));
        }
        None => line(
            "time",
            "not known: neither a finished run with this model nor an earlier output here says how \
             fast it was"
                .to_owned(),
        ),
    }
    text
}

/// The rows that the model would not accept, one a line.
pub(super) fn problems(counted: &Counted) -> String {
    let mut text = String::new();
    for problem in &counted.problems {
        text += &format!("row {}: {}: {}\n", problem.row, problem.code, problem.message);
    }
    let more = counted.problem_count - counted.problems.len() as u64;
    if more > 0 {
        text += &format!("and {} more\n", HumanCount(more));
    }
    text
}

/// The submitted run.
pub(super) fn submitted(name: &str, submitted: &Submitted) -> String {
    let total = submitted.uploaded.scan.rows;
    let rows = HumanCount(total);
    let verb = if submitted.created { "submitted" } else { "already exists" };
    let mut text = format!("run {name} {verb}: {}", output::counted(total, "row"));
    let reused = &submitted.reused;
    if reused.rows > 0 {
        text += &format!(", {} of {rows} with a reused result", HumanCount(reused.rows));
    }
    if reused.left > 0 {
        text += &format!(
            ", {} with an earlier result that cannot be read run again",
            HumanCount(reused.left)
        );
    }
    text
}
