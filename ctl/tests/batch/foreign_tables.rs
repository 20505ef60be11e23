//! Parquet files of other programs: how the types of their columns survive in an output of the same format.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use parquet::data_type::{
    ByteArray, ByteArrayType, DataType, DoubleType, FixedLenByteArray, FixedLenByteArrayType,
    FloatType, Int32Type, Int64Type,
};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::record::Field;
use parquet::schema::parser::parse_message_type;

use super::cluster::TestCluster;
use super::command::Job;

/// A column of each type that JSON does not have, and others.
const SCHEMA: &str = "message m {
    required int64 id;
    required binary prompt (STRING);
    required int32 small;
    required fixed_len_byte_array(2) half (FLOAT16);
    required float single;
    required double whole;
    required int32 day (DATE);
    required int64 moment (TIMESTAMP(MICROS, true));
    required int32 price (DECIMAL(9, 2));
    required binary raw;
    optional group tags (LIST) { repeated group list { optional int32 element; } }
}";

type Group<'a> = SerializedRowGroupWriter<'a, File>;

/// Writes the next column of one row.
fn put<P: DataType>(group: &mut Group<'_>, value: P::T) {
    let mut column = group.next_column().unwrap().unwrap();
    column.typed::<P>().write_batch(&[value], None, None).unwrap();
    column.close().unwrap();
}

/// A file of one row.
fn write_foreign(path: &Path) {
    let schema = Arc::new(parse_message_type(SCHEMA).unwrap());
    let file = File::create(path).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema, Default::default()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    put::<Int64Type>(&mut group, 7);
    put::<ByteArrayType>(&mut group, ByteArray::from(b"p".to_vec()));
    put::<Int32Type>(&mut group, -5);
    // 1.0.
    put::<FixedLenByteArrayType>(&mut group, FixedLenByteArray::from(vec![0x00, 0x3c]));
    put::<FloatType>(&mut group, 0.1);
    put::<DoubleType>(&mut group, 2.0);
    put::<Int32Type>(&mut group, 20_000);
    put::<Int64Type>(&mut group, 1_700_000_000_123_456);
    put::<Int32Type>(&mut group, 1230);
    put::<ByteArrayType>(&mut group, ByteArray::from(vec![0xff, 0, 1, 2]));
    let mut tags = group.next_column().unwrap().unwrap();
    tags.typed::<Int32Type>().write_batch(&[1, 2], Some(&[3, 3]), Some(&[0, 1])).unwrap();
    tags.close().unwrap();
    group.close().unwrap();
    writer.close().unwrap();
}

#[test]
fn columns_of_foreign_tables_come_out_as_the_guide_says() {
    let cluster = TestCluster::start();
    let job = Job::new(&cluster, "job", "");
    write_foreign(&job.dir.join("in.parquet"));
    let config = job.read("batch.toml").replace("\"in*.jsonl\"", "\"in.parquet\"");
    let config = config.replace("dir = \"out\"", "dir = \"out\"\nformat = \"parquet\"");
    job.write("batch.toml", &config);
    let ended = job.batch(&[]);
    assert_eq!(ended.code, 0, "{ended:?}");

    let file = File::open(job.out().join("completions.parquet")).unwrap();
    let reader = SerializedFileReader::new(file).unwrap();
    let rows: Vec<_> = reader.get_row_iter(None).unwrap().map(Result::unwrap).collect();
    assert_eq!(rows.len(), 1);
    let text = |text: &str| Field::Str(text.to_owned());
    for (name, expected) in [
        ("id", Field::Long(7)),
        ("prompt", text("p")),
        ("small", Field::Long(-5)),
        ("half", Field::Double(1.0)),
        ("single", Field::Double(0.1)),
        ("whole", Field::Double(2.0)),
        ("day", text("2024-10-04")),
        ("moment", text("2023-11-14T22:13:20.123456Z")),
        ("price", Field::Double(12.3)),
        ("raw", text("/wABAg==")),
        ("tags", text("[1,2]")),
    ] {
        let found = rows[0].get_column_iter().find(|(column, _)| *column == name);
        assert_eq!(found.map(|(_, value)| value), Some(&expected), "{name}");
    }
}
