//! Owns: the certificate of an agent that enrolls: the first one, by a join token, and every renewal.
//!
//! Invariant: the key is made once, in the agent's own directory, and never leaves it. A renewed certificate replaces
//! the old one while the agent runs, and no stream is dropped for it: later connections present it.
//! Absent: certificates from elsewhere, whose files are reloaded as they change.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use rand::Rng;
use rollout_proto::enrollment::{self, EnrollError, Enrolled, JoinToken};
use rollout_proto::{Client, ClientConfig, ClientTls, ErrorCode, Security, TlsFiles, pki};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use crate::agent_error::AgentError;
use crate::backoff::Backoff;
use crate::config::{Config, EnrollmentConfig};
use crate::connect::connect;

/// The directory of key, certificate and authorities, within the agent's own.
const DIR: &str = "identity";
/// Metadata that came with the certificate.
const KEPT: &str = "enrolment.json";
/// How long to try all members before logging that none could issue a certificate.
const ROUND: Duration = Duration::from_secs(30);
/// How often a long sleep checks the clock.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// Metadata that came with the certificate and outlives the process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EnrolledMetadata {
    /// Labels of every slot, from the token.
    pub(crate) labels: BTreeMap<String, String>,
    /// The lifetime of the certificate when it was issued.
    lifetime_ms: u64,
}

impl EnrolledMetadata {
    pub(crate) fn parse(bytes: &[u8]) -> serde_json::Result<Self> {
        serde_json::from_slice(bytes)
    }
}

/// The owner of the certificate, which renews it.
struct Holder {
    name: String,
    settings: EnrollmentConfig,
    files: TlsFiles,
    kept: PathBuf,
    client: ClientConfig,
}

/// Gets a certificate if the agent enrolls, and renews it for as long as the returned set lives. Until there is one it
/// waits: for unreachable members, and for a name that is still in use.
///
/// # Errors
/// [`AgentError::Refused`] if the token does not admit this worker, [`AgentError::Start`] for a disk or a token that
/// cannot be used.
pub(crate) async fn certify(config: &mut Config) -> Result<JoinSet<()>, AgentError> {
    let mut renewing = JoinSet::new();
    let Some(settings) = config.enrollment.clone() else { return Ok(renewing) };
    let dir = config.data_dir.join(DIR);
    let files = enrollment::files_in(&dir, &format!("worker-{}", config.name));
    config.tls.ca_file = Some(files.ca.clone());
    config.tls.cert_file = Some(files.cert.clone());
    config.tls.key_file = Some(files.key.clone());
    let holder = Holder {
        name: config.name.clone(),
        settings,
        kept: dir.join(KEPT),
        client: connect(config).map_err(AgentError::Start)?,
        files,
    };
    let kept = match holder.has_one() {
        true => holder.read_kept(),
        false => holder.first(Duration::from_millis(config.timing.register_refused_ms)).await?,
    };
    // The operator's labels in the token override those that the host reports.
    config.labels.extend(kept.labels.clone());
    renewing.spawn(holder.keep_renewing(kept));
    Ok(renewing)
}

impl Holder {
    /// Whether there is a valid certificate.
    fn has_one(&self) -> bool {
        ClientTls::load(&Security::Mtls(self.files.clone())).is_ok()
    }

