//! Asks a member whether it leads.
//!
//! *Invariant:* the client accepts a member as leader only if that member itself says that it leads with a quorum, in a
//! term not below that of any other such member and in an epoch not below the highest seen. What members say of each
//! other is only a hint which member to ask.
//!
//! Absent: which member to ask, and how often (`leader_calls`).

use std::time::Duration;

use super::{Client, ClientError, services};
use crate::connect_error::{ConnectError, Phase};
use crate::endpoint::Endpoint;
use crate::error::{ErrorCode, RpcError};
use crate::v1;

/// After this time, human-readable texts call a member unresponsive.
const SILENT_AFTER: Duration = Duration::from_secs(1);
/// How long unreachable members have to come back while others refuse the caller's certificate.
const REFUSED_AFTER: Duration = Duration::from_secs(3);
/// Limit of one question, including the connection that it may need. It is not shorter than the limit of a handshake:
/// a question that is given up starts again with another handshake, and a member with thousands of callers would never
/// finish them.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);

/// A member's answer to the question whether it leads.
#[derive(Debug)]
pub(super) enum ProbeAnswer {
    /// It leads, and the client now follows it.
    Leads,
    /// It says that the member of this name leads.
    Names(String),
    /// It knows no leader, or did not answer.
    Nothing,
}

/// The last answer of a member.
#[derive(Clone)]
pub(super) struct LastProbe {
    /// Human-readable text.
    pub(super) why: String,
    /// Why asking again cannot help.
    pub(super) fatal: Option<Fatal>,
    /// The member was not reached, so its answer is unknown.
    unreached: bool,
}

impl LastProbe {
    fn refuses_certificate(&self) -> bool {
        self.fatal.as_ref().is_some_and(Fatal::is_about_certificate)
    }
}

/// An answer that waiting does not change.
#[derive(Clone)]
pub(super) enum Fatal {
    Connect(ConnectError),
    Rpc(RpcError),
}

impl Fatal {
    /// Whether a single member's answer is final. Members of a cluster that was restored as another one stay silent,
    /// and a certificate that one member knows to be revoked is of no use at the others.
    fn is_final(&self) -> bool {
        let code = match self {
            Fatal::Connect(error) => return error.is_revoked(),
            Fatal::Rpc(error) => error.code,
        };
        matches!(code, ErrorCode::ClusterRestored | ErrorCode::CertificateRevoked)
    }

    fn is_about_certificate(&self) -> bool {
        match self {
            Fatal::Connect(error) => error.phase == Phase::Tls,
            Fatal::Rpc(error) => error.code == ErrorCode::Unauthenticated,
        }
    }
}

impl From<Fatal> for ClientError {
    fn from(fatal: Fatal) -> ClientError {
        match fatal {
            Fatal::Connect(error) => ClientError::Connect(error),
            Fatal::Rpc(error) => ClientError::Rpc(error),
        }
    }
}

impl Client {
    /// Asks one member whether it leads.
    pub(super) async fn probe(&self, endpoint: Endpoint) -> ProbeAnswer {
        let channel = match self.channel_to(&endpoint) {
            Ok(channel) => channel,
            Err(error) => {
                self.record_unreached(&endpoint, error.to_string());
                return ProbeAnswer::Nothing;
            }
        };
        let mut cluster = services::cluster(channel);
        let mut request = std::pin::pin!(cluster.status(v1::StatusRequest::default()));
        let answer = match tokio::time::timeout(SILENT_AFTER, &mut request).await {
            Ok(answer) => Ok(answer),
            Err(_) => {
                let silent_ms = SILENT_AFTER.as_millis();
                self.record_unreached(&endpoint, format!("no answer within {silent_ms} ms"));
                tokio::time::timeout(PROBE_TIMEOUT - SILENT_AFTER, request).await
            }
        };
        match answer {
            Ok(Ok(response)) => self.judge_status(endpoint, response.into_inner()),
            Ok(Err(status)) => {
                self.record_failure(&endpoint, &status);
                ProbeAnswer::Nothing
            }
            Err(_) => ProbeAnswer::Nothing,
        }
    }

    fn judge_status(&self, endpoint: Endpoint, status: v1::StatusResponse) -> ProbeAnswer {
        let header = status.header.unwrap_or_default();
        let member = status.self_.unwrap_or_default();
        let leads = member.role == "leader";
        let judged = {
            let mut view = self.inner.cluster_view.lock();
            match leads {
                true => view.judge(&header),
                // A follower that lags reports an older epoch; that is no reason to reject it.
                false => view.check_cluster(&header).map(|()| view.learn(&header)),
            }
        };
        match judged {
            Err(error) => {
                let fatal = match error.code {
                    ErrorCode::OtherCluster => Some(self.name_members_file(error.clone())),
                    ErrorCode::ClusterRestored => Some(error.clone()),
                    _ => None,
                }
                .map(Fatal::Rpc);
                self.record_answer(&endpoint, error.message, fatal);
                return ProbeAnswer::Nothing;
            }
            Ok(true) => self.save_members(),
            Ok(false) => {}
        }
        if leads && status.has_quorum {
            return self.follow(&endpoint, &member);
        }
        let (why, answer) = match (leads, header.members) {
            (true, _) => ("leads without a majority".to_owned(), ProbeAnswer::Nothing),
            (false, Some(list)) if !list.leader.is_empty() && list.leader != member.name => {
                (format!("says that {} leads", list.leader), ProbeAnswer::Names(list.leader))
            }
            (false, _) if header.cluster_id.is_empty() => {
                ("is part of no cluster yet".to_owned(), ProbeAnswer::Nothing)
            }
            (false, _) => ("says no leader".to_owned(), ProbeAnswer::Nothing),
        };
        self.record_answer(&endpoint, why, None);
        answer
    }

