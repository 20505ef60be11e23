//! Multipart uploads, as in S3.
//!
//! *Invariant:* an object exists once its upload is completed, and not before. A completed or aborted upload keeps no
//! part and is unknown from then on, even to a client that repeats the same request.

use super::{Request, S3Response, done, refusal, tag, text};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The least bytes of a part, except for the last part.
const PART_MIN: usize = 5 << 20;

/// All uploads of a store.
#[derive(Default)]
pub(super) struct Uploads {
    open: BTreeMap<String, Upload>,
    begun: u64,
    completed: u64,
    aborted: u64,
}

struct Upload {
    key: String,
    parts: BTreeMap<u32, Arc<Vec<u8>>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UploadCounts {
    pub completed: u64,
    pub aborted: u64,
    /// Parts of open uploads.
    pub parts: usize,
}

impl Uploads {
    pub(super) fn counts(&self) -> UploadCounts {
        let parts = self.open.values().map(|upload| upload.parts.len()).sum();
        UploadCounts { completed: self.completed, aborted: self.aborted, parts }
    }

    pub(super) fn begin(&mut self, key: &str) -> S3Response {
        self.begun += 1;
        let id = format!("upload-{}", self.begun);
        self.open.insert(id.clone(), Upload { key: key.to_owned(), parts: BTreeMap::new() });
        text(format!(
            "<InitiateMultipartUploadResult><UploadId>{id}</UploadId></InitiateMultipartUploadResult>"
        ))
    }

    pub(super) fn part(&mut self, request: &Request, refused: Option<u32>) -> S3Response {
        let number = request.query.get("partNumber").and_then(|number| number.parse().ok());
        let (Some(number), Some(upload)) = (number, self.open.get_mut(id(request))) else {
            return unknown();
        };
        if refused == Some(number) {
            return refusal("403 Forbidden", "AccessDenied");
        }
        let body = Arc::new(request.body.clone());
        let answer = S3Response { tag: Some(tag(&body)), ..done() };
        upload.parts.insert(number, body);
        answer
    }

    /// Completes an upload; returns the object and the answer.
    pub(super) fn complete(&mut self, request: &Request) -> Result<(String, Vec<u8>), S3Response> {
        let upload = self.open.get(id(request)).ok_or_else(unknown)?;
        let named = named(&String::from_utf8_lossy(&request.body));
        let mut object = Vec::new();
        for (place, (number, told)) in named.iter().enumerate() {
            let part = upload.parts.get(number).filter(|part| tag(part) == *told);
            let part = part.ok_or_else(|| refusal("400 Bad Request", "InvalidPart"))?;
            if part.len() < PART_MIN && place + 1 < named.len() {
                return Err(refusal("400 Bad Request", "EntityTooSmall"));
            }
            object.extend_from_slice(part);
        }
        if !named.is_sorted() || named.is_empty() {
            return Err(refusal("400 Bad Request", "InvalidPartOrder"));
        }
        self.completed += 1;
        let key = self.open.remove(id(request)).map(|upload| upload.key).unwrap_or_default();
        Ok((key, object))
    }

    pub(super) fn abort(&mut self, request: &Request) -> S3Response {
        match self.open.remove(id(request)) {
            Some(_) => {
                self.aborted += 1;
                S3Response { status: "204 No Content", ..done() }
            }
            None => unknown(),
        }
    }
}

fn id(request: &Request) -> &str {
    request.query.get("uploadId").map(String::as_str).unwrap_or_default()
}

fn unknown() -> S3Response {
    refusal("404 Not Found", "NoSuchUpload")
}

/// The parts that a completion names, with their tags.
fn named(xml: &str) -> Vec<(u32, String)> {
    let within = |text: &str, name: &str| {
        let (_, rest) = text.split_once(&format!("<{name}>"))?;
        Some(rest.split_once(&format!("</{name}>"))?.0.replace("&quot;", "\""))
    };
    let parts = xml.split("<Part>").skip(1);
    parts
        .filter_map(|part| Some((within(part, "PartNumber")?.parse().ok()?, within(part, "ETag")?)))
        .collect()
}
