//! Fuzzes input files of users: JSON lines, comma- and tab-separated values and Parquet, compressed or not. The first
//! byte selects the file extension, the task, and whether columns are mapped.

use std::sync::Arc;

use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use rollout_batch::input::files::InputFile;
use rollout_batch::input::scan::{FinishedSegment, ScanControl, ScanError, ScanOptions, scan};
use rollout_batch::submission::spec;
use rollout_proto::v1;
use rollout_storage::Segment;

use super::{file_of, of, unhex};

const TASKS: [&str; 4] = ["generate", "embed", "score", "openai"];
/// Parquet and compressed files are detected by their content.
const NAMES: [&str; 4] = ["in.jsonl", "in.csv", "in.tsv", "in.csv.gz"];
const MAPPED: &str =
    r#"{"input":{"columns":{"id":"key"},"prompt_template":"Say {text} to {key}"}}"#;

pub(crate) fn run(bytes: &[u8]) {
    let Some((kind, file)) = bytes.split_first() else { return };
    let kind = usize::from(*kind);
    let engine = v1::EngineSpec { task: TASKS[kind % 4].into(), ..Default::default() };
    let options_json = if kind / 16 % 2 == 1 { MAPPED.to_owned() } else { String::new() };
    let spec = v1::RunSpec { engine: Some(engine), options_json, ..Default::default() };
    // Some tasks have no such columns.
    let Ok(rules) = spec::rules(&spec) else { return };
    let rules = if kind / 32 % 2 == 1 { rules.strict() } else { rules };
    let path = file_of(NAMES[kind / 4 % 4], file);
    let files = [InputFile::local(path, file.len() as u64)];
    let options = ScanOptions {
        threads: 1,
        ids_budget_bytes: 1 << 16,
        // A few bytes of Parquet are millions of rows without a prompt.
        stop_after_errors: 100,
        ..ScanOptions::default()
    };
    let mut rows = 0;
    let mut sink = |segment: FinishedSegment| {
        let decoded = Segment::decode(segment.bytes).expect("a segment that was written is read");
        rows += decoded.len() as u64;
        Ok(())
    };
    let read = scan(&files, &rules, &options, &ScanControl::default(), Some(&mut sink));
    match read {
        Ok(found) => {
            assert_eq!(found.errors.is_empty(), found.error_count == 0);
            assert!(found.error_count > 0 || found.rows == rows, "a row is in no segment");
            let placed = found.errors.iter().all(|error| error.line <= found.lines);
            assert!(placed, "an error is on a line that is not there");
        }
        Err(ScanError::Stopped) => panic!("a thread that reads ended"),
        Err(_) => {}
    }
}

fn table() -> Vec<u8> {
    let schema = "message m { optional binary prompt (STRING); required binary id (STRING); }";
    let schema = Arc::new(parse_message_type(schema).expect("a schema"));
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, Arc::default()).expect("a file");
    let text = |text: &str| ByteArray::from(text.as_bytes().to_vec());
    let mut group = writer.next_row_group().expect("a group");
    for (values, defined) in
        [(vec![text("a")], Some(&[1, 0][..])), (vec![text("x"), text("y")], None)]
    {
        let mut column = group.next_column().expect("a column").expect("a column");
        let written = column.typed::<ByteArrayType>().write_batch(&values, defined, None);
        written.expect("values");
        column.close().expect("an end");
    }
    group.close().expect("an end");
    writer.into_inner().expect("an end")
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = vec![
        of(0, b"\xef\xbb\xbf {\"prompt\" : \"a\"} \r\n\n{\"prompt\":\"b\",\"id\":1,\"sampling_params\":{\"seed\":1}}"),
        of(1, b"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}\n{\"prompt\":\"\\ud83d\\ude00\"}\n"),
        of(2, b"{\"query\":\"a\",\"document\":\"b\"}\n"),
        of(3, b"{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"model\":\"m\"}}\n"),
        of(4, b"prompt,id\n\"a, \"\"b\"\"\",1\n\nc,2\n"),
        of(8, b"prompt\tid\na\t1\nb\t\n"),
        of(16, b"{\"text\":\"a\",\"key\":1}\n{\"text\":\"b\",\"key\":\"x\"}\n"),
        of(20, b"text,key\na,1\nb,2\n"),
        of(32, b"{\"prompt\":\"a\",\"sampling_params\":{\"temperature\":3.5,\"topk\":1}}\n"),
        of(0, &table()),
        of(16, &table()),
    ];
    // gzip and zstd of {"prompt":"a"}, as their tools write them.
    seeds.push(of(
        0,
        &unhex("1f8b0800000000000203ab562a28cacf2d2851b2524a54aae50200f98dadea0f000000"),
    ));
    seeds.push(of(0, &unhex("28b52ffd04587900007b2270726f6d7074223a2261227d0a82b74265")));
    seeds
}
