//! Owns: counting an input's tokens with a Python that has the model's tokenizer.
//!
//! Invariant: the program answers rows in order, one line each. If it ends early or prints anything else, the whole
//! count is refused. A bounded number of problems is kept; all are counted.
//! Absent: Python's side, `worker/python/rollout/tokens.py`.

use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;

use rollout_storage::Segment;
use serde::Deserialize;

/// How much of the program's stderr is shown, in bytes.
const COMPLAINTS_BYTES_MAX: usize = 500;
/// Bytes of one answer.
const ANSWER_BYTES_MAX: u64 = 64 << 10;

/// The tokenizer, and the run that it counts for.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    /// The interpreter, of an environment with transformers and this project's package.
    pub python: PathBuf,
    /// The model's directory, or a name that transformers finds.
    pub model: String,
    /// The model's revision, if one is requested; a directory has none.
    pub revision: Option<String>,
    pub task: String,
    /// The run's sampling parameters as JSON.
    pub sampling: String,
    /// The model's limit of tokens, if it is known; else its files give it.
    pub model_len: Option<u64>,
}

/// A row that the model would not accept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The row's number in the input, from 0, not counting lines that are not rows.
    pub row: u64,
    /// One word for programs, such as `TOO_LONG`.
    pub code: String,
    /// The human-readable text.
    pub message: String,
}

/// The result of counting.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counted {
    /// Rows that the model would accept.
    pub rows: u64,
    pub prompt_tokens: u64,
    /// The most tokens of one of them.
    pub longest: u64,
    /// The most tokens that their completions may have together, as far as rows bound them.
    pub completion_tokens_max: u64,
    /// Rows whose completion only the model's limit bounds.
    pub unbounded: u64,
    /// The model's limit of tokens, if its files give it.
    pub model_len: Option<u64>,
    /// The first problems.
    pub problems: Vec<Problem>,
    /// All of them.
    pub problem_count: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum TokensError {
    /// The interpreter does not start.
    #[error("cannot start {}: {source}", python.display())]
    Start {
        /// The interpreter.
        python: PathBuf,
        source: std::io::Error,
    },
    /// It ended, or printed an invalid answer.
    #[error("{0}")]
    Failed(String),
}

/// The first answer, or the answer to a row.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct TokenizerAnswer {
    model_len: Option<u64>,
    tokens: Option<u64>,
    most: Option<u64>,
    code: Option<String>,
    error: Option<String>,
}

/// The running program: rows are sent to it as they are found.
#[derive(Debug)]
pub struct Counting {
    child: Child,
    rows: Option<BufWriter<std::process::ChildStdin>>,
    handed: u64,
    answers: JoinHandle<Result<Counted, String>>,
    complaints: JoinHandle<String>,
}

impl Counting {
    /// Starts the program; it keeps at most `problems_max` problems.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(tokenizer: &Tokenizer, problems_max: usize) -> Result<Self, TokensError> {
        let mut child = Command::new(&tokenizer.python)
            .args(["-m", "rollout.tokens", "--model", &tokenizer.model, "--task", &tokenizer.task])
            .args(["--sampling", &tokenizer.sampling])
            .args(tokenizer.revision.iter().flat_map(|name| ["--revision", name]))
            .args(
                tokenizer.model_len.iter().flat_map(|n| ["--max-model-len".into(), n.to_string()]),
            )
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|source| TokensError::Start { python: tokenizer.python.clone(), source })?;
        // invariant: all three pipes were requested.
        let missing = || TokensError::Failed("the program has no pipes".to_owned());
        let rows = child.stdin.take().ok_or_else(missing)?;
        let out = child.stdout.take().ok_or_else(missing)?;
        let err = child.stderr.take().ok_or_else(missing)?;
        let answers = std::thread::spawn(move || read(BufReader::new(out), problems_max));
        let complaints = std::thread::spawn(move || last_of(err));
        Ok(Self { child, rows: Some(BufWriter::new(rows)), handed: 0, answers, complaints })
    }

    /// Sends a segment's rows. After an error, [`finish`](Self::finish) gives the reason.
    ///
    /// # Errors
    /// The program has ended.
    pub fn segment(&mut self, bytes: bytes::Bytes) -> std::io::Result<()> {
        let segment = Segment::decode(bytes).map_err(std::io::Error::other)?;
        let Some(rows) = &mut self.rows else { return Ok(()) };
        for row in segment.rows() {
            // A row's JSON has no line break outside of its strings, and inside them every line break is escaped.
            let line: Vec<u8> =
                row.body.iter().map(|b| if *b == b'\n' { b' ' } else { *b }).collect();
            // Count rows that the program did not read too: then the number of answers shows the difference.
            self.handed += 1;
            rows.write_all(&line)?;
            rows.write_all(b"\n")?;
        }
        Ok(())
    }

    /// The result for the rows that were sent.
    ///
    /// # Errors
    /// The program failed, or has not answered every row.
    pub fn finish(mut self) -> Result<Counted, TokensError> {
        // The program may have ended: then its stderr gives the reason.
        let _ = self.rows.take().map(|mut rows| rows.flush());
        let counted = self.answers.join().unwrap_or_else(|_| Err("no answers".to_owned()));
        let status = self.child.wait().map_err(|error| TokensError::Failed(error.to_string()))?;
        let complaints = self.complaints.join().unwrap_or_default();
        let failed = |why: String| {
            let complaints = complaints.trim();
            TokensError::Failed(format!(
                "{why}{}{complaints}",
                if complaints.is_empty() { "" } else { ": " }
            ))
        };
        if !status.success() {
            return Err(failed(format!("rollout.tokens ended with {status}")));
        }
        let counted = counted.map_err(failed)?;
        match counted.rows + counted.problem_count {
            all if all == self.handed => Ok(counted),
            all => Err(failed(format!("{all} of {} rows were counted", self.handed))),
        }
    }
}

