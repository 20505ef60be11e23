//! Gets certificates over the wire: the first one with a join token, each later one with the certificate before it.
//!
//! *Invariant:* the client discloses nothing to a server that the join token does not identify as a member. A retry
//! sends the same request with the same key, so that any number of retries is one use of the token.
//!
//! Absent: when to renew, and what to do if renewal fails; the worker and `rolloutctl` decide that.

mod token;

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

pub use self::token::{JoinToken, NoJoinToken};
use crate::channel::{ChannelOptions, channel};
use crate::client::{Client, ClientError, services};
use crate::endpoint::{DialMap, Endpoint, EndpointError};
use crate::error::{ErrorCode, RpcError};
use crate::identity::{Identity, Role};
use crate::pki::{self, PkiError, TlsFiles, Trust};
use crate::tls::{ClientTls, TlsError};
use crate::v1;

/// Pause between two rounds of all addresses.
const PAUSE: Duration = Duration::from_millis(250);
/// Limit of one member's answer.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// Limit of an answer, which is a few certificates.
const ANSWER_BYTES_MAX: usize = 256 * 1024;

/// Why enrollment or renewal failed.
#[derive(Debug, thiserror::Error)]
pub enum EnrollError {
    /// A malformed address.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// The key or the certificate cannot be saved or used.
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// The pinned connection cannot be set up.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A member refuses, and a retry does not help.
    #[error("{endpoint}: {error}")]
    Refused {
        /// The member.
        endpoint: String,
        /// The reason.
        error: RpcError,
    },
    /// No member could issue a certificate in time.
    #[error(
        "no member issued a certificate within {waited_ms} ms; last error, of {endpoint}: {error}"
    )]
    Unavailable {
        /// How long the client tried.
        waited_ms: u64,
        /// The last member that it called.
        endpoint: String,
        /// That member's error.
        error: RpcError,
    },
    /// No address is given.
    #[error("no address given: name the members' enrollment addresses")]
    NoEndpoints,
    /// The leader did not renew it.
    #[error(transparent)]
    Renewal(#[from] ClientError),
    /// The answer has no certificate, or one for another identity.
    #[error("the answer is unusable: {0}")]
    Answer(String),
}

impl EnrollError {
    /// The code of the member's error, if a member answered.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            EnrollError::Refused { error, .. } | EnrollError::Unavailable { error, .. } => {
                Some(error.code)
            }
            EnrollError::Renewal(error) => error.code(),
            _ => None,
        }
    }
}

/// The result of an enrollment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Enrolled {
    /// The identity in the certificate.
    pub identity: Identity,
    /// The remaining lifetime of the certificate.
    pub lifetime: Duration,
    /// Labels of every slot of the worker.
    pub labels: HashMap<String, String>,
}

/// Calls the members at these addresses, one after the other, repeatedly for `patience`, to certify the key at
/// `files.key` under `name`, and saves the answer in `files`. Members that do not lead say so at once.
///
/// # Errors
/// [`EnrollError::Refused`] if a retry does not help, [`EnrollError::Unavailable`] if the time is over.
pub async fn enroll(
    token: &JoinToken,
    name: &str,
    endpoints: &[String],
    files: &TlsFiles,
    patience: Duration,
) -> Result<Enrolled, EnrollError> {
    let begun = Instant::now();
    let deadline = begun + patience;
    let request = v1::EnrolRequest {
        token: token.name().to_owned(),
        secret: token.secret().to_vec().into(),
        name: name.to_owned(),
        request: pki::signing_request(&files.key)?.into(),
    };
    let parsed: Result<Vec<Endpoint>, _> = endpoints.iter().map(|e| Endpoint::seed(e)).collect();
    let all = parsed?;
    let tls = ClientTls::pinned(token.pins())?;
    loop {
        let mut last = None;
        for endpoint in &all {
            match ask(endpoint, &tls, &request, deadline).await {
                Ok(answer) => return keep(answer, name, files),
                Err(error) if error.retryable => last = Some((endpoint.to_string(), error)),
                Err(error) => {
                    return Err(EnrollError::Refused { endpoint: endpoint.to_string(), error });
                }
            }
        }
        let (endpoint, error) = last.ok_or(EnrollError::NoEndpoints)?;
        if Instant::now() + PAUSE >= deadline {
            let waited_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
            return Err(EnrollError::Unavailable { waited_ms, endpoint, error });
        }
        sleep(PAUSE).await;
    }
}

async fn ask(
    endpoint: &Endpoint,
    tls: &ClientTls,
    request: &v1::EnrolRequest,
    deadline: Instant,
) -> Result<v1::EnrolResponse, RpcError> {
    let channel = channel(endpoint, tls, &DialMap::default(), &ChannelOptions::default())
        .map_err(|error| RpcError::new(ErrorCode::InvalidArgument, error.to_string()))?;
    let mut client = v1::enrolment_client::EnrolmentClient::new(channel)
        .max_decoding_message_size(ANSWER_BYTES_MAX);
    let until = deadline.min(Instant::now() + ANSWER_MAX);
    match timeout_at(until, client.enrol(request.clone())).await {
        Ok(Ok(answer)) => Ok(answer.into_inner()),
        Ok(Err(status)) => Err(RpcError::from_status(&status)),
        Err(_) => Err(RpcError::new(ErrorCode::TimedOut, "it did not answer")),
    }
}

fn keep(answer: v1::EnrolResponse, name: &str, files: &TlsFiles) -> Result<Enrolled, EnrollError> {
    let issued = answer.issued.ok_or_else(|| EnrollError::Answer("no certificate in it".into()))?;
    let identity = pki::keep_issued(files, &issued, Trust::Known)?;
    if identity.name != name || !matches!(identity.role, Role::Worker | Role::Client) {
        return Err(EnrollError::Answer(format!("the certificate belongs to {identity}")));
    }
    let lifetime = Duration::from_millis(issued.lifetime_ms);
    Ok(Enrolled { identity, lifetime, labels: answer.labels })
}

/// Renews the certificate in `files`, with which `client` calls, for the same key, and saves the new one in its place.
/// A process that follows the files uses it with its next connection.
///
/// # Errors
/// A certificate that another intermediate CA has issued ([`ErrorCode::EnrollmentOff`]), no leader, the disk.
pub async fn renew(client: &Client, files: &TlsFiles) -> Result<Enrolled, EnrollError> {
    let request = v1::RenewRequest { request: pki::signing_request(&files.key)?.into() };
    let answer = client
        .with_leader("renew the certificate", |channel| {
            let request = request.clone();
            async move { services::enrollment(channel).renew(request).await }
        })
        .await?;
    let issued = answer.issued.ok_or_else(|| EnrollError::Answer("no certificate in it".into()))?;
    let identity = pki::keep_issued(files, &issued, Trust::AsTold)?;
    let lifetime = Duration::from_millis(issued.lifetime_ms);
    Ok(Enrolled { identity, lifetime, labels: HashMap::new() })
}

/// The files of an enrolled identity, in a directory of its own.
pub fn files_in(dir: &Path, stem: &str) -> TlsFiles {
    TlsFiles {
        ca: dir.join("ca.pem"),
        cert: dir.join(format!("{stem}.pem")),
        key: dir.join(format!("{stem}.key")),
    }
}

#[cfg(test)]
mod tests;
