//! The clients of the services, with the bounds of this contract.
//!
//! *Invariant:* every client accepts messages of [`MESSAGE_BYTES_MAX`] in both directions.
//!
//! Absent: the service between members; crate `rollout-raft` has it.

use crate::channel::MESSAGE_BYTES_MAX;
use crate::stamp::Channel;
use crate::v1;

/// The service for clients.
pub fn runs(channel: Channel) -> v1::runs_client::RunsClient<Channel> {
    v1::runs_client::RunsClient::new(channel)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX)
}

/// The service for single rows.
pub fn items(channel: Channel) -> v1::items_client::ItemsClient<Channel> {
    v1::items_client::ItemsClient::new(channel)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX)
}

/// The service for training jobs' shared stores.
pub fn store(channel: Channel) -> v1::store_client::StoreClient<Channel> {
    v1::store_client::StoreClient::new(channel)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX)
}

/// The service for training jobs' participants and rounds.
pub fn rendezvous(channel: Channel) -> v1::rendezvous_client::RendezvousClient<Channel> {
    v1::rendezvous_client::RendezvousClient::new(channel)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX)
}

/// The service for training jobs' barriers.
pub fn barrier(channel: Channel) -> v1::barrier_client::BarrierClient<Channel> {
    v1::barrier_client::BarrierClient::new(channel)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX)
}

/// The service for datasets of training jobs.
pub fn datasets(channel: Channel) -> v1::datasets_client::DatasetsClient<Channel> {
    v1::datasets_client::DatasetsClient::new(channel)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX)
}

/// The service that checks requests without executing them.
pub fn dry_runs(channel: Channel) -> v1::dry_runs_client::DryRunsClient<Channel> {
    v1::dry_runs_client::DryRunsClient::new(channel)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX)
}

/// The service for trainers and their shards.
pub fn shards(channel: Channel) -> v1::shards_client::ShardsClient<Channel> {
    v1::shards_client::ShardsClient::new(channel)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX)
}

/// The service for training jobs' checkpoints.
pub fn checkpoints(channel: Channel) -> v1::checkpoints_client::CheckpointsClient<Channel> {
    v1::checkpoints_client::CheckpointsClient::new(channel)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX)
}

/// The service for training jobs as a whole.
pub fn jobs(channel: Channel) -> v1::jobs_client::JobsClient<Channel> {
    v1::jobs_client::JobsClient::new(channel)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX)
}

/// The service for workers.
pub fn worker(channel: Channel) -> v1::worker_client::WorkerClient<Channel> {
    v1::worker_client::WorkerClient::new(channel)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX)
}

/// The service for events.
pub fn events(channel: Channel) -> v1::events_client::EventsClient<Channel> {
    v1::events_client::EventsClient::new(channel)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX)
}

/// The service for membership changes.
pub fn members(channel: Channel) -> v1::members_client::MembersClient<Channel> {
    v1::members_client::MembersClient::new(channel)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX)
}

/// The service for snapshot files and diagnostic reports.
pub fn maintenance(channel: Channel) -> v1::maintenance_client::MaintenanceClient<Channel> {
    v1::maintenance_client::MaintenanceClient::new(channel)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX)
}

/// The service for operators.
pub fn cluster(channel: Channel) -> v1::cluster_client::ClusterClient<Channel> {
    v1::cluster_client::ClusterClient::new(channel)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX)
}

/// The service for revoked certificates.
pub fn certificates(channel: Channel) -> v1::certificates_client::CertificatesClient<Channel> {
    v1::certificates_client::CertificatesClient::new(channel)
}

/// The service for join tokens.
pub fn tokens(channel: Channel) -> v1::tokens_client::TokensClient<Channel> {
    v1::tokens_client::TokensClient::new(channel)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX)
}

/// The service for API keys.
pub fn keys(channel: Channel) -> v1::keys_client::KeysClient<Channel> {
    v1::keys_client::KeysClient::new(channel)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX)
}

/// The service that renews certificates.
pub fn enrollment(channel: Channel) -> v1::enrolment_client::EnrolmentClient<Channel> {
    v1::enrolment_client::EnrolmentClient::new(channel)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX)
}

/// The service with which a member reaches the leader on behalf of the callers of its HTTP API.
pub fn forward(channel: Channel) -> v1::forward_client::ForwardClient<Channel> {
    v1::forward_client::ForwardClient::new(channel)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX)
}

/// The service for namespaces.
pub fn namespaces(channel: Channel) -> v1::namespaces_client::NamespacesClient<Channel> {
    v1::namespaces_client::NamespacesClient::new(channel)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX)
}
