use super::*;

const SEED: &str = r#"
[model]
uri = "Qwen/Qwen2.5-0.5B-Instruct"

[sampling]
temperature = 0.7
top_p       = 0.9
max_tokens  = 64
seed        = 42

[input]
glob = "data/prompts/*.jsonl"

[output]
dir = "data/completions"

[workers]
count = 1
"#;

fn parse(text: &str) -> Result<BatchConfig, String> {
    BatchConfig::parse(text, Path::new("batch.toml"), Path::new("/jobs"))
        .map_err(|error| error.to_string())
}

/// A key that goes breaks the files that have it.
#[test]
fn the_keys_are_those_that_are_kept() {
    let blocks = [
        "model", "sampling", "input", "output", "workers", "run", "notify", "cluster", "store",
        "tls",
    ];
    // The error lists all known values.
    let refused = |file: &str| {
        let error = toml::from_str::<BatchConfig>(file).unwrap_err();
        error.message().to_owned()
    };
    let mut text = refused("zzz = 1") + "\n";
    for block in blocks {
        assert!(text.contains(&format!("`{block}`")), "{text}");
    }
    assert_eq!(text.matches('`').count(), 2 * (blocks.len() + 1), "a block is new: {text}");
    for block in blocks {
        text += &format!("[{block}] {}\n", refused(&format!("[{block}]\nzzz = 1")));
    }
    rollout_recorded::check(concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/batch-keys.txt"), &text);
}

#[test]
fn the_known_blocks_suffice() {
    let config = parse(SEED).unwrap();
    assert_eq!(config.model.task(), "generate");
    assert_eq!(config.output.dir, Path::new("/jobs/data/completions"));
    assert_eq!(config.input.glob.list(), ["data/prompts/*.jsonl"]);
    assert_eq!(
        config.sampling.canonical_json().unwrap(),
        r#"{"max_tokens":64,"seed":42,"temperature":0.7,"top_p":0.9}"#
    );
}

#[test]
fn the_spec_contains_the_requirements_for_workers() {
    let require = "[workers]\nrequire = { vllm = \">= 0.32\", gpu = \"H100\" }";
    let spec = |text: &str| super::super::spec::run_spec(&parse(text).unwrap()).unwrap();
    let required = spec(&SEED.replacen("[workers]", require, 1));
    assert_eq!(required.require["vllm"], ">=0.32");
    assert_eq!(required.require["gpu"], "H100");
    assert!(spec(SEED).require.is_empty());
    let error = parse(&SEED.replacen("[workers]", "[workers]\nrequire = { vllm = \">\" }", 1));
    assert!(error.unwrap_err().contains("workers.require: vllm = \">\" asks for nothing"));
}

#[test]
fn every_block_refuses_unknown_keys_with_line_and_nearest_key() {
    let cases = [
        ("temperature = 0.7", "temprature = 0.7", "batch.toml:6:", "\"temperature\""),
        ("uri = ", "url = \"x\"\nuri = ", "batch.toml:3:", "\"uri\""),
        ("[workers]", "[worker]", "batch.toml:17:", "\"workers\""),
        ("count = 1", "cuont = 1", "batch.toml:18:", "\"count\""),
        ("glob = ", "globs = ", "batch.toml:12:", "\"glob\""),
        ("dir = ", "dirr = ", "batch.toml:15:", "\"dir\""),
        ("[workers]", "[run]\nprioritty = 1\n[workers]", "batch.toml:18:", "\"priority\""),
        ("[workers]", "[cluster]\nendpoint = []\n[workers]", "batch.toml:18:", "\"endpoints\""),
        ("[workers]", "[tls]\nca = \"x\"\n[workers]", "batch.toml:18:", "ca_file"),
        ("[workers]", "[store]\nuri = \"x\"\n[workers]", "batch.toml:18:", "\"url\""),
    ];
    for (from, to, line, key) in cases {
        let error = parse(&SEED.replacen(from, to, 1)).unwrap_err();
        assert!(error.contains(line) && error.contains(key), "{to}: {error}");
    }
}

#[test]
fn values_out_of_bounds_name_their_key() {
    let cases = [
        ("temperature = 0.7", "temperature = -1", "sampling.temperature"),
        ("temperature = 0.7", "temperature = nan", "sampling.temperature"),
        ("top_p       = 0.9", "top_p = 1.1", "sampling.top_p"),
        ("max_tokens  = 64", "max_tokens = 0", "sampling.max_tokens"),
        ("[workers]", "[run]\npriority = 10\n[workers]", "run.priority"),
        ("[workers]", "[run]\nattempts_max = 9\n[workers]", "run.attempts_max"),
        ("[workers]", "[run]\nname = \"-x\"\n[workers]", "run.name"),
        ("glob = \"data/prompts/*.jsonl\"", "glob = []", "input.glob"),
        ("dir = \"data/completions\"", "dir = \"s3://b/out\"", "output.dir"),
        ("uri = \"Qwen/Qwen2.5-0.5B-Instruct\"", "uri = \"\"", "model.uri"),
        (
            "temperature = 0.7",
            "temperature = \"hot\"",
            "sampling.temperature: expected a number, found the string \"hot\"",
        ),
        ("max_tokens  = 64", "max_tokens = -1", "sampling.max_tokens: expected a whole number"),
        (
            "dir = \"data/completions\"",
            "dir = \"o\"\nformat = \"jsonll\"",
            "output.format: \"jsonll\" is not allowed; did you mean \"jsonl\"? allowed values: ",
        ),
    ];
    for (from, to, key) in cases {
        let error = parse(&SEED.replacen(from, to, 1)).unwrap_err();
        assert!(error.contains(key), "{to}: {error}");
    }
    assert!(parse("[model]\n").unwrap_err().contains("the key \"uri\" is missing"));
    assert!(parse("[model\n").unwrap_err().contains("batch.toml:1:"));
    let error = parse(&SEED.replace("glob = \"data/prompts/*.jsonl\"", "glob = 7")).unwrap_err();
    assert!(error.contains("a string or a list of strings"), "{error}");
}
