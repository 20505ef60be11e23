//! Tests of validation, and of going on after another member.

use super::*;
use rollout_ledger::SegmentDecl;
use rollout_storage::{SEGMENT_ROWS_MAX, Segment, segment_key};

/// Two full segments and a third one.
const LINES: u64 = 10_000;

impl Bench {
    fn segments(&self, id: &str) -> Vec<SegmentDecl> {
        self.context.api.ledger(|l| l.batch_segments(id))
    }

    /// The first member declares one segment and reaches the leader no more; the second one goes on.
    async fn validate_in_turns(&self, id: &str) {
        self.cluster.answer_only(1);
        let error = self.validate(self.assign(id, FIRST)).await.expect_err("no leader");
        assert!(matches!(error, WorkError::Failed(_)), "{error}");
        assert_eq!(self.segments(id).len(), 1);
        self.cluster.answer_only(u64::MAX);
        self.validate(self.assign(id, SECOND)).await.expect("it goes on");
    }

    /// The digests of the segments of a batch's run, and the ids and lines of their rows.
    async fn rows(&self, id: &str) -> (Vec<[u8; 32]>, Vec<(String, u64)>) {
        let run = self.view(id).run.expect("a run");
        let view = self.context.api.ledger(|l| l.run_view(run)).expect("a run");
        let (mut digests, mut rows) = (Vec::new(), Vec::new());
        for number in 0..view.segments {
            let segment = rollout_ledger::id::SegmentNo(number);
            let found = self.context.api.ledger(|l| l.segment_ref(run, segment));
            let digest = found.expect("a segment").blob.digest;
            let key = segment_key("default", &view.folder, &digest);
            let bytes = self.context.api.store.get(&key, &digest).await.expect("stored");
            for row in Segment::decode(bytes).expect("a segment").rows() {
                let body: Value = serde_json::from_slice(row.body).expect("JSON");
                rows.push((body["custom_id"].as_str().expect("an id").to_owned(), row.line));
            }
            digests.push(digest);
        }
        (digests, rows)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_owner_goes_on_after_the_last_segment_and_makes_the_same_rows() {
    let bench = Bench::new();
    let text = file_of(LINES);
    bench.batch("batch_1", &text).await;
    bench.validate_in_turns("batch_1").await;
    bench.started("batch_2", &text).await;
    let (whole, turns) = (bench.rows("batch_2").await, bench.rows("batch_1").await);
    let expected: Vec<_> = (0..LINES).map(|row| (format!("row-{row}"), row + 1)).collect();
    assert!(turns.1 == expected, "a line is missing, repeated or in another place");
    assert_eq!(turns.0.len(), LINES.div_ceil(SEGMENT_ROWS_MAX as u64) as usize);
    assert_eq!(turns, whole);
    let view = bench.view("batch_1");
    assert_eq!((view.total, view.model.as_str()), (LINES, "m"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_id_is_noticed_across_owners() {
    let bench = Bench::new();
    let mut lines: Vec<String> = (0..LINES).map(|row| line(&row.to_string())).collect();
    lines[9000] = line("7");
    bench.batch("batch_1", &lines.join("\n")).await;
    bench.validate_in_turns("batch_1").await;
    let view = bench.view("batch_1");
    assert_eq!((view.status.name(), view.run), ("failed", None));
    let error = &view.errors[0];
    assert_eq!((error.code.as_str(), error.line), ("duplicate_custom_id", Some(9001)));
    assert_eq!(error.message, "line 8 has the same \"custom_id\"");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_with_wrong_lines_fails_the_batch_with_all_of_them() {
    let bench = Bench::new();
    let wrong = line("c").replace(ENDPOINT, "/v1/embeddings");
    let text = format!("{}\n\n{{\n{wrong}\n{}\n", line("a"), line("b"));
    bench.batch("batch_1", &text).await;
    bench.validate(bench.assign("batch_1", FIRST)).await.expect("an answer");
    let view = bench.view("batch_1");
    let errors: Vec<_> =
        view.errors.iter().map(|e| (&*e.code, e.param.as_deref(), e.line)).collect();
    let expected = [("invalid_json_line", None, Some(3)), ("url_mismatch", Some("url"), Some(4))];
    assert_eq!((view.status.name(), errors), ("failed", expected.to_vec()));
    bench.batch("batch_2", "\n\n").await;
    bench.validate(bench.assign("batch_2", FIRST)).await.expect("an answer");
    assert_eq!(bench.view("batch_2").errors[0].code, "empty_file");
}

#[tokio::test(flavor = "multi_thread")]
async fn content_that_is_damaged_fails_the_batch() {
    let bench = Bench::new();
    bench.batch("batch_1", &file_of(1)).await;
    let file = bench.context.api.ledger(|l| l.api_file("file-1").cloned()).expect("a file");
    let (folder, digest) = (&file.content[0].folder, &file.content[0].pieces[0].digest);
    let key = rollout_storage::content_key("default", folder, digest);
    std::fs::write(bench.dir.path().join("store").join(key), b"other").expect("written");
    bench.validate(bench.assign("batch_1", FIRST)).await.expect("an answer");
    assert_eq!(bench.view("batch_1").errors[0].code, "content_unreadable");
}

#[tokio::test(flavor = "multi_thread")]
async fn work_that_went_to_another_member_changes_nothing() {
    let bench = Bench::new();
    bench.batch("batch_1", &file_of(1)).await;
    let old = bench.assign("batch_1", FIRST);
    let new = bench.assign("batch_1", SECOND);
    let error = bench.validate(old).await.expect_err("an old fence");
    assert!(matches!(error, WorkError::Lost), "{error}");
    assert!(bench.segments("batch_1").is_empty());
    bench.validate(new).await.expect("valid");
    assert_eq!(bench.view("batch_1").status.name(), "in_progress");
}
