//! Owns: an estimate of how many tokens the rows of a slot may take, and how many the slot should hold.
//!
//! Invariant: an estimate covers a prompt and all of its completions at their longest. Prompts are estimated from
//! their bytes, at the rate of the rows that ended; a completion without a bound is as long as those of rows that
//! ended. The bound on tokens never keeps the engine from a refill.
//! Absent: counting. The engine has the tokenizer.

use serde::Deserialize;

use crate::engine::EngineRow;
use crate::run::Task;

/// Initial estimates: bytes of a token, and tokens of a completion.
const BYTES_EACH: f64 = 4.0;
const COMPLETION: f64 = 256.0;
/// The weight of one more row in an estimate.
const SHARE: f64 = 1.0 / 32.0;
/// How many times its engine's room for tokens a slot holds, running rows included, unless the configuration says
/// otherwise.
const HELD: u64 = 2;

#[derive(Debug)]
pub(super) struct Tokens {
    /// The configured bound; 0: none.
    bound: u64,
    bytes_each: f64,
    completion: f64,
    /// The mean of recent rows.
    mean: f64,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct TokenLimits {
    max_tokens: Option<u64>,
    max_completion_tokens: Option<u64>,
    n: Option<u64>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Row {
    sampling_params: Option<TokenLimits>,
    body: Option<TokenLimits>,
}

impl Tokens {
    pub(super) fn new(bound: u64) -> Self {
        Self { bound, bytes_each: BYTES_EACH, completion: COMPLETION, mean: COMPLETION }
    }

    /// Estimates the tokens that a new row may take.
    pub(super) fn guess(&mut self, row: &EngineRow) -> u64 {
        let prompt = row.body.len() as f64 / self.bytes_each;
        let completions = match row.run.task {
            Task::Embed | Task::Score => 0.0,
            Task::Generate | Task::Openai => {
                // A row that cannot be parsed is refused later, with a message.
                let own: Row = serde_json::from_slice(&row.body).unwrap_or_default();
                let own = own.sampling_params.or(own.body).unwrap_or_default();
                let of_run = |name: &str| row.run.sampling.get(name).and_then(|v| v.as_u64());
                let most = own.max_completion_tokens.or(own.max_tokens);
                let most = most.or_else(|| of_run("max_tokens"));
                let n = own.n.or_else(|| of_run("n")).unwrap_or(1).clamp(1, 1024);
                most.map_or(self.completion, |most| most as f64) * n as f64
            }
        };
        let guess = (prompt + completions).max(1.0);
        self.mean += (guess - self.mean) * SHARE;
        guess as u64
    }

    /// A row has ended with these.
    pub(super) fn ended(&mut self, bytes: usize, prompt: u64, completion: u64) {
        if prompt > 0 && bytes > 0 {
            self.bytes_each += (bytes as f64 / prompt as f64 - self.bytes_each) * SHARE;
        }
        self.completion += (completion as f64 - self.completion) * SHARE;
    }

    /// Rows that may be requested while the rows here may take `here` tokens and `unread` more rows have no estimate
    /// yet. `room` is what the engine holds, 0 if unknown.
    pub(super) fn credit(&self, room: u64, here: u64, unread: usize) -> usize {
        let bound = match self.bound {
            0 if room == 0 => return usize::MAX,
            0 => room.saturating_mul(HELD),
            bound => bound,
        };
        let here = here as f64 + unread as f64 * self.mean;
        ((bound as f64 - here) / self.mean).max(0.0) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::test_row;
    use crate::run::RunInfo;

    fn row(task: Task, sampling: &str, body: &str) -> EngineRow {
        let mut run = RunInfo { task, ..RunInfo::for_test(1) };
        run.sampling = serde_json::from_str(sampling).unwrap();
        test_row(run, 0, body)
    }

    #[test]
    fn a_guess_has_the_prompt_and_every_completion_at_its_longest() {
        let of = |task, sampling: &str, body: &str| {
            let row = row(task, sampling, body);
            Tokens::new(0).guess(&row) - (row.body.len() / 4) as u64
        };
        let generate = Task::Generate;
        assert_eq!(of(generate, "{}", r#"{"prompt":"abcd"}"#), COMPLETION as u64);
        assert_eq!(of(generate, r#"{"max_tokens":40}"#, r#"{"prompt":"abcd"}"#), 40);
        let own = r#"{"prompt":"a","sampling_params":{"max_tokens":7,"n":3}}"#;
        assert_eq!(of(generate, r#"{"max_tokens":40}"#, own), 21);
        let wrong = r#"{"prompt":"a","sampling_params":{"max_tokens":-1}}"#;
        assert_eq!(of(generate, r#"{"max_tokens":40}"#, wrong), 40, "refused later, in words");
        let line = r#"{"custom_id":"c","body":{"max_completion_tokens":9,"messages":[]}}"#;
        assert_eq!(of(Task::Openai, "{}", line), 9);
        assert_eq!(of(Task::Embed, "{}", r#"{"prompt":"abcdefgh"}"#), 0);
    }

    #[test]
    fn rows_that_end_improve_the_estimates_for_others() {
        let mut tokens = Tokens::new(0);
        let plain = row(Task::Generate, "{}", &format!("{{\"prompt\":\"{}\"}}", "x".repeat(987)));
        assert_eq!(tokens.guess(&plain), 250 + 256);
        (0..2000).for_each(|_| tokens.ended(1000, 1000, 8));
        assert!((1006..=1010).contains(&tokens.guess(&plain)), "{tokens:?}");
    }

    #[test]
    fn long_rows_are_requested_in_smaller_numbers() {
        let filled = |max: u64, bound: u64| {
            let mut tokens = Tokens::new(bound);
            let sampling = format!("{{\"max_tokens\":{max}}}");
            let row = row(Task::Generate, &sampling, "{}");
            for _ in 0..2000 {
                tokens.guess(&row);
            }
            tokens
        };
        let (short, long) = (filled(100, 0), filled(10_000, 0));
        assert!((990..=1000).contains(&short.credit(50_000, 0, 0)), "{short:?}");
        assert_eq!(long.credit(50_000, 0, 0), 9);
        assert_eq!(long.credit(50_000, 60_000, 0), 3);
        assert_eq!(long.credit(50_000, 60_000, 3), 0);
        assert_eq!(long.credit(50_000, 1_000_000, 0), 0);
        assert_eq!(
            long.credit(0, 1_000_000, 0),
            usize::MAX,
            "an engine that does not say its room"
        );
        assert_eq!(filled(10_000, 20_000).credit(50_000, 0, 0), 1, "the configuration's word");
    }
}
