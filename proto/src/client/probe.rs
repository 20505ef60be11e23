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

/// After so long a member counts as one that does not answer, for people.
const SILENT_AFTER: Duration = Duration::from_secs(1);
/// Limit of one question, with the connection that it may need. What is given up is begun anew, with another handshake, and a
/// member that thousands reach for at once never comes to an end of them: so this is not less than the limit of a handshake.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);

/// What a member answers to the question whether it leads.
#[derive(Debug)]
pub(super) enum Said {
    /// It leads, and is now followed.
    Leads,
    /// It says that the member of this name leads.
    Names(String),
    /// It knows no leader, or did not answer.
    Nothing,
}

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
    /// Asks one member whether it leads.
    pub(super) async fn probe(&self, endpoint: Endpoint) -> Said {
        let channel = match self.channel_to(&endpoint) {
            Ok(channel) => channel,
            Err(error) => {
                self.hear(&endpoint, error.to_string(), None);
                return Said::Nothing;
            }
        };
        let mut cluster = services::cluster(channel);
        let mut asked = std::pin::pin!(cluster.status(v1::StatusRequest::default()));
        let answer = match tokio::time::timeout(SILENT_AFTER, &mut asked).await {
            Ok(answer) => Ok(answer),
            Err(_) => {
                let silent_ms = SILENT_AFTER.as_millis();
                self.hear(&endpoint, format!("no answer within {silent_ms} ms"), None);
                tokio::time::timeout(PROBE_TIMEOUT - SILENT_AFTER, asked).await
            }
        };
        match answer {
            Ok(Ok(response)) => self.judge_status(endpoint, response.into_inner()),
            Ok(Err(status)) => {
                self.hear_failure(&endpoint, &status);
                Said::Nothing
            }
            Err(_) => Said::Nothing,
        }
    }

    fn judge_status(&self, endpoint: Endpoint, status: v1::StatusResponse) -> Said {
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
                return Said::Nothing;
            }
            Ok(true) => self.keep(),
            Ok(false) => {}
        }
        if leads && status.has_quorum {
            return self.follow(&endpoint, &member);
        }
        let (why, said) = match (leads, header.members) {
            (true, _) => ("leads without a majority".to_owned(), Said::Nothing),
            (false, Some(list)) if !list.leader.is_empty() && list.leader != member.name => {
                (format!("says that {} leads", list.leader), Said::Names(list.leader))
            }
            (false, _) if header.cluster_id.is_empty() => {
                ("is part of no cluster yet".to_owned(), Said::Nothing)
            }
            (false, _) => ("says no leader".to_owned(), Said::Nothing),
        };
        self.hear(&endpoint, why, None);
        said
    }

    fn follow(&self, endpoint: &Endpoint, member: &v1::MemberStatus) -> Said {
        let mut known = self.inner.known.lock();
        if member.term < known.leader_term {
            drop(known);
            self.hear(endpoint, format!("led in term {}, which is over", member.term), None);
            return Said::Nothing;
        }
        let leader = known.canonical(endpoint, &member.name);
        if known.leader.as_ref() != Some(&leader) {
            tracing::debug!(%leader, term = member.term, "following the leader");
        }
        *self.inner.lost.lock() = None;
        known.leader_term = member.term;
        known.lead(leader);
        Said::Leads
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
