use super::*;
use crate::openai::files::tests::{Answer, Bench, form};
use serde_json::{Value, json};

impl Bench {
    async fn upload(&self, bytes: u64) -> String {
        let request = json!({
            "filename": "in.jsonl", "purpose": "batch", "bytes": bytes, "mime_type": "application/jsonl",
        });
        let answer = self.post("/v1/uploads", request).await;
        assert_eq!(answer.status, 200, "{:?}", answer.body);
        let upload = answer.json();
        let created_at = upload["created_at"].as_u64().expect("a time");
        for (field, value) in [
            ("object", Value::from("upload")),
            ("bytes", bytes.into()),
            ("filename", "in.jsonl".into()),
            ("purpose", "batch".into()),
            ("status", "pending".into()),
            ("expires_at", (created_at + 3600).into()),
            ("file", Value::Null),
        ] {
            assert_eq!(upload[field], value, "{field}");
        }
        upload["id"].as_str().expect("an id").to_owned()
    }

    async fn add(&self, upload: &str, data: &[u8]) -> Answer {
        let path = format!("/v1/uploads/{upload}/parts");
        self.post_form(&path, &[], form(&[("data", Some("blob"), data)])).await
    }

    async fn part_of(&self, upload: &str, data: &[u8]) -> String {
        let answer = self.add(upload, data).await;
        assert_eq!(answer.status, 200, "{:?}", answer.body);
        let part = answer.json();
        assert_eq!((&part["object"], &part["upload_id"]), (&"upload.part".into(), &upload.into()));
        part["id"].as_str().expect("an id").to_owned()
    }

    async fn finish(&self, upload: &str, parts: &[&String], md5: Option<&str>) -> Answer {
        let path = format!("/v1/uploads/{upload}/complete");
        self.post(&path, json!({ "part_ids": parts, "md5": md5 })).await
    }

    async fn cancel(&self, upload: &str) -> Answer {
        self.post(&format!("/v1/uploads/{upload}/cancel"), Value::Null).await
    }
}

#[tokio::test]
async fn parts_in_shuffled_order_become_a_file_in_the_listed_order() {
    let bench = Bench::new();
    let upload = bench.upload(9).await;
    let mut parts = Vec::new();
    for data in ["e", "bb", "d", "aaa", "cc"] {
        parts.push((data, bench.part_of(&upload, data.as_bytes()).await));
    }
    let unused = bench.part_of(&upload, b"unused").await;
    parts.sort();
    let ids: Vec<_> = parts.iter().map(|(_, id)| id).collect();
    let wrong = bench.finish(&upload, &ids, Some("900150983cd24fb0d6963f7d28e17f72")).await;
    assert_eq!(wrong.error(), (400, "md5_mismatch".to_owned()));
    // In upper case, as some clients write it.
    let answer = bench.finish(&upload, &ids, Some("DAD285341491A6EBB8FFBE6FB461FC51")).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    let completed = answer.json();
    assert_eq!(
        (&completed["status"], &completed["file"]["bytes"]),
        (&"completed".into(), &9.into())
    );
    assert_eq!(bench.finish(&upload, &ids, None).await.json(), completed, "a repeat");
    let file = completed["file"]["id"].as_str().expect("an id");
    let content = bench.get(&format!("/v1/files/{file}/content")).await;
    assert_eq!(content.body, "aaabbccde");
    let removed = bench.cluster.api().ledger(|l| l.removable_content(None, 9));
    assert!(removed.len() == 1 && removed[0].1.ends_with(&unused), "{removed:?}");
    let late = bench.add(&upload, b"late").await;
    assert_eq!(late.error(), (409, "upload_ended".to_owned()));
    assert_eq!(bench.cancel(&upload).await.error(), (409, "upload_ended".to_owned()));
    bench.has_objects(6).await;
}

