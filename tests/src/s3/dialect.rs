//! The dialects in which clouds offer the same objects: how a client is configured, how a request authenticates, the
//! format of a listing, and the response headers.
//!
//! Absent: differences that no test reads (versions, metadata, batches of deletions).

use super::State;
use std::fmt::Write;

/// The dialect of a store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Dialect {
    #[default]
    S3,
    /// Google Cloud Storage's XML API.
    Gcs,
    Azure,
}

impl Dialect {
    pub(super) fn url(self) -> &'static str {
        match self {
            Self::S3 => "s3://fleet/work",
            Self::Gcs => "gs://fleet/work",
            Self::Azure => "az://fleet/work",
        }
    }

    /// The environment for the process of this name, with the store's address and its own credentials. A Google
    /// client with another address than Google's has no credentials.
    pub(super) fn env(self, addr: &str, name: &str) -> Vec<(&'static str, String)> {
        match self {
            Self::S3 => vec![
                ("AWS_ENDPOINT", format!("http://{addr}")),
                ("AWS_ALLOW_HTTP", "true".into()),
                ("AWS_REGION", "here".into()),
                ("AWS_ACCESS_KEY_ID", format!("key-{name}")),
                ("AWS_SECRET_ACCESS_KEY", "secret".into()),
            ],
            Self::Gcs => vec![(
                "GOOGLE_SERVICE_ACCOUNT_KEY",
                format!(
                    r#"{{"gcs_base_url":"http://{addr}","disable_oauth":true,"client_email":"","private_key":"","private_key_id":""}}"#
                ),
            )],
            Self::Azure => vec![
                ("AZURE_STORAGE_ENDPOINT", format!("http://{addr}")),
                ("AZURE_ALLOW_HTTP", "true".into()),
                ("AZURE_STORAGE_ACCOUNT_NAME", format!("key-{name}")),
                ("AZURE_STORAGE_ACCOUNT_KEY", "c2VjcmV0".into()),
            ],
        }
    }

    /// The key that a request claims to be signed with; `None` if the store does not know it.
    pub(super) fn signer(self, authorization: &str) -> Option<&str> {
        let key = match self {
            Self::S3 => authorization.split("Credential=").nth(1)?.split('/').next(),
            Self::Gcs => Some("key-anybody"),
            Self::Azure => authorization.strip_prefix("SharedKey ")?.split(':').next(),
        };
        key.filter(|key| key.starts_with("key-"))
    }

    /// The name of the parameter with the position at which a listing continues.
    pub(super) fn marker(self) -> &'static str {
        match self {
            Self::S3 | Self::Gcs => "continuation-token",
            Self::Azure => "marker",
        }
    }

    pub(super) fn listing(self, page: &[Listed], next: Option<&str>) -> String {
        let mut xml = String::new();
        for object in page {
            // Written to a string, which cannot fail.
            let _ = match self {
                Self::S3 | Self::Gcs => write!(
                    xml,
                    "<Contents><Key>{}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>\
                     <ETag>{}</ETag><Size>{}</Size></Contents>",
                    object.key, object.tag, object.bytes
                ),
                Self::Azure => write!(
                    xml,
                    "<Blob><Name>{}</Name><Properties><Last-Modified>Thu, 01 Jan 2026 00:00:00 GMT</Last-Modified>\
                     <Etag>{}</Etag><Content-Length>{}</Content-Length>\
                     <Content-Type>application/octet-stream</Content-Type></Properties></Blob>",
                    object.key, object.tag, object.bytes
                ),
            };
        }
        let next = next.unwrap_or_default();
        match self {
            Self::S3 | Self::Gcs if next.is_empty() => {
                format!("<ListBucketResult>{xml}</ListBucketResult>")
            }
            Self::S3 | Self::Gcs => format!(
                "<ListBucketResult>{xml}<NextContinuationToken>{next}</NextContinuationToken></ListBucketResult>"
            ),
            Self::Azure => format!(
                "<EnumerationResults><Blobs>{xml}</Blobs><NextMarker>{next}</NextMarker></EnumerationResults>"
            ),
        }
    }

    /// The status lines of a successful write and of a successful deletion.
    pub(super) fn done(self) -> (&'static str, &'static str) {
        match self {
            Self::S3 | Self::Gcs => ("200 OK", "204 No Content"),
            Self::Azure => ("201 Created", "202 Accepted"),
        }
    }
}

/// An object of a listing.
pub(super) struct Listed {
    pub(super) key: String,
    pub(super) tag: String,
    pub(super) bytes: usize,
}

impl State {
    /// A page of the objects below `prefix` after `after`, and where the next one begins.
    pub(super) fn page(&self, prefix: &str, after: &str) -> (Vec<Listed>, Option<String>) {
        let found = self.objects.iter().filter(|(key, _)| key.starts_with(prefix));
        let mut rest = found.filter(|(key, _)| after.is_empty() || key.as_str() > after).peekable();
        let page: Vec<Listed> = rest
            .by_ref()
            .take(super::PAGE)
            .map(|(key, body)| Listed {
                key: key.clone(),
                tag: super::tag(body).replace('"', "&quot;"),
                bytes: body.len(),
            })
            .collect();
        let more = rest.peek().is_some();
        let next = page.last().filter(|_| more).map(|object| object.key.clone());
        (page, next)
    }
}