    /// Tries until there is a certificate, or an error needs an operator.
    async fn first(&self, refused_max: Duration) -> Result<EnrolledMetadata, AgentError> {
        let mut refused_since = None;
        loop {
            match self.enroll().await.map_err(AgentError::Start)? {
                Ok(enrolled) => return self.keep(enrolled).map_err(AgentError::Start),
                // Perhaps this worker's previous process, whose session has not ended yet.
                Err(error) if error.code() == Some(ErrorCode::WorkerNameTaken) => {
                    let since = *refused_since.get_or_insert_with(Instant::now);
                    if since.elapsed() >= refused_max {
                        return Err(refused(since, &error));
                    }
                    tracing::warn!(%error, "not enrolled yet");
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
                Err(error @ EnrollError::Unavailable { .. }) => {
                    tracing::warn!(%error, "not enrolled yet");
                }
                Err(error @ EnrollError::Refused { .. }) => {
                    return Err(refused(Instant::now(), &error));
                }
                Err(error) => return Err(AgentError::Start(error.into())),
            }
        }
    }

    /// Presents the token, which may have been replaced meanwhile.
    async fn enroll(&self) -> anyhow::Result<Result<Enrolled, EnrollError>> {
        let path = &self.settings.token_file;
        let text = std::fs::read_to_string(path);
        let text = text.with_context(|| format!("cannot read {}", path.display()))?;
        let token = text.parse::<JoinToken>().with_context(|| path.display().to_string())?;
        let endpoints = &self.settings.endpoints;
        Ok(enrollment::enroll(&token, &self.name, endpoints, &self.files, ROUND).await)
    }

    fn keep(&self, enrolled: Enrolled) -> anyhow::Result<EnrolledMetadata> {
        let lifetime_ms = u64::try_from(enrolled.lifetime.as_millis()).unwrap_or(u64::MAX);
        let kept = EnrolledMetadata { labels: enrolled.labels.into_iter().collect(), lifetime_ms };
        tracing::info!(identity = %enrolled.identity, lifetime_ms, "a certificate was issued");
        self.write_kept(&kept)?;
        Ok(kept)
    }

    fn write_kept(&self, kept: &EnrolledMetadata) -> anyhow::Result<()> {
        let new = self.kept.with_extension("new");
        let written = std::fs::write(&new, serde_json::to_vec(kept)?);
        written.and_then(|()| std::fs::rename(&new, &self.kept)).context("enrolment.json")
    }

    /// A missing or damaged file is only logged: the certificate does not depend on it.
    fn read_kept(&self) -> EnrolledMetadata {
        let read = |path: &Path| -> anyhow::Result<EnrolledMetadata> {
            Ok(EnrolledMetadata::parse(&std::fs::read(path)?)?)
        };
        read(&self.kept).unwrap_or_else(|error| {
            tracing::warn!(error = format!("{error:#}"), "the certificate's metadata is lost");
            EnrolledMetadata::default()
        })
    }

    /// Renews each certificate at two thirds of its life, and retries until that succeeds.
    async fn keep_renewing(self, mut kept: EnrolledMetadata) {
        loop {
            self.until_due(kept.lifetime_ms).await;
            let most = Duration::from_millis(kept.lifetime_ms / 10);
            let most = most.clamp(Duration::from_secs(1), LOOK_EVERY);
            let mut backoff = Backoff::new(Duration::from_secs(1), most);
            loop {
                match self.another(&kept).await {
                    Ok(next) => {
                        kept = next;
                        break;
                    }
                    Err(error) => {
                        let error = format!("{error:#}");
                        tracing::warn!(error, "the certificate is not renewed yet");
                    }
                }
                backoff.sleep().await;
            }
        }
    }

    async fn until_due(&self, lifetime_ms: u64) {
        if lifetime_ms == 0 {
            return; // Unknown: renew now, and the next one has it.
        }
        // Spreads the renewals of a fleet that enrolled at the same time.
        let left = pki::renewal_ahead(Duration::from_millis(lifetime_ms));
        let left = left.mul_f64(rand::rng().random_range(1.0..1.1));
        loop {
            let Ok(info) = pki::inspect(&self.files.cert) else { return };
            let ends =
                Duration::from_secs(u64::try_from(info.validity.not_after_unix).unwrap_or(0));
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let wait = ends.saturating_sub(left).saturating_sub(now);
            if wait.is_zero() {
                return;
            }
            tokio::time::sleep(wait.min(LOOK_EVERY)).await;
        }
    }

    /// Gets the next certificate with the present one or, if that is no longer valid, with the token.
    async fn another(&self, kept: &EnrolledMetadata) -> anyhow::Result<EnrolledMetadata> {
        if self.has_one() {
            let client = Client::new(self.client.clone())?;
            match enrollment::renew(&client, &self.files).await {
                Ok(enrolled) => {
                    let labels = kept.labels.clone().into_iter().collect();
                    return self.keep(Enrolled { labels, ..enrolled });
                }
                // Another intermediate CA has replaced the old one.
                Err(error) if error.code() == Some(ErrorCode::EnrollmentOff) => {
                    tracing::warn!(%error, "trying the join token instead");
                }
                Err(error) => return Err(error.into()),
            }
        }
        self.keep(self.enroll().await??)
    }
}

fn refused(since: Instant, error: &EnrollError) -> AgentError {
    let refused_ms = u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX);
    AgentError::Refused { refused_ms, reason: error.to_string() }
}

#[cfg(test)]
mod tests {
    use rollout_recorded::check;

    use super::*;

    fn holder(dir: &Path, token: &str) -> Holder {
        let token_file = dir.join("token");
        std::fs::write(&token_file, token).unwrap();
        Holder {
            name: "w1".into(),
            settings: EnrollmentConfig { token_file, endpoints: vec!["127.0.0.1:9".into()] },
            files: enrollment::files_in(&dir.join(DIR), "worker-w1"),
            kept: dir.join(KEPT),
            client: ClientConfig::new(vec!["127.0.0.1:9".into()], Security::InsecurePlaintext),
        }
    }

    #[tokio::test]
    async fn a_file_that_is_no_token_ends_the_agent_at_once_and_is_not_shown() {
        let dir = tempfile::tempdir().unwrap();
        let holder = holder(dir.path(), "hunter2");
        let Err(AgentError::Start(error)) = holder.first(Duration::ZERO).await else {
            panic!("a token was read")
        };
        let text = format!("{error:#}");
        assert!(text.contains("token") && !text.contains("hunter2"), "{text}");
        assert!(!holder.files.key.exists());
    }

    #[test]
    fn the_metadata_of_a_certificate_is_stored_as_earlier_builds_stored_it() {
        let dir = tempfile::tempdir().unwrap();
        let holder = holder(dir.path(), "");
        let labels = BTreeMap::from([
            ("pool".to_owned(), "spot".to_owned()),
            ("zone".to_owned(), "a".to_owned()),
        ]);
        let kept = EnrolledMetadata { labels, lifetime_ms: 86_400_000 };
        holder.write_kept(&kept).unwrap();
        let text = std::fs::read_to_string(&holder.kept).unwrap();
        let text = check(concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/enrolment.json"), &text);
        assert_eq!(EnrolledMetadata::parse(text.as_bytes()).unwrap(), kept);
    }

    #[test]
    fn the_metadata_of_a_certificate_survives_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let holder = holder(dir.path(), "");
        assert_eq!(holder.read_kept(), EnrolledMetadata::default());
        let labels = BTreeMap::from([("pool".to_owned(), "spot".to_owned())]);
        let kept = EnrolledMetadata { labels, lifetime_ms: 86_400_000 };
        holder.write_kept(&kept).unwrap();
        assert_eq!(holder.read_kept(), kept);
        std::fs::write(&holder.kept, "{").unwrap();
        assert_eq!(holder.read_kept(), EnrolledMetadata::default());
    }
}
