use super::*;

fn parse(text: &str) -> Sampling {
    toml::from_str(text).unwrap()
}

fn of_row(run: &str, row: &str) -> Result<String, String> {
    let row: &RawValue = serde_json::from_str(row).unwrap();
    parse(run).of_row(row).map(|merged| merged.canonical_json().unwrap())
}

#[test]
fn only_what_was_set_is_in_the_canonical_json() {
    assert_eq!(parse("").canonical_json().unwrap(), "{}");
    let text = "top_k = 5\nstop = \"\\n\"\ntemperature = 1\nignore_eos = false";
    let expected = r#"{"ignore_eos":false,"stop":["\n"],"temperature":1.0,"top_k":5}"#;
    assert_eq!(parse(text).canonical_json().unwrap(), expected);
    let same = "temperature = 1.0\nstop = [\"\\n\"]\nignore_eos = false\ntop_k = 5";
    assert_eq!(parse(same).canonical_json().unwrap(), expected);
    let canonical = canonical_text(expected).unwrap();
    assert_eq!(canonical, expected);
    assert_eq!(Sampling::of_spec(expected).unwrap().canonical_json().unwrap(), expected);
    let nested = "structured_outputs = { json = { type = \"object\", required = [\"b\", \"a\"] } }\n\
                  logit_bias = { 7 = 1, 10 = -2.5 }\nn = 2";
    assert_eq!(
        parse(nested).canonical_json().unwrap(),
        r#"{"logit_bias":{"10":-2.5,"7":1.0},"n":2,"structured_outputs":{"json":{"required":["b","a"],"type":"object"}}}"#
    );
}

#[test]
fn a_rows_parameters_go_over_the_runs_key_by_key() {
    let run = "temperature = 0.5\nmax_tokens = 16";
    assert_eq!(
        of_row(run, r#"{"temperature": 1, "n": 3}"#).unwrap(),
        r#"{"max_tokens":16,"n":3,"temperature":1.0}"#
    );
    assert_eq!(of_row(run, "{}").unwrap(), r#"{"max_tokens":16,"temperature":0.5}"#);
}

#[test]
fn a_rows_parameters_have_the_bounds_of_the_runs_and_of_both_together() {
    for (row, what) in [
        (r#"{"temperature": -1}"#, "temperature: -1 is not 0 to 100"),
        (r#"{"temprature": 1}"#, "unknown key \"temprature\", did you mean \"temperature\"?"),
        (r#"{"min_tokens": 17}"#, "min_tokens: 17 is more than max_tokens, 16"),
        (r#"{"seed": null}"#, "seed is null; leave it out"),
        (r#"{"n": 0}"#, "n: has to be 1 to 1024"),
        (r#"{"logprobs": -2}"#, "logprobs: has to be -1 or more"),
        (r#"{"logit_bias": {"x": 1}}"#, "logit_bias: \"x\" is no token id"),
        (r#"{"bad_words": [""]}"#, "bad_words: has to be"),
        (r#"{"structured_outputs": {}}"#, "exactly one of json"),
        (r#"{"structured_outputs": {"json": {}, "regex": "a"}}"#, "exactly one of json"),
        (r#"{"structured_outputs": {"choices": ["a"]}}"#, "\"choices\" is unknown"),
        (r#"{"structured_outputs": {"choice": []}}"#, "a list of texts"),
        ("[1]", "an object"),
    ] {
        let error = of_row("max_tokens = 16", row).unwrap_err();
        assert!(error.contains(what), "{row}: {error}");
    }
}
