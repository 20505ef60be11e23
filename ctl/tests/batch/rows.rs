//! The forms of a row: other column names, templates, its own parameters, other tasks.

use serde_json::json;

use super::cluster::TestCluster;
use super::command::Job;

/// A job whose batch file has these settings for the model, the sampling and the input.
fn job<'a>(cluster: &'a TestCluster, config: &str, input: &str) -> Job<'a> {
    let job = Job::new(cluster, "job", input);
    job.write(
        "batch.toml",
        &format!("{config}\nglob = \"in*.jsonl\"\n[output]\ndir = \"out\"\n[run]\nname = \"r\"\n"),
    );
    job
}

#[test]
fn columns_of_other_names_and_a_template_make_rows_that_are_proven_and_appended_alike() {
    let cluster = TestCluster::start();
    let rows = "{\"title\":\"T\",\"body\":\"B\",\"doc\":1,\"prompt\":\"x\"}\n{\"title\":\"U\",\"body\":null,\"doc\":2}\n";
    let config = "[model]\nuri = \"mock\"\n[input]\ncolumns = { id = \"doc\" }\n\
                  prompt_template = \"{title}\\n{body} {{}}\"";
    let job = job(&cluster, config, rows);
    let ended = job.batch(&["--keep-open", "--detach"]);
    assert_eq!(ended.code, 0, "{ended:?}");
    // An append needs no batch file: the run remembers its columns.
    job.write(
        "more.jsonl",
        "{\"title\":\"U\",\"body\":null,\"doc\":2}\n{\"title\":\"V\",\"body\":[1, 2],\"doc\":3}\n",
    );
    let appended = job.run(&["run", "append", "r", "more.jsonl"]);
    assert!(appended.stderr.contains("1 row appended, 1 was there"), "{appended:?}");
    job.write("more.jsonl", "{\"title\":\"U\",\"doc\":4}\n");
    let refused = job.run(&["run", "append", "r", "more.jsonl"]);
    assert_eq!(refused.code, 2, "{refused:?}");
    assert!(
        refused.stderr.contains("more.jsonl:1:1: the row has no column \"body\""),
        "{refused:?}"
    );
    assert_eq!(job.run(&["run", "close", "r"]).code, 0);
    let ended = job.batch(&["--resume", "r"]);
    assert_eq!(ended.code, 0, "{ended:?}");
    let lines = job.lines("out/completions.jsonl");
    let prompts: Vec<_> = lines.iter().map(|line| (&line["id"], &line["prompt"])).collect();
    assert_eq!(
        prompts,
        [
            (&json!(1), &json!("T\nB {}")),
            (&json!(2), &json!("U\n {}")),
            (&json!(3), &json!("V\n[1, 2] {}"))
        ]
    );
    assert_eq!(lines[0]["input_prompt"], "x");
    assert_eq!(lines[0]["completion"], "MOCK:T\nB {}");
    let verified = job.run(&["verify", "r", "--output", "out"]);
    assert_eq!(verified.code, 0, "{verified:?}");
}

#[test]
fn rows_with_parameters_of_their_own_are_items_of_their_own_and_show_them() {
    let cluster = TestCluster::start();
    let rows = concat!(
        "{\"prompt\":\"a\"}\n",
        "{\"prompt\":\"a\",\"sampling_params\":{\"temperature\":1}}\n",
        "{\"prompt\":\"a\",\"sampling_params\":{\"max_tokens\":8}}\n",
        "{\"prompt\":\"a\",\"lora\":\"l\"}\n",
    );
    let config = "[model]\nuri = \"mock\"\n[sampling]\nmax_tokens = 8\n[input]";
    let job = job(&cluster, config, rows);
    let ended = job.batch(&[]);
    assert_eq!(ended.code, 0, "{ended:?}");
    let lines = job.lines("out/completions.jsonl");
    let sampling: Vec<_> = lines.iter().map(|line| &line["sampling_params"]).collect();
    let plain = json!({"max_tokens": 8});
    assert_eq!(sampling, [&plain, &json!({"max_tokens": 8, "temperature": 1.0}), &plain, &plain]);
    let ids: std::collections::HashSet<_> =
        lines.iter().map(|line| line["id"].to_string()).collect();
    assert_eq!(ids.len(), 4, "equal parameters are another sample, others are another item");
    assert_eq!(job.run(&["verify", "r", "--output", "out"]).code, 0);
    // Only the row whose parameters changed runs again.
    job.write("in.jsonl", &rows.replace("\"temperature\":1", "\"temperature\":2"));
    let ended = job.batch(&[]);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.stderr.contains("3 of 4 with a reused result"), "{ended:?}");
    job.write("in.jsonl", &rows.replace("\"temperature\":1", "\"temperature\":-1"));
    let refused = job.batch(&["--dry-run"]);
    assert_eq!(refused.code, 2, "{refused:?}");
    let message = "in.jsonl:2:33: \"sampling_params\": temperature: -1 is not 0 to 100";
    assert!(refused.stderr.contains(message), "{refused:?}");
    job.write("in.jsonl", &rows.replace("\"temperature\":1", "\"temprature\":1"));
    let warned = job.batch(&["--dry-run"]);
    assert_eq!(warned.code, 0, "an engine may know it: {warned:?}");
    let message = "in.jsonl:2:33: \"sampling_params\": unknown key \"temprature\", did you mean \"temperature\"?";
    assert!(warned.stderr.contains(message) && warned.stderr.contains("warning: "), "{warned:?}");
    job.write("in.jsonl", &rows.replace("\"temperature\":1", "\"temperature\":-1"));
    // If it is submitted anyway, only that row is affected: the engine answers it, and the mock accepts everything.
    let ended = job.batch(&[]);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.stderr.contains("3 of 4 with a reused result"), "{ended:?}");
    assert_eq!(job.lines("out/completions.jsonl")[1]["sampling_params"]["temperature"], -1.0);
}

#[test]
fn a_batch_file_that_contradicts_itself_is_refused_before_anything_is_read() {
    let cluster = TestCluster::start();
    for (config, why) in [
        ("[input]\ncolumns = { promt = \"x\" }", "did you mean \"prompt\""),
        ("[input]\nprompt_template = \"{\"", "input.prompt_template: has a single {"),
        ("task = \"score\"\n[sampling]\nn = 2\n[input]", "means nothing for the task \"score\""),
        (
            "[sampling]\nstructured_outputs = {}\n[input]",
            "sampling.structured_outputs: has to have",
        ),
    ] {
        let job = job(&cluster, &format!("[model]\nuri = \"mock\"\n{config}"), "");
        let refused = job.batch(&["--dry-run"]);
        assert_eq!(refused.code, 2, "{refused:?}");
        assert!(refused.stderr.contains(why), "{refused:?}");
    }
}

#[test]
fn a_score_needs_a_query_and_a_document() {
    let cluster = TestCluster::start();
    let rows = "{\"query\":\"q\",\"text\":\"d\"}\n{\"query\":\"q\"}\n";
    let config =
        "[model]\nuri = \"mock\"\ntask = \"score\"\n[input]\ncolumns = { document = \"text\" }";
    let job = job(&cluster, config, rows);
    let refused = job.batch(&["--dry-run"]);
    assert_eq!(refused.code, 2, "{refused:?}");
    assert!(refused.stderr.contains("in.jsonl:2:1: the row has no column \"text\""), "{refused:?}");
}