/// The last lines of a program's stderr.
fn last_of(mut from: impl Read) -> String {
    let mut last = Vec::new();
    let mut more = [0; 4096];
    // Discard bytes that do not fit; the program must not block on a full pipe.
    while let Ok(read @ 1..) = from.read(&mut more) {
        last.extend_from_slice(&more[..read]);
        let surplus = last.len().saturating_sub(COMPLAINTS_BYTES_MAX);
        last.drain(..surplus);
    }
    String::from_utf8_lossy(&last).into_owned()
}

fn read(mut from: impl BufRead, problems_max: usize) -> Result<Counted, String> {
    let mut counted = Counted::default();
    let mut first = true;
    let mut row = 0;
    loop {
        let mut line = String::new();
        let length = from.by_ref().take(ANSWER_BYTES_MAX).read_line(&mut line);
        if length.map_err(|error| error.to_string())? == 0 {
            return Ok(counted);
        }
        let answer: TokenizerAnswer =
            serde_json::from_str(&line).map_err(|error| format!("no answer, {error}: {line}"))?;
        if std::mem::take(&mut first) {
            counted.model_len = answer.model_len;
            continue;
        }
        match answer.tokens {
            Some(tokens) => {
                counted.rows += 1;
                counted.prompt_tokens += tokens;
                counted.longest = counted.longest.max(tokens);
                counted.completion_tokens_max += answer.most.unwrap_or(0);
                counted.unbounded += u64::from(answer.most.is_none());
            }
            None => {
                counted.problem_count += 1;
                if counted.problems.len() < problems_max {
                    let code = answer.code.unwrap_or_default();
                    let message = answer.error.unwrap_or_default();
                    counted.problems.push(Problem { row, code, message });
                }
            }
        }
        row += 1;
    }
}

/// The interpreter that the user named, if any.
pub fn python(given: Option<&Path>) -> Option<PathBuf> {
    let named = || std::env::var_os("ROLLOUT_PYTHON").filter(|name| !name.is_empty());
    given.map(Path::to_path_buf).or_else(|| named().map(PathBuf::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_added_up_and_problems_are_bounded() {
        let text = concat!(
            "{\"model_len\": 64}\n",
            "{\"tokens\": 3, \"most\": 16}\n",
            "{\"code\": \"TOO_LONG\", \"error\": \"70 tokens\"}\n",
            "{\"tokens\": 5, \"most\": null}\n",
            "{\"code\": \"EMPTY\", \"error\": \"nothing\"}\n",
        );
        let counted = read(text.as_bytes(), 1).unwrap();
        let long = Problem { row: 1, code: "TOO_LONG".into(), message: "70 tokens".into() };
        let expected = Counted {
            rows: 2,
            prompt_tokens: 8,
            longest: 5,
            completion_tokens_max: 16,
            unbounded: 1,
            model_len: Some(64),
            problems: vec![long],
            problem_count: 2,
        };
        assert_eq!(counted, expected);
        assert!(read("not json\n".as_bytes(), 1).is_err());
    }

    #[test]
    fn a_program_that_fails_says_why() {
        let tokenizer = |python: &str| Tokenizer {
            python: python.into(),
            model: "m".into(),
            revision: None,
            task: "generate".into(),
            sampling: "{}".into(),
            model_len: None,
        };
        assert!(matches!(
            Counting::start(&tokenizer("/nowhere/python"), 1),
            Err(TokensError::Start { .. })
        ));
        let failed = Counting::start(&tokenizer("/bin/false"), 1).unwrap().finish().unwrap_err();
        assert!(failed.to_string().contains("exit status: 1"), "{failed}");
        let mut silent = Counting::start(&tokenizer("/bin/true"), 1).unwrap();
        silent.handed = 3;
        let silent = silent.finish().unwrap_err();
        assert!(silent.to_string().contains("0 of 3 rows"), "{silent}");
    }
}