    fn follow(&self, endpoint: &Endpoint, member: &v1::MemberStatus) -> ProbeAnswer {
        let mut view = self.inner.cluster_view.lock();
        if member.term < view.leader_term {
            drop(view);
            let why = format!("led in term {}, which is over", member.term);
            self.record_answer(endpoint, why, None);
            return ProbeAnswer::Nothing;
        }
        let leader = view.canonical(endpoint, &member.name);
        if view.leader.as_ref() != Some(&leader) {
            tracing::debug!(%leader, term = member.term, "following the leader");
        }
        *self.inner.leaderless_since.lock() = None;
        view.leader_term = member.term;
        view.set_leader(leader);
        ProbeAnswer::Leads
    }

    /// Records an answer of a member.
    pub(super) fn record_answer(&self, endpoint: &Endpoint, why: String, fatal: Option<Fatal>) {
        self.note(endpoint, LastProbe { why, fatal, unreached: false });
    }

    /// Records that a member was not reached, and why.
    fn record_unreached(&self, endpoint: &Endpoint, why: String) {
        self.note(endpoint, LastProbe { why, fatal: None, unreached: true });
    }

    fn note(&self, endpoint: &Endpoint, probe: LastProbe) {
        let mut last_probes = self.inner.last_probes.lock();
        if last_probes.len() >= super::CHANNELS_MAX && !last_probes.contains_key(endpoint) {
            last_probes.clear();
        }
        last_probes.insert(endpoint.clone(), probe);
    }

    /// Records a failed call.
    pub(super) fn record_failure(&self, endpoint: &Endpoint, status: &tonic::Status) {
        if let Some(error) = ConnectError::behind(status, endpoint) {
            let why = format!("{} at {}", error.cause, error.phase);
            return match error.permanent {
                true => self.record_answer(endpoint, why, Some(Fatal::Connect(error))),
                false => self.record_unreached(endpoint, why),
            };
        }
        let error = RpcError::from_status(status);
        if error.code == ErrorCode::ConnectFailed {
            return self.record_unreached(endpoint, error.message);
        }
        let refused = [
            ErrorCode::Unauthenticated,
            ErrorCode::CertificateRevoked,
            ErrorCode::PermissionDenied,
            ErrorCode::UnsupportedVersion,
            ErrorCode::OtherCluster,
            ErrorCode::ClusterRestored,
        ];
        let fatal = refused.contains(&error.code).then(|| Fatal::Rpc(error.clone()));
        self.record_answer(endpoint, error.message, fatal);
    }

    /// The last answer of each candidate.
    pub(super) fn tried(&self) -> super::Tried {
        let candidates = self.candidates();
        let last_probes = self.inner.last_probes.lock();
        let describe = |endpoint: &Endpoint| {
            let why = last_probes.get(endpoint).map_or("not asked yet", |probe| probe.why.as_str());
            (endpoint.to_string(), why.to_owned())
        };
        candidates.iter().map(describe).collect()
    }

    /// Why no candidate will ever answer: one of them gives a final reason, each gives a reason, or the caller was
    /// [`refused`](Self::refused) for some time.
    pub(super) fn hopeless(&self, waited: Duration) -> Option<ClientError> {
        let candidates = self.candidates();
        let all: Option<Vec<Fatal>> = {
            let last_probes = self.inner.last_probes.lock();
            let fatal = |endpoint: &Endpoint| {
                last_probes.get(endpoint).and_then(|probe| probe.fatal.clone())
            };
            if let Some(last_word) = candidates.iter().filter_map(fatal).find(Fatal::is_final) {
                return Some(last_word.into());
            }
            candidates.iter().map(fatal).collect()
        };
        let agreed = all.and_then(|all| all.into_iter().next()).map(ClientError::from);
        agreed.or_else(|| self.refused().filter(|_| waited >= REFUSED_AFTER))
    }

    /// Why some candidates refuse the caller's certificate, if no other one is reachable and the configuration says to
    /// end a call then.
    pub(super) fn refused(&self) -> Option<ClientError> {
        if !self.inner.config.end_where_refused {
            return None;
        }
        let candidates = self.candidates();
        let last_probes = self.inner.last_probes.lock();
        let each: Vec<&LastProbe> =
            candidates.iter().filter_map(|each| last_probes.get(each)).collect();
        let nobody_else = each.iter().all(|probe| probe.unreached || probe.refuses_certificate());
        if each.len() < candidates.len() || !nobody_else {
            return None;
        }
        let refusal = each.iter().find(|probe| probe.refuses_certificate())?;
        refusal.fatal.clone().map(ClientError::from)
    }

    /// Whether a candidate has said that the caller's certificate is revoked.
    pub(super) fn is_revoked(&self) -> bool {
        let candidates = self.candidates();
        let last_probes = self.inner.last_probes.lock();
        let fatal =
            |endpoint: &Endpoint| last_probes.get(endpoint).and_then(|probe| probe.fatal.clone());
        candidates.iter().filter_map(fatal).any(|fatal| ClientError::from(fatal).is_revoked())
    }

    fn name_members_file(&self, mut error: RpcError) -> RpcError {
        if let Some(path) = &self.inner.config.members_file {
            let hint = format!(": if that is meant, remove {}", path.display());
            error.message.push_str(&hint);
        }
        error
    }
}