#[tokio::test]
async fn the_digest_of_known_content_is_right() {
    let bench = Bench::new();
    let upload = bench.upload(3).await;
    let (a, bc) = (bench.part_of(&upload, b"a").await, bench.part_of(&upload, b"bc").await);
    let answer = bench.finish(&upload, &[&a, &bc], Some("900150983cd24fb0d6963f7d28e17f72")).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
}

#[tokio::test]
async fn a_completion_that_lists_the_wrong_parts_changes_nothing() {
    let bench = Bench::new();
    let upload = bench.upload(4).await;
    let (a, b) = (bench.part_of(&upload, b"12").await, bench.part_of(&upload, b"34").await);
    let missing = bench.finish(&upload, &[&a], None).await;
    assert_eq!(missing.error(), (400, "upload_incomplete".to_owned()));
    let unknown = "part_unknown".to_owned();
    for md5 in [None, Some("900150983cd24fb0d6963f7d28e17f72")] {
        let answer = bench.finish(&upload, &[&a, &unknown], md5).await;
        assert_eq!(answer.error(), (400, "invalid_value".to_owned()));
        assert_eq!(answer.json()["error"]["param"], "part_ids");
    }
    assert_eq!(bench.finish(&upload, &[&a, &a], None).await.status, 400);
    assert_eq!(bench.finish(&upload, &[&a, &b], None).await.status, 200);
}

#[tokio::test]
async fn a_cancelled_upload_takes_no_part_and_becomes_no_file() {
    let bench = Bench::new();
    let upload = bench.upload(2).await;
    let part = bench.part_of(&upload, b"12").await;
    let cancelled = bench.cancel(&upload).await;
    assert_eq!(cancelled.json()["status"], "cancelled");
    assert_eq!(bench.cancel(&upload).await.json(), cancelled.json(), "a repeat");
    let ended = (409, "upload_ended".to_owned());
    assert_eq!(bench.finish(&upload, &[&part], None).await.error(), ended);
    assert_eq!(bench.add(&upload, b"34").await.error(), ended);
    // The content of the part is the garbage collector's; that of the refused one is gone.
    bench.has_objects(1).await;
}

#[tokio::test]
async fn wrong_requests_are_refused() {
    let bench = Bench::new();
    let create = |filename: &str, purpose: &str, bytes: u64| json!({ "filename": filename, "purpose": purpose, "bytes": bytes, "mime_type": "x" });
    for (request, status, param) in [
        (create("", "batch", 1), 400, "filename"),
        (create("a", "vision", 1), 400, "purpose"),
        (create("a", "batch", 0), 400, "bytes"),
        (create("a", "batch", limits::UPLOAD_BYTES_MAX + 1), 413, ""),
    ] {
        let answer = bench.post("/v1/uploads", request).await;
        assert_eq!(answer.status, status);
        assert_eq!(answer.json()["error"]["param"].as_str().unwrap_or_default(), param);
    }
    assert_eq!(
        bench.post("/v1/uploads", json!({})).await.error(),
        (400, "invalid_json".to_owned())
    );
    let upload = bench.upload(1).await;
    assert_eq!(bench.add(&upload, b"").await.error(), (400, "invalid_value".to_owned()));
    let path = format!("/v1/uploads/{upload}/parts");
    let answer = bench.post_form(&path, &[], form(&[])).await;
    assert_eq!(answer.error(), (400, "missing_required_parameter".to_owned()));
    let length = (limits::UPLOAD_PART_BYTES_MAX + (1 << 20)).to_string();
    let headers = [("content-length", &*length)];
    let answer = bench.post_form(&path, &headers, form(&[("data", None, b"1")])).await;
    assert_eq!(answer.error(), (413, "file_too_large".to_owned()));
    for answer in [
        bench.add("upload_none", b"1").await,
        bench.finish("upload_none", &[], None).await,
        bench.cancel("upload_none").await,
    ] {
        assert_eq!(answer.error(), (404, "not_found".to_owned()));
    }
    bench.has_objects(0).await;
}
