//! `Namespaces`: quotas and use of each namespace.
//!
//! *Invariant:* a caller sees the namespaces that its certificate names and no other.

use super::{Shared, caller, check_every_namespace, check_namespace, namespace_or_default};
use crate::observe::audit;
use rollout_ledger::{NamespaceView, OpKind, Quota};
use rollout_proto::{ALL_NAMESPACES, ErrorCode, Identity, RpcError, v1};
use std::sync::Arc;
use tonic::{Request, Response, Status};

#[derive(Clone)]
pub(crate) struct NamespacesService(pub(crate) Arc<Shared>);

fn unknown(name: &str) -> RpcError {
    RpcError::new(ErrorCode::NamespaceUnknown, format!("no namespace {name}"))
}

impl Shared {
    /// Refuses to list a namespace that does not exist: an empty list would hide a misspelled name.
    pub(crate) fn check_namespace_is_there(&self, name: &str) -> Result<(), RpcError> {
        self.found(|l| l.namespace_view(name)).map(drop).ok_or_else(|| unknown(name))
    }
}

/// The namespaces that a list covers.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Listed {
    /// One that the caller may see.
    One(String),
    /// All that this caller may see.
    All(Identity),
}

impl Listed {
    /// The namespaces that the request names.
    ///
    /// # Errors
    /// A namespace that the caller may not see.
    pub(crate) fn of(identity: &Identity, requested: &str) -> Result<Self, RpcError> {
        if requested == ALL_NAMESPACES {
            return Ok(Self::All(identity.clone()));
        }
        let namespace = namespace_or_default(requested);
        check_namespace(identity, &namespace)?;
        Ok(Self::One(namespace))
    }

    /// Refuses a single namespace that does not exist.
    pub(crate) fn check_is_there(&self, shared: &Shared) -> Result<(), RpcError> {
        match self {
            Self::One(namespace) => shared.check_namespace_is_there(namespace),
            Self::All(_) => Ok(()),
        }
    }

    /// The single namespace or, for all, an empty name, as the ledger expects.
    pub(crate) fn one(&self) -> &str {
        match self {
            Self::One(namespace) => namespace,
            Self::All(_) => "",
        }
    }

    /// Whether the list covers this namespace.
    pub(crate) fn has(&self, namespace: &str) -> bool {
        match self {
            Self::One(one) => one == namespace,
            Self::All(identity) => identity.allows_namespace(namespace),
        }
    }
}

impl NamespacesService {
    fn found(&self, name: &str) -> Result<v1::NamespaceInfo, RpcError> {
        self.0.read_ledger(|l| l.namespace_view(name)).map(out).ok_or_else(|| unknown(name))
    }
}

#[tonic::async_trait]
impl v1::namespaces_server::Namespaces for NamespacesService {
    async fn list_namespaces(
        &self,
        request: Request<v1::ListNamespacesRequest>,
    ) -> Result<Response<v1::ListNamespacesResponse>, Status> {
        let identity = caller(&request)?;
        self.0.reading().await?;
        let all = self.0.read_ledger(|l| l.namespace_views());
        let named = all.into_iter().filter(|n| identity.allows_namespace(&n.name)).map(out);
        let namespaces = named.collect();
        Ok(Response::new(v1::ListNamespacesResponse { header: Some(self.0.header()), namespaces }))
    }

    async fn describe_namespace(
        &self,
        request: Request<v1::DescribeNamespaceRequest>,
    ) -> Result<Response<v1::DescribeNamespaceResponse>, Status> {
        let identity = caller(&request)?;
        let name = namespace_or_default(&request.into_inner().namespace);
        check_namespace(&identity, &name)?;
        self.0.reading().await?;
        let namespace = Some(self.found(&name)?);
        let header = Some(self.0.header());
        Ok(Response::new(v1::DescribeNamespaceResponse { header, namespace }))
    }

    async fn set_quota(
        &self,
        request: Request<v1::SetQuotaRequest>,
    ) -> Result<Response<v1::SetQuotaResponse>, Status> {
        let identity = caller(&request)?;
        let r = request.into_inner();
        let name = namespace_or_default(&r.namespace);
        audit::about("namespace", &name);
        audit::in_namespace(&name);
        // A quota protects other namespaces, so the administrator of one namespace may not raise its own.
        check_every_namespace(&identity)?;
        let leader = self.0.leader_state()?;
        let id = self.0.request_of_any_client(&identity, r.request.as_ref())?;
        let quota = Quota {
            namespace: name.clone(),
            create: r.create,
            pending_rows_max: r.pending_rows_max,
            running_rows_max: r.running_rows_max,
            runs_max: r.runs_max,
        };
        self.0.apply(id, OpKind::SetQuota(quota)).await?;
        tracing::info!(by = %identity, namespace = name, "the quota is set");
        leader.wake();
        let namespace = Some(self.found(&name)?);
        Ok(Response::new(v1::SetQuotaResponse { header: Some(self.0.header()), namespace }))
    }
}

fn out(view: NamespaceView) -> v1::NamespaceInfo {
    v1::NamespaceInfo {
        name: view.name,
        pending_rows: view.pending_rows,
        pending_rows_max: view.pending_rows_max,
        running_rows: view.running_rows,
        running_rows_max: view.running_rows_max,
        runs: view.runs,
        runs_max: view.runs_max,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_all_namespaces_has_those_that_the_caller_may_see_and_no_other() {
        let team = Identity { namespaces: vec!["team".into()], ..Identity::insecure() };
        let all = Listed::of(&team, ALL_NAMESPACES).expect("a list of its own");
        assert_eq!((all.one(), all.has("team"), all.has("default")), ("", true, false));
        let everyone = Listed::of(&Identity::insecure(), "*").expect("all");
        assert!(everyone.has("team") && everyone.has("default"));
        let one = Listed::of(&team, "team").expect("its own");
        assert_eq!((one.one(), one.has("team"), one.has("other")), ("team", true, false));
        for refused in ["other", ""] {
            let error = Listed::of(&team, refused).expect_err("not its own");
            assert_eq!(error.code, ErrorCode::PermissionDenied);
        }
    }
}
