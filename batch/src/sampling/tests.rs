use super::*;

fn parse(text: &str) -> Sampling {
    toml::from_str(text).unwrap()
}

fn of_row(run: &str, row: &str) -> Result<String, String> {
    let row: &RawValue = serde_json::from_str(row).unwrap();
    parse(run).of_row(row).map(|(merged, _)| merged)
}

#[test]
fn the_canonical_json_has_only_parameters_that_were_set() {
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
        r#"{"logit_bias":{"10":-2.5,"7":1.0},"n":2,"structured_outputs":{"json":{"type":"object","required":["b","a"]}}}"#
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
fn a_parameter_that_an_engine_will_refuse_is_reported_and_passed_on_unchanged() {
    for (row, what, merged) in [
        (
            // Also beside an unknown one.
            r#"{"later": 1, "top_p": 7}"#,
            "top_p: 7 is not 0 to 1",
            r#"{"later":1,"max_tokens":16,"top_p":7}"#,
        ),
        (
            r#"{"temperature": -1}"#,
            "temperature: -1 is not 0 to 100",
            r#"{"max_tokens":16,"temperature":-1.0}"#,
        ),
        (r#"{"top_p": 7}"#, "top_p: 7 is not 0 to 1", r#"{"max_tokens":16,"top_p":7.0}"#),
        (
            r#"{"max_tokens": -1}"#,
            "max_tokens: expected a whole number from 0 to 4294967295, found -1",
            r#"{"max_tokens":-1}"#,
        ),
        (
            r#"{"min_tokens": 17}"#,
            "min_tokens: 17 is more than max_tokens, 16",
            r#"{"max_tokens":16,"min_tokens":17}"#,
        ),
        (r#"{"n": 0}"#, "n: has to be 1 to 16384", r#"{"max_tokens":16,"n":0}"#),
        (r#"{"stop": {"b": 1, "a": 2}}"#, "", r#"{"max_tokens":16,"stop":{"b":1,"a":2}}"#),
        (
            r#"{"structured_outputs": {}}"#,
            "exactly one of json",
            r#"{"max_tokens":16,"structured_outputs":{}}"#,
        ),
    ] {
        let raw: &RawValue = serde_json::from_str(row).unwrap();
        let (canonical, problem) = parse("max_tokens = 16").of_row(raw).unwrap();
        assert_eq!(canonical, merged);
        assert!(
            matches!(problem, Some(SamplingProblem::Refused(why)) if why.contains(what)),
            "{row}"
        );
    }
}

#[test]
fn a_valid_row_has_no_error_and_an_unknown_parameter_only_a_warning() {
    for good in [
        r#"{"n": 2000}"#,
        r#"{"repetition_penalty": 150}"#,
        r#"{"skip_special_tokens": false, "include_stop_str_in_output": true}"#,
        r#"{"logit_bias": {"7": -1000}, "allowed_token_ids": [7]}"#,
        r#"{"thinking_token_budget": 64, "extra_args": {"a": 1}}"#,
    ] {
        let row: &RawValue = serde_json::from_str(good).unwrap();
        assert_eq!(parse("max_tokens = 16").of_row(row).unwrap().1, None, "{good}");
    }
    let row: &RawValue = serde_json::from_str(r#"{"temprature": 1}"#).unwrap();
    let (canonical, problem) = parse("max_tokens = 16").of_row(row).unwrap();
    assert_eq!(canonical, r#"{"max_tokens":16,"temprature":1}"#);
    let told = "unknown key \"temprature\", did you mean \"temperature\"?";
    assert!(matches!(problem, Some(SamplingProblem::Unknown(why)) if why.contains(told)));
}

#[test]
fn row_parameters_must_be_an_object_without_nulls() {
    for (row, what) in
        [(r#"{"seed": null}"#, "seed is null; leave it out"), ("[1]", "an object"), ("7", "object")]
    {
        let error = of_row("max_tokens = 16", row).unwrap_err();
        assert!(error.contains(what), "{row}: {error}");
    }
}

#[test]
fn a_runs_parameters_have_bounds() {
    for (run, what) in [
        ("logprobs = -2", "logprobs"),
        ("logit_bias = { x = 1 }", "is not a token id"),
        ("bad_words = [\"\"]", "has an empty text"),
        ("repetition_penalty = inf", "inf is not above 0"),
        ("logit_bias = { 7 = nan }", "NaN is not a number"),
        ("allowed_token_ids = []", "allows no token"),
        ("structured_outputs = { json = {}, regex = \"a\" }", "exactly one of json"),
        ("structured_outputs = { choices = [\"a\"] }", "\"choices\" is unknown"),
        ("structured_outputs = { choice = [] }", "a list of texts"),
        ("top_p = 7", "7 is not 0 to 1"),
    ] {
        let (key, message) = parse(run).check().unwrap_err();
        assert!(format!("{key} {message}").contains(what), "{run}: {key} {message}");
    }
}
