use super::*;
use crate::openai::test_cluster::TestCluster;
use crate::openai::{batches, uploads};
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, Request, StatusCode};
use futures::StreamExt;
use http_body_util::BodyExt;
use rollout_ledger::{ApiKeySpec, KeyLimits, KeyRole};
use rollout_proto::{Identity, Role};
use rollout_storage::{BlobStore, CONTENT_ROOT};
use serde_json::Value;
use std::time::Duration;
use tower::ServiceExt;

const BOUNDARY: &str = "----boundary";

/// A field of a form: its name, its filename, and its content.
pub(in crate::openai) type Field<'a> = (&'a str, Option<&'a str>, &'a [u8]);

/// The handlers for one caller, over a ledger and a store in a directory.
pub(in crate::openai) struct Bench {
    pub(in crate::openai) cluster: TestCluster,
    pub(in crate::openai) store: BlobStore,
    router: Router,
    dir: Arc<tempfile::TempDir>,
}

pub(in crate::openai) struct Answer {
    pub(in crate::openai) status: StatusCode,
    pub(in crate::openai) headers: HeaderMap,
    pub(in crate::openai) body: Bytes,
}

impl Answer {
    pub(in crate::openai) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("JSON")
    }

    /// The status and the code of an error.
    pub(in crate::openai) fn error(&self) -> (u16, String) {
        let code = self.json()["error"]["code"].as_str().expect("a code").to_owned();
        (self.status.as_u16(), code)
    }
}

