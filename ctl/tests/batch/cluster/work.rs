//! The fake leader's own work on the rows of a run, as the test's [`FakeBehavior`] specifies.

use rollout_proto::v1;
use rollout_storage::{PartRow, PartRowKind, PartWriter, Segment, part_key};

use super::{FakeBehavior, Run, Service};

impl Service {
    /// Works on the rows of a run as far as it may, in parts of 300 rows taken from the run's end.
    pub(super) async fn work(self, number: u32) {
        loop {
            let (run, behavior) = {
                let state = self.state.lock();
                (state.runs[&number].clone(), state.behavior.clone())
            };
            if run.state == v1::RunState::Cancelled as i32 {
                return;
            }
            let holds = behavior.holds_from.unwrap_or(u64::MAX);
            let mut bodies = Vec::new();
            for segment in &run.segments {
                let blob = segment.blob.clone().unwrap();
                let digest = blob.digest[..].try_into().unwrap();
                let bytes = self.store.get(&blob.key, &digest).await.unwrap();
                let segment = Segment::decode(bytes).unwrap();
                bodies.extend(segment.rows().map(|row| row.body.to_vec()));
            }
            let todo: Vec<u64> = (0..bodies.len() as u64)
                .filter(|row| *row < holds && run.outcomes[*row as usize].is_none())
                .rev()
                .collect();
            for rows in todo.chunks(300) {
                self.part(number, &run, &behavior, rows, &bodies).await;
            }
            if holds == u64::MAX {
                let mut state = self.state.lock();
                let run = state.runs.get_mut(&number).unwrap();
                if run.state == v1::RunState::Running as i32 {
                    run.state = v1::RunState::Finished as i32;
                }
                return;
            }
            self.changed.notified().await;
        }
    }

    async fn part(
        &self,
        number: u32,
        run: &Run,
        behavior: &FakeBehavior,
        rows: &[u64],
        bodies: &[Vec<u8>],
    ) {
        let mut writer = PartWriter::new();
        for row in rows {
            let (kind, body) = match behavior.fails.contains(row) {
                true => (PartRowKind::Failed, br#"{"error":"x"}"#.to_vec()),
                false => (PartRowKind::Completed, answer(&bodies[*row as usize])),
            };
            let named = if behavior.shifts_rows { row + 1 } else { *row };
            writer.push(PartRow { row: named, attempt: 7, kind, body: &body }).unwrap();
        }
        let bytes = writer.finish();
        let digest = *blake3::hash(&bytes).as_bytes();
        let key = part_key(&run.namespace, &run.folder, &digest);
        let blob = self.store.put(&key, bytes).await.unwrap();
        let digest = blob.digest.to_vec().into();
        let blob = v1::BlobRef { key: blob.key, digest, bytes: blob.len };
        let message =
            behavior.failure_message.clone().unwrap_or_else(|| "the engine said no".to_owned());
        // As members do: the beginning of a long text, and an object with all of it.
        let text = match message.len() > 512 {
            true => {
                let key = "runs/default/evidence";
                let text = self.store.put(key, message.clone().into_bytes().into()).await.unwrap();
                let digest = text.digest.to_vec().into();
                Some(v1::BlobRef { key: text.key, digest, bytes: text.len })
            }
            false => None,
        };
        let mut state = self.state.lock();
        let run = state.runs.get_mut(&number).unwrap();
        for (at, row) in rows.iter().enumerate() {
            run.outcomes[*row as usize] = Some((blob.clone(), at as u32));
            if behavior.fails.contains(row) {
                run.failures.push(v1::FailedRow {
                    row: *row,
                    class: "transient".into(),
                    code: "RO-7001".into(),
                    message: message.chars().take(512).collect(),
                    attempts: 3,
                    evidence: text
                        .clone()
                        .map(|text| v1::Evidence { text: Some(text), ..Default::default() }),
                });
            }
        }
        run.failures.sort_by_key(|failure| failure.row);
    }
}

/// The model's answer to a row.
pub(crate) fn answer(body: &[u8]) -> Vec<u8> {
    let row: serde_json::Value = serde_json::from_slice(body).unwrap();
    if !row["custom_id"].is_null() {
        let text = format!("MOCK:{}", row["body"]["messages"][0]["content"].as_str().unwrap_or(""));
        let body = serde_json::json!({"object": "x", "choices": [{"message": {"content": text}}]});
        let response = serde_json::json!({"status_code": 200, "request_id": "r", "body": body});
        return serde_json::json!({
            "completion": "",
            "finish_reason": "stop",
            "prompt_tokens": 2,
            "completion_tokens": 3,
            "generated_at": "2026-01-01T00:00:00Z",
            "extra": {"response": response},
        })
        .to_string()
        .into_bytes();
    }
    let prompt = match row["prompt"].as_str() {
        Some(prompt) => prompt.to_owned(),
        None => row["messages"].to_string(),
    };
    serde_json::json!({
        "completion": format!("MOCK:{prompt}"),
        "finish_reason": "stop",
        "prompt_tokens": 2,
        "completion_tokens": 3,
        "generated_at": "2026-01-01T00:00:00Z",
    })
    .to_string()
    .into_bytes()
}
