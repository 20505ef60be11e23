//! Asking a member whether it leads.
//!
//! *Invariant:* only a member that says of itself that it leads, with a quorum, in a term not below
//! any other such member's and an epoch not below the highest seen, is taken for the leader. What
//! members say of each other is no more than a hint whom to ask.
//!
//! Deliberately absent: whom to ask and how often (`following`).

use std::time::Duration;

use super::{Client, ClientError, services};
use crate::channel::ConnectError;
use crate::endpoint::Endpoint;
use crate::error::{ErrorCode, RpcError};
use crate::v1;

/// Limit of one question.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// What a member said last.
#[derive(Clone)]
pub(super) struct Heard {
    /// In words for people.
    pub(super) why: String,
    /// Asking again cannot help, and why.
    pub(super) fatal: Option<Fatal>,
}

/// An answer that waiting does not mend.
#[derive(Clone)]
pub(super) enum Fatal {
    Connect(ConnectError),
    Rpc(RpcError),
}

impl Fatal {
    fn is_restored(&self) -> bool {
        matches!(self, Fatal::Rpc(error) if error.code == ErrorCode::ClusterRestored)
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
    /// Asks one member. Some: it leads, under the returned endpoint, and is now followed.
    pub(super) async fn probe(&self, endpoint: Endpoint) -> Option<Endpoint> {
        let channel = match self.channel_to(&endpoint) {
            Ok(channel) => channel,
            Err(error) => {
                self.hear(&endpoint, error.to_string(), None);
                return None;
            }
        };
        let mut cluster = services::cluster(channel);
        let asked = cluster.status(v1::StatusRequest {});
        match tokio::time::timeout(PROBE_TIMEOUT, asked).await {
            Ok(Ok(response)) => self.judge_status(endpoint, response.into_inner()),
            Ok(Err(status)) => {
                self.hear_failure(&endpoint, &status);
                None
            }
            Err(_) => {
                let limit_ms = PROBE_TIMEOUT.as_millis();
                self.hear(&endpoint, format!("no answer within {limit_ms} ms"), None);
                None
            }
        }
    }

    fn judge_status(&self, endpoint: Endpoint, status: v1::StatusResponse) -> Option<Endpoint> {
        let header = status.header.unwrap_or_default();
        let member = status.self_.unwrap_or_default();
        let leads = member.role == "leader";
        let judged = {
            let mut known = self.inner.known.lock();
            match leads {
                true => known.judge(&header),
                // A follower that lags shows an older epoch and is no impostor.
                false => known.check_cluster(&header).map(|()| known.learn(&header)),
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
                self.hear(&endpoint, error.message, fatal);
                return None;
            }
            Ok(true) => self.keep(),
            Ok(false) => {}
        }
        if leads && status.has_quorum {
            return self.follow(&endpoint, &member);
        }
        let says = match (leads, &header.members) {
            (true, _) => "leads without a majority".to_owned(),
            (false, Some(list)) if !list.leader.is_empty() && list.leader != member.name => {
                format!("says that {} leads", list.leader)
            }
            (false, _) if header.cluster_id.is_empty() => "is part of no cluster yet".to_owned(),
            (false, _) => "says no leader".to_owned(),
        };
        self.hear(&endpoint, says, None);
        None
    }

    fn follow(&self, endpoint: &Endpoint, member: &v1::MemberStatus) -> Option<Endpoint> {
        let mut known = self.inner.known.lock();
        if member.term < known.leader_term {
            drop(known);
            self.hear(endpoint, format!("led in term {}, which is over", member.term), None);
            return None;
        }
        let leader = known.canonical(endpoint, &member.name);
        if known.leader.as_ref() != Some(&leader) {
            tracing::debug!(%leader, term = member.term, "following the leader");
        }
        *self.inner.lost.lock() = None;
        known.leader_term = member.term;
        known.leader = Some(leader.clone());
        Some(leader)
    }

    /// Notes what a member said, or how reaching it failed.
    pub(super) fn hear(&self, endpoint: &Endpoint, why: String, fatal: Option<Fatal>) {
        let mut heard = self.inner.heard.lock();
        if heard.len() >= super::CHANNELS_MAX && !heard.contains_key(endpoint) {
            heard.clear();
        }
        heard.insert(endpoint.clone(), Heard { why, fatal });
    }

    /// Notes a failed call.
    pub(super) fn hear_failure(&self, endpoint: &Endpoint, status: &tonic::Status) {
        if let Some(error) = ConnectError::find(status) {
            let fatal = error.permanent.then(|| Fatal::Connect(error.clone()));
            return self.hear(endpoint, format!("{} at {}", error.cause, error.phase), fatal);
        }
        let error = RpcError::from_status(status);
        let refused = [
            ErrorCode::Unauthenticated,
            ErrorCode::PermissionDenied,
            ErrorCode::UnsupportedVersion,
            ErrorCode::OtherCluster,
            ErrorCode::ClusterRestored,
        ];
        let fatal = refused.contains(&error.code).then(|| Fatal::Rpc(error.clone()));
        self.hear(endpoint, error.message, fatal);
    }

    /// What each who may be asked said last.
    pub(super) fn tried(&self) -> super::Tried {
        let candidates = self.candidates();
        let heard = self.inner.heard.lock();
        let said = |endpoint: &Endpoint| {
            let why = heard.get(endpoint).map_or("not asked yet", |heard| heard.why.as_str());
            (endpoint.to_string(), why.to_owned())
        };
        candidates.iter().map(said).collect()
    }

    /// The reason why no candidate will ever answer, if all have one, or if one says that the cluster which is known here
    /// lives on as another: those of the old one that are silent will stay so.
    pub(super) fn hopeless(&self) -> Option<ClientError> {
        let candidates = self.candidates();
        let heard = self.inner.heard.lock();
        let fatal = |endpoint: &Endpoint| heard.get(endpoint).and_then(|said| said.fatal.clone());
        let restored = candidates.iter().filter_map(fatal).find(Fatal::is_restored);
        let all: Option<Vec<Fatal>> = candidates.iter().map(fatal).collect();
        restored.or_else(|| all?.into_iter().next()).map(ClientError::from)
    }

    fn name_members_file(&self, mut error: RpcError) -> RpcError {
        if let Some(path) = &self.inner.config.members_file {
            let hint = format!(": if that is meant, remove {}", path.display());
            error.message.push_str(&hint);
        }
        error
    }
}
