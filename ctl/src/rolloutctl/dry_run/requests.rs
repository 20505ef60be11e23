//! The requests that changes would send, for the leader to check.
//!
//! Invariant: each is the request that the command sends, except for its number: a dry run opens no session.

use std::fmt::Display;

use rollout_proto::DryRunnable;
use rollout_proto::enrolment::JoinToken;
use rollout_proto::v1::{self, RunAction};

use super::{Asked, Checked};
use crate::rolloutctl::barrier::abort::AbortArgs as BarrierAbortArgs;
use crate::rolloutctl::cert::revoke::RevokeArgs;
use crate::rolloutctl::cert::unrevoke::UnrevokeArgs;
use crate::rolloutctl::checkpoint::abort::AbortArgs as CheckpointAbortArgs;
use crate::rolloutctl::checkpoint::label::LabelArgs;
use crate::rolloutctl::cluster::set::SetArgs;
use crate::rolloutctl::dataset::create::CreateArgs as DatasetCreateArgs;
use crate::rolloutctl::dataset::delete::DeleteArgs as DatasetDeleteArgs;
use crate::rolloutctl::item::retry::{self, RetryArgs as ItemRetryArgs};
use crate::rolloutctl::job::delete::DeleteArgs as JobDeleteArgs;
use crate::rolloutctl::namespace::set_quota::SetQuotaArgs;
use crate::rolloutctl::rendezvous::close::CloseArgs;
use crate::rolloutctl::run::cancel::CancelArgs;
use crate::rolloutctl::run::delete::{self, DeleteArgs as RunDeleteArgs};
use crate::rolloutctl::run::pause::PauseArgs;
use crate::rolloutctl::run::resume::ResumeArgs;
use crate::rolloutctl::run::retry::RetryArgs as RunRetryArgs;
use crate::rolloutctl::token::create::CreateArgs as TokenCreateArgs;
use crate::rolloutctl::token::revoke::RevokeArgs as TokenRevokeArgs;
use crate::rolloutctl::worker::cordon::CordonArgs;
use crate::rolloutctl::worker::drain::DrainArgs;
use crate::rolloutctl::worker::uncordon::UncordonArgs;

/// A request for each name.
fn for_each<N: Display, T: DryRunnable>(
    names: &[N],
    request: impl Fn(&N) -> T,
) -> anyhow::Result<Vec<Asked>> {
    Ok(names.iter().map(|name| Asked::new(name, &request(name))).collect())
}

/// The only request.
fn one<T: DryRunnable>(name: &impl Display, request: &T) -> anyhow::Result<Vec<Asked>> {
    Ok(vec![Asked::new(name, request)])
}

fn job_name(namespace: &str, job: &str) -> Option<v1::JobName> {
    Some(v1::JobName { namespace: namespace.to_owned(), job: job.to_owned() })
}

impl Checked for CancelArgs {
    fn requests(&self, namespace: &str) -> anyhow::Result<Vec<Asked>> {
        let request = |name: &String| self.which.request(namespace, name, RunAction::Cancel);
        for_each(&self.which.names, request)
    }
}

impl Checked for PauseArgs {
    fn requests(&self, namespace: &str) -> anyhow::Result<Vec<Asked>> {
        let request = |name: &String| self.which.request(namespace, name, RunAction::Pause);
        for_each(&self.which.names, request)
    }
}

impl Checked for ResumeArgs {
    fn requests(&self, namespace: &str) -> anyhow::Result<Vec<Asked>> {
        let request = |name: &String| self.which.request(namespace, name, RunAction::Resume);
        for_each(&self.which.names, request)
    }
}

impl Checked for RunRetryArgs {
    fn requests(&self, namespace: &str) -> anyhow::Result<Vec<Asked>> {
        for_each(&self.names, |name| retry::request(namespace, name, None))
    }
}

impl Checked for RunDeleteArgs {
    fn requests(&self, namespace: &str) -> anyhow::Result<Vec<Asked>> {
        for_each(&self.names, |name| delete::request(namespace, name))
    }
}

impl Checked for ItemRetryArgs {
    fn requests(&self, namespace: &str) -> anyhow::Result<Vec<Asked>> {
        one(&self.run, &retry::request(namespace, &self.run, Some(self.named()?)))
    }
}

impl Checked for CordonArgs {
    fn requests(&self, namespace: &str) -> anyhow::Result<Vec<Asked>> {
        let namespace = || namespace.to_owned();
        for_each(&self.names, |name| v1::CordonWorkerRequest {
            namespace: namespace(),
            ..self.wanted(name)
        })
    }
}