pub(in crate::openai) fn form(fields: &[Field<'_>]) -> Vec<u8> {
    let mut body = Vec::new();
    for (name, filename, content) in fields {
        let filename = filename.map(|name| format!("; filename=\"{name}\"")).unwrap_or_default();
        let head = format!(
            "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"{name}\"{filename}\r\n\r\n"
        );
        body.extend_from_slice(head.as_bytes());
        body.extend_from_slice(content);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(format!("--{BOUNDARY}--\r\n").as_bytes());
    body
}

fn text<'a>(name: &'a str, content: &'a [u8]) -> Field<'a> {
    (name, None, content)
}

/// The field of the content.
fn named<'a>(filename: Option<&'a str>, content: &'a [u8]) -> Field<'a> {
    ("file", filename, content)
}

impl Bench {
    pub(in crate::openai) fn new() -> Self {
        let dir = Arc::new(tempfile::tempdir().expect("a directory"));
        let url = format!("file://{}", dir.path().display());
        let cluster = TestCluster::with_store(&url);
        let store = BlobStore::open(&url).expect("a store");
        Self::of("default", cluster, store, dir)
    }

    fn of(
        namespace: &str,
        cluster: TestCluster,
        store: BlobStore,
        dir: Arc<tempfile::TempDir>,
    ) -> Self {
        // A key has an id of eight characters.
        let key_id = format!("{namespace:0<8.8}");
        let name = format!("key:{key_id}");
        let caller = KeyCaller {
            key_id,
            namespace: namespace.into(),
            role: KeyRole::Client,
            limits: KeyLimits::default(),
            identity: Identity { role: Role::Client, name, namespaces: vec![namespace.into()] },
        };
        let router = Router::new().merge(routes()).merge(uploads::routes());
        let router = router.merge(batches::routes());
        let router = router.layer(Extension(Arc::new(caller))).with_state(cluster.api());
        Self { cluster, store, router, dir }
    }

    /// The same cluster for a caller of another namespace.
    pub(in crate::openai) fn team(&self) -> Self {
        Self::of("team", self.cluster.clone(), self.store.clone(), self.dir.clone())
    }

    pub(in crate::openai) async fn send(&self, request: Request<Body>) -> Answer {
        let response = self.router.clone().oneshot(request).await.expect("an answer");
        let (parts, body) = response.into_parts();
        let body = body.collect().await.expect("a body").to_bytes();
        Answer { status: parts.status, headers: parts.headers, body }
    }

    pub(in crate::openai) async fn get(&self, path: &str) -> Answer {
        self.send(Request::get(path).body(Body::empty()).expect("a request")).await
    }

    pub(in crate::openai) async fn post(&self, path: &str, json: Value) -> Answer {
        let request = Request::post(path).header("content-type", "application/json");
        self.send(request.body(Body::from(json.to_string())).expect("a request")).await
    }

    async fn part(&self, id: &str, range: &str) -> Answer {
        let request = Request::get(format!("/v1/files/{id}/content")).header("range", range);
        self.send(request.body(Body::empty()).expect("a request")).await
    }

    pub(in crate::openai) async fn delete(&self, id: &str) -> Answer {
        let path = format!("/v1/files/{id}");
        self.send(Request::delete(path).body(Body::empty()).expect("a request")).await
    }

    pub(in crate::openai) async fn post_form(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Body>,
    ) -> Answer {
        self.send(form_request(path, headers, body)).await
    }

    pub(in crate::openai) async fn create(&self, fields: &[Field<'_>]) -> Answer {
        self.post_form("/v1/files", &[], form(fields)).await
    }

    /// A file with this content.
    pub(in crate::openai) async fn file(&self, content: &[u8]) -> String {
        let fields = [("purpose", None, &b"batch"[..]), ("file", Some("in.jsonl"), content)];
        let answer = self.create(&fields).await;
        assert_eq!(answer.status, 200, "{:?}", answer.body);
        answer.json()["id"].as_str().expect("an id").to_owned()
    }

    /// All objects with content.
    pub(in crate::openai) async fn objects(&self) -> Vec<String> {
        self.store.list(CONTENT_ROOT).await.expect("listed")
    }

    /// Waits until the store has this many objects.
    pub(in crate::openai) async fn has_objects(&self, count: usize) {
        let settled = async {
            while self.objects().await.len() != count {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(20), settled).await;
        assert!(waited.is_ok(), "not {count}: {:?}", self.objects().await);
    }
}

fn form_request(path: &str, headers: &[(&str, &str)], body: impl Into<Body>) -> Request<Body> {
    let kind = format!("multipart/form-data; boundary={BOUNDARY}");
    let mut request = Request::post(path).header("content-type", kind);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(body.into()).expect("a request")
}

#[tokio::test]
async fn a_file_is_created_from_fields_in_any_order_and_read_back() {
    let bench = Bench::new();
    let file: Field<'_> = ("file", Some("in.jsonl"), b"{\"custom_id\":\"1\"}\n");
    let purpose: Field<'_> = ("purpose", None, b"batch");
    let anchor: Field<'_> = ("expires_after[anchor]", None, b"created_at");
    let seconds: Field<'_> = ("expires_after[seconds]", None, b"3600");
    for fields in [[file, purpose, anchor, seconds], [seconds, purpose, file, anchor]] {
        let answer = bench.create(&fields).await;
        assert_eq!(answer.status, 200, "{:?}", answer.body);
        let object = answer.json();
        let created_at = object["created_at"].as_u64().expect("a time");
        for (field, value) in [
            ("object", Value::from("file")),
            ("bytes", 18.into()),
            ("filename", "in.jsonl".into()),
            ("purpose", "batch".into()),
            ("status", "processed".into()),
            ("expires_at", (created_at + 3600).into()),
        ] {
            assert_eq!(object[field], value, "{field}");
        }
        let id = object["id"].as_str().expect("an id");
        assert_eq!(bench.get(&format!("/v1/files/{id}")).await.json(), object);
        let content = bench.get(&format!("/v1/files/{id}/content")).await;
        assert_eq!(content.body, file.2);
        assert_eq!(content.headers["content-type"], "application/jsonl");
        assert_eq!(content.headers["content-length"], "18");
    }
}

#[tokio::test]
async fn a_wrong_form_is_refused_and_leaves_no_content() {
    let bench = Bench::new();
    let file: Field<'_> = ("file", Some("in.jsonl"), b"x");
    let purpose: Field<'_> = ("purpose", None, b"batch");
    let other = |purpose: &'static [u8]| text("purpose", purpose);
    let long = "n".repeat(256);
    for (fields, code, param) in [
        (vec![file], "missing_required_parameter", "purpose"),
        (vec![purpose], "missing_required_parameter", "file"),
        (vec![purpose, named(None, b"x")], "missing_required_parameter", "file"),
        (vec![purpose, named(Some(&long), b"x")], "invalid_value", "file"),
        (vec![purpose, named(Some("a"), b"")], "empty_file", "file"),
        (vec![file, file, purpose], "invalid_value", "file"),
        (vec![file, other(b"assistants")], "invalid_value", "purpose"),
        (vec![file, other(b"batch_output")], "invalid_value", "purpose"),
        (vec![file, purpose, text("model", b"m")], "unknown_parameter", ""),
        (
            vec![file, purpose, text("expires_after[seconds]", b"3600")],
            "missing_required_parameter",
            "expires_after[anchor]",
        ),
        (
            vec![
                file,
                purpose,
                text("expires_after[anchor]", b"created_at"),
                text("expires_after[seconds]", b"60"),
            ],
            "invalid_value",
            "expires_after.seconds",
        ),
    ] {
        let answer = bench.create(&fields).await;
        assert_eq!(answer.error(), (400, code.to_owned()), "{fields:?}");
        assert_eq!(answer.json()["error"]["param"].as_str().unwrap_or_default(), param);
    }
    let cut = form(&[purpose, file]);
    let answer = bench.post_form("/v1/files", &[], cut[..cut.len() - 20].to_vec()).await;
    assert_eq!(answer.error(), (400, "invalid_multipart".to_owned()));
    let endless = format!("--{BOUNDARY}\r\nX: {}", "x".repeat(1 << 20));
    let answer = bench.post_form("/v1/files", &[], endless).await;
    assert_eq!(answer.error(), (400, "invalid_multipart".to_owned()), "a head has a bound");
    let request = Request::post("/v1/files").body(Body::from("x")).expect("a request");
    assert_eq!(bench.send(request).await.error(), (400, "invalid_multipart".to_owned()));
    bench.has_objects(0).await;
    assert_eq!(bench.get("/v1/files").await.json()["data"], Value::Array(Vec::new()));
}

#[tokio::test]
async fn content_over_the_bound_is_refused_before_it_is_read() {
    let bench = Bench::new();
    let body = form(&[("purpose", None, b"batch"), ("file", Some("a"), b"0123456789")]);
    let length = (limits_max() + (1 << 20)).to_string();
    let headers = [("content-length", &*length)];
    let answer = bench.post_form("/v1/files", &headers, body.clone()).await;
    assert_eq!(answer.error(), (413, "file_too_large".to_owned()));
    let (id, name, namespace) = ("key:keyKey01", "small".into(), "default".into());
    let limits = KeyLimits { stored_bytes: 9, ..KeyLimits::default() };
    let spec = ApiKeySpec { name, namespace, role: KeyRole::Client, ttl_ms: 0, limits };
    // The key's limit while the content arrives, and that of the ledger for a member that does not know it yet.
    let caller = |limits| KeyCaller {
        key_id: "keyKey01".into(),
        namespace: "default".into(),
        role: KeyRole::Client,
        limits,
        identity: Identity {
            role: Role::Client,
            name: id.into(),
            namespaces: vec!["default".into()],
        },
    };
    bench.cluster.op(OpKind::CreateApiKey(op::CreateApiKey {
        id: "keyKey01".into(),
        secret_hash: [1; 32],
        spec,
    }));
    for limits in [limits, KeyLimits::default()] {
        let router = routes().layer(Extension(Arc::new(caller(limits))));
        let bench = Bench { router: router.with_state(bench.cluster.api()), ..bench.team() };
        let answer = bench.post_form("/v1/files", &[], body.clone()).await;
        assert_eq!(answer.error(), (429, "storage_limit_exceeded".to_owned()));
        assert_eq!(answer.headers["x-should-retry"], "false");
        bench.has_objects(0).await;
    }
}

fn limits_max() -> u64 {
    rollout_ledger::limits::UPLOAD_BYTES_MAX
}

#[tokio::test]
async fn a_dropped_connection_leaves_neither_a_file_nor_content() {
    let bench = Bench::new();
    let whole = form(&[("purpose", None, b"batch"), ("file", Some("a"), &vec![7; 17 << 20])]);
    let some = Bytes::from(whole[..whole.len() - 100].to_vec());
    // The body breaks off.
    let error = || std::io::Error::other("reset");
    let chunks = [Ok(some.clone()), Err(error())];
    let body = Body::from_stream(futures::stream::iter(chunks));
    let answer = bench.post_form("/v1/files", &[], body).await;
    assert_eq!(answer.error(), (400, "invalid_multipart".to_owned()));
    bench.has_objects(0).await;
    // The connection ends while the rest is awaited, once a piece is stored.
    let endless = futures::stream::iter([Ok::<_, std::io::Error>(some)]);
    let body = Body::from_stream(endless.chain(futures::stream::pending()));
    tokio::select! {
        answer = bench.post_form("/v1/files", &[], body) => panic!("{:?}", answer.status),
        () = bench.has_objects(1) => {}
    }
    bench.has_objects(0).await;
    assert_eq!(bench.get("/v1/files").await.json()["data"], Value::Array(Vec::new()));
}

#[tokio::test]
async fn a_large_file_has_several_pieces_and_ranges_cross_them() {
    let bench = Bench::new();
    let content: Vec<u8> = (0..(33 << 20) + 5_u32).map(|n| (n / 1000) as u8).collect();
    let id = bench.file(&content).await;
    assert_eq!(bench.objects().await.len(), 3);
    let len = content.len();
    for (range, from, to) in [
        ("bytes=0-0", 0, 1),
        ("bytes=16777210-16777230", 16_777_210, 16_777_231),
        ("bytes=-6", len - 6, len),
        ("bytes=34603000-", 34_603_000, len),
        ("bytes=16777000-99999999", 16_777_000, len),
    ] {
        let answer = bench.part(&id, range).await;
        assert_eq!(answer.status, 206, "{range}");
        assert!(answer.body == content[from..to], "{range}");
        let named = format!("bytes {from}-{}/{len}", to - 1);
        assert_eq!(answer.headers["content-range"], named.as_str());
    }
    let answer = bench.part(&id, &format!("bytes={len}-")).await;
    assert_eq!(answer.error(), (416, "invalid_range".to_owned()));
    assert_eq!(answer.headers["content-range"], format!("bytes */{len}").as_str());
    let whole = bench.part(&id, "bytes=1-2,5-6").await;
    assert!(whole.status == 200 && whole.body == content);
}

#[tokio::test]
async fn damaged_or_missing_content_is_never_sent() {
    let bench = Bench::new();
    let id = bench.file(b"0123456789").await;
    let key = bench.objects().await.remove(0);
    std::fs::write(bench.dir.path().join(&key), b"012345678x").expect("written");
    let answer = bench.get(&format!("/v1/files/{id}/content")).await;
    assert_eq!(answer.error(), (500, "content_unreadable".to_owned()));
    bench.store.delete(&key).await.expect("deleted");
    let answer = bench.part(&id, "bytes=0-1").await;
    assert_eq!(answer.error(), (500, "content_unreadable".to_owned()));
}

#[tokio::test]
async fn files_are_listed_in_pages_and_none_is_skipped_when_listed_ones_are_deleted() {
    let bench = Bench::new();
    let mut ids = Vec::new();
    for n in 0..7 {
        ids.push(bench.file(format!("{n}").as_bytes()).await);
    }
    ids.sort();
    let (mut after, mut seen, mut pages) = (String::new(), Vec::new(), 0);
    loop {
        let page = bench.get(&format!("/v1/files?limit=3&order=asc{after}")).await.json();
        let data = page["data"].as_array().expect("a list");
        let of_page: Vec<_> =
            data.iter().map(|file| file["id"].as_str().expect("an id").to_owned()).collect();
        assert_eq!(page["first_id"], of_page[0].as_str());
        after = format!("&after={}", page["last_id"].as_str().expect("an id"));
        for id in &of_page {
            assert_eq!(bench.delete(id).await.json()["deleted"], true);
        }
        seen.extend(of_page);
        pages += 1;
        if page["has_more"] == false {
            break;
        }
    }
    assert_eq!((pages, seen), (3, ids));
    let empty = bench.get("/v1/files").await.json();
    assert_eq!((&empty["first_id"], &empty["has_more"]), (&Value::Null, &false.into()));
    for (query, param) in [("limit=0", "limit"), ("limit=x", "limit"), ("order=up", "order")] {
        let answer = bench.get(&format!("/v1/files?{query}")).await;
        assert_eq!(answer.error(), (400, "invalid_value".to_owned()));
        assert_eq!(answer.json()["error"]["param"], param);
    }
}

#[tokio::test]
async fn the_newest_file_comes_first_and_a_purpose_selects() {
    let bench = Bench::new();
    let batch = bench.file(b"1").await;
    let fields = [("purpose", None, &b"user_data"[..]), ("file", Some("a"), &b"2"[..])];
    let other = bench.create(&fields).await.json()["id"].as_str().expect("an id").to_owned();
    let list = async |query: &str| -> Vec<String> {
        let page = bench.get(&format!("/v1/files{query}")).await.json();
        let data = page["data"].as_array().expect("a list").iter();
        data.map(|file| file["id"].as_str().expect("an id").to_owned()).collect()
    };
    let mut newest = vec![batch.clone(), other.clone()];
    newest.sort();
    newest.reverse();
    assert_eq!(list("").await, newest);
    assert_eq!(list("?purpose=batch").await, [batch]);
    assert_eq!(list("?purpose=user_data").await, [other]);
    assert!(list("?purpose=fine-tune").await.is_empty());
}

#[tokio::test]
async fn a_repeated_request_creates_one_file_and_another_content_is_refused() {
    let bench = Bench::new();
    let body =
        |text: &'static [u8]| form(&[("purpose", None, b"batch"), ("file", Some("a"), text)]);
    let headers = [("idempotency-key", "k1")];
    let first = bench.post_form("/v1/files", &headers, body(b"one")).await;
    assert_eq!(first.status, 200);
    let repeat = bench.post_form("/v1/files", &headers, body(b"one")).await;
    assert_eq!((repeat.status, repeat.json()), (StatusCode::OK, first.json()));
    bench.has_objects(1).await;
    let other = bench.post_form("/v1/files", &headers, body(b"two")).await;
    assert_eq!(other.error(), (422, "idempotency_key_reused".to_owned()));
    bench.has_objects(1).await;
    let team = bench.team().post_form("/v1/files", &headers, body(b"two")).await;
    assert_eq!(team.status, 200, "another namespace has keys of its own");
    let id = first.json()["id"].as_str().expect("an id").to_owned();
    assert_eq!(bench.get(&format!("/v1/files/{id}/content")).await.body, "one");
}

#[tokio::test]
async fn a_caller_of_another_namespace_does_not_see_that_a_file_exists() {
    let bench = Bench::new();
    let (id, team) = (bench.file(b"1").await, bench.team());
    let unknown = "file-0123";
    for (theirs, none) in [
        (
            team.get(&format!("/v1/files/{id}")).await,
            team.get(&format!("/v1/files/{unknown}")).await,
        ),
        (team.delete(&id).await, team.delete(unknown).await),
        (team.part(&id, "bytes=0-").await, team.part(unknown, "bytes=0-").await),
    ] {
        assert_eq!(theirs.error(), (404, "not_found".to_owned()));
        assert_eq!(theirs.json().to_string().replace(&id, unknown), none.json().to_string());
    }
    assert_eq!(team.get("/v1/files").await.json()["data"], Value::Array(Vec::new()));
    assert_eq!(bench.get(&format!("/v1/files/{id}")).await.status, 200);
}

#[tokio::test]
async fn content_of_an_unknown_outcome_stays_for_the_sweep() {
    let bench = Bench::new();
    let body = form(&[("purpose", None, b"batch"), ("file", Some("a"), b"1")]);
    bench.cluster.lose_contact();
    let answer = bench.post_form("/v1/files", &[], body).await;
    assert_eq!(answer.error(), (503, "no_leader".to_owned()));
    assert_eq!(bench.objects().await.len(), 1, "the operation may take effect nevertheless");
}
