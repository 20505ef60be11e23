//! `Datasets`: the inputs of training jobs.

use super::namespace::Listed;
use super::training_convert::{dataset_out, spec_in};
use super::{Shared, caller, check_namespace, namespace_or_default};
use crate::observe::audit;
use rollout_ledger::{DatasetOp, JobRefusal, OpKind};
use rollout_proto::{RpcError, v1};
use std::sync::Arc;
use tonic::{Request, Response, Status};

#[derive(Clone)]
pub(crate) struct DatasetsService(pub(crate) Arc<Shared>);

impl DatasetsService {
    fn found(&self, namespace: &str, name: &str) -> Result<v1::Dataset, RpcError> {
        let found = self.0.read_ledger(|l| l.dataset(namespace, name).map(|d| dataset_out(&d)));
        found.ok_or_else(|| crate::leader::reject::rejected(&JobRefusal::DatasetUnknown.into()))
    }
}

#[tonic::async_trait]
impl v1::datasets_server::Datasets for DatasetsService {
    async fn create_dataset(
        &self,
        request: Request<v1::CreateDatasetRequest>,
    ) -> Result<Response<v1::CreateDatasetResponse>, Status> {
        let identity = caller(&request)?;
        let r = request.into_inner();
        let namespace = namespace_or_default(&r.namespace);
        audit::about("dataset", &r.name);
        check_namespace(&identity, &namespace)?;
        let id = self.0.request_in(&identity, r.request.as_ref())?;
        let (name, spec) = (r.name.clone(), Box::new(spec_in(r.spec)?));
        let op = DatasetOp::Create { namespace: namespace.clone(), name, spec };
        self.0.apply(Some(id), OpKind::Dataset(op)).await?;
        let dataset = Some(self.found(&namespace, &r.name)?);
        Ok(Response::new(v1::CreateDatasetResponse { header: Some(self.0.header()), dataset }))
    }

    async fn describe_dataset(
        &self,
        request: Request<v1::DescribeDatasetRequest>,
    ) -> Result<Response<v1::DescribeDatasetResponse>, Status> {
        let identity = caller(&request)?;
        let r = request.get_ref();
        let namespace = namespace_or_default(&r.namespace);
        check_namespace(&identity, &namespace)?;
        self.0.reading_for(&request).await?;
        let header = Some(self.0.header());
        let dataset = Some(self.found(&namespace, &r.name)?);
        Ok(Response::new(v1::DescribeDatasetResponse { header, dataset }))
    }

    async fn list_datasets(
        &self,
        request: Request<v1::ListDatasetsRequest>,
    ) -> Result<Response<v1::ListDatasetsResponse>, Status> {
        let identity = caller(&request)?;
        let listed = Listed::of(&identity, &request.get_ref().namespace)?;
        self.0.reading_for(&request).await?;
        listed.check_is_there(&self.0)?;
        let header = Some(self.0.header());
        let datasets = self.0.read_ledger(|l| match &listed {
            Listed::One(namespace) => {
                l.datasets_of(namespace).map(|d| dataset_out(&d)).collect::<Vec<_>>()
            }
            Listed::All(_) => {
                let theirs = l.all_datasets().filter(|d| listed.has(d.namespace));
                theirs.map(|d| dataset_out(&d)).collect()
            }
        });
        Ok(Response::new(v1::ListDatasetsResponse { header, datasets }))
    }

    async fn delete_dataset(
        &self,
        request: Request<v1::DeleteDatasetRequest>,
    ) -> Result<Response<v1::DeleteDatasetResponse>, Status> {
        let identity = caller(&request)?;
        let r = request.into_inner();
        let namespace = namespace_or_default(&r.namespace);
        audit::about("dataset", &r.name);
        check_namespace(&identity, &namespace)?;
        let id = self.0.request_in(&identity, r.request.as_ref())?;
        let op = DatasetOp::Delete { namespace, name: r.name };
        self.0.apply(Some(id), OpKind::Dataset(op)).await?;
        Ok(Response::new(v1::DeleteDatasetResponse { header: Some(self.0.header()) }))
    }
}