impl Checked for UncordonArgs {
    fn requests(&self, namespace: &str) -> anyhow::Result<Vec<Asked>> {
        let namespace = || namespace.to_owned();
        for_each(&self.names, |name| v1::CordonWorkerRequest {
            namespace: namespace(),
            ..self.wanted(name)
        })
    }
}

impl Checked for DrainArgs {
    fn requests(&self, namespace: &str) -> anyhow::Result<Vec<Asked>> {
        let namespace = || namespace.to_owned();
        for_each(&self.names, |name| v1::DrainWorkerRequest {
            namespace: namespace(),
            ..self.wanted(name)
        })
    }
}

impl Checked for SetQuotaArgs {
    fn requests(&self, _namespace: &str) -> anyhow::Result<Vec<Asked>> {
        let wanted = self.wanted()?;
        for_each(&self.names, |name| v1::SetQuotaRequest {
            namespace: name.clone(),
            ..wanted.clone()
        })
    }
}

impl Checked for CloseArgs {
    fn requests(&self, namespace: &str) -> anyhow::Result<Vec<Asked>> {
        for_each(&self.jobs, |job| v1::RendezvousCloseRequest {
            request: None,
            job: job_name(namespace, job),
        })
    }
}

impl Checked for BarrierAbortArgs {
    fn requests(&self, namespace: &str) -> anyhow::Result<Vec<Asked>> {
        self.check()?;
        for_each(&self.barriers, |barrier| self.request(namespace, barrier))
    }
}

impl Checked for DatasetCreateArgs {
    fn requests(&self, namespace: &str) -> anyhow::Result<Vec<Asked>> {
        let request = v1::CreateDatasetRequest {
            request: None,
            namespace: namespace.to_owned(),
            name: self.name.clone(),
            spec: Some(self.spec()),
        };
        one(&self.name, &request)
    }
}

impl Checked for DatasetDeleteArgs {
    fn requests(&self, namespace: &str) -> anyhow::Result<Vec<Asked>> {
        for_each(&self.names, |name| v1::DeleteDatasetRequest {
            request: None,
            namespace: namespace.to_owned(),
            name: name.clone(),
        })
    }
}

impl Checked for JobDeleteArgs {
    fn requests(&self, namespace: &str) -> anyhow::Result<Vec<Asked>> {
        for_each(&self.jobs, |job| v1::DeleteJobRequest {
            request: None,
            job: job_name(namespace, job),
        })
    }
}

impl Checked for CheckpointAbortArgs {
    fn requests(&self, namespace: &str) -> anyhow::Result<Vec<Asked>> {
        for_each(&self.numbers, |number| v1::AbortCheckpointRequest {
            request: None,
            job: job_name(namespace, &self.job),
            number: *number,
        })
    }
}

impl Checked for LabelArgs {
    fn requests(&self, namespace: &str) -> anyhow::Result<Vec<Asked>> {
        let request = v1::LabelCheckpointRequest {
            request: None,
            job: job_name(namespace, &self.job),
            number: self.number,
            label: self.label.clone().unwrap_or_default(),
        };
        one(&self.number, &request)
    }
}

impl Checked for SetArgs {
    fn requests(&self, _namespace: &str) -> anyhow::Result<Vec<Asked>> {
        let (name, value) = (self.name.clone(), self.value);
        one(&self.name, &v1::SetSettingRequest { request: None, name, value })
    }
}

impl Checked for RevokeArgs {
    fn requests(&self, _namespace: &str) -> anyhow::Result<Vec<Asked>> {
        one(&self.identity.as_deref().unwrap_or("everyone"), &self.request())
    }
}

impl Checked for UnrevokeArgs {
    fn requests(&self, _namespace: &str) -> anyhow::Result<Vec<Asked>> {
        let request =
            |identity: &str| v1::WithdrawRequest { request: None, identity: identity.to_owned() };
        match self.everyone {
            true => one(&"everyone", &request("")),
            false => for_each(&self.identities, |identity| request(identity)),
        }
    }
}

impl Checked for TokenCreateArgs {
    fn requests(&self, _namespace: &str) -> anyhow::Result<Vec<Asked>> {
        // The secret is drawn for the check alone.
        one(&self.name, &self.request(&JoinToken::draw(&self.name))?)
    }
}

impl Checked for TokenRevokeArgs {
    fn requests(&self, _namespace: &str) -> anyhow::Result<Vec<Asked>> {
        for_each(&self.names, |name| v1::RevokeTokenRequest { request: None, name: name.clone() })
    }
}
