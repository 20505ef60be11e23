//! The replicated state machine of `rollout`: which worker has which row of which run, and nothing else.
//!
//! Every member applies the same commands in the same order and must end in the same state, so this crate is pure: no
//! clock, no I/O, no async, no randomness, no iteration over hash maps, no floating point. Time enters in commands
//! ([`clock`]); ids come from log positions ([`id`]).
//!
//! *Invariant:* [`Ledger::apply`] is the only way to change state. A client's mistake causes a [`Rejection`], an
//! ordinary reply; a panic here would repeat on every member.
//!
//! Absent: payloads (inputs and results live in the object store; the ledger names them by digest),
//! heartbeats (the leader keeps them in memory; only their consequences arrive here), and anything that knows of
//! Raft, disks or the network.

#![warn(missing_docs)]
#![deny(clippy::disallowed_types, clippy::disallowed_methods, clippy::float_arithmetic)]

mod batch;
mod kernel;
mod machine;
mod openai;
mod training;
pub use batch::claim;
mod identity;
pub use machine::clock;
mod fleet;
pub use kernel::id;
pub use kernel::limits;
pub use machine::seeded;
pub use machine::view;

pub use batch::blocked_runs::StuckRun;
pub use batch::claim_forecast::ClaimForecast;
pub use batch::completion_webhook::{DueWebhook, WebhookState};
pub use batch::eligibility::{CohortNo, NeedNo};
pub use batch::eligibility_view::Tail;
pub use batch::run_gc::{Forgettable, Sealed};
pub use batch::spec::{EngineSpec, ROUTES_PROPERTY, RunSpec, SlotOffer};
pub use fleet::setting::{SettingOp, SettingView, Settings};
pub use identity::api_key::{API_KEY_ID_LEN, ApiKeySpec, ApiKeyView, KeyLimits, KeyRole};
pub use identity::client::MakesRoom;
pub use identity::member::{LeaderCause, MemberOp, MemberState, Members, SeenMember};
pub use identity::quota::{NamespaceView, Quota};
pub use identity::revocation::{Revocation, RevocationAuthor, RevocationOp, Revoked};
pub use identity::token::{TokenOp, TokenRole, TokenSpec, TokenUse, TokenView};
pub use kernel::job_refusal::JobRefusal;
pub use kernel::openai_refusal::OpenAiRefusal;
pub use kernel::reply::{
    GrantedRows, RefusedRows, Rejection, Reply, SegmentRef, StoreAnswer, Superseded,
};
pub use kernel::rows::Rows;
pub use machine::command::{
    BlobRef, Body, Command, Evidence, FailureClass, HeldRows, Op, OpKind, PartDecl, Registration,
    RequestId, RunAction, Scope, ScopedOp, SegmentDecl, StoreName, StoreOp, op,
};
pub use machine::digest::digest_records;
pub use machine::event::{Event, EventKind};
pub use machine::image::ImageDelta;
pub use machine::image_load::{LoadError, META_KEY};
pub use machine::ledger::{EntryId, Ledger, UnknownCommand};
pub use machine::operation::Cost;
pub use machine::restore::ANCESTORS_MAX;
pub use machine::version_gate::{
    NAMESPACES_VERSION, ONE_RECORD_VERSION, OPENAI_API_VERSION, SCHEDULING_VERSION,
    SILENT_TRAINERS_VERSION, SUPPORTED_VERSIONS, check_body_version, check_version,
};
pub use openai::batch::{
    BATCH_ID_PREFIX, BatchCursor, BatchError, BatchSpec, BatchStatus, BatchUsage, ROLLOUT_KEY,
};
pub use openai::batch_output::BatchOutput;
pub use openai::batch_view::{BatchTask, BatchView, BatchWork};
pub use openai::content::Extent;
pub use openai::create_batch::BatchDecl;
pub use openai::file::{ApiFile, FILE_ID_PREFIX, FilePurpose, FileSpec};
pub use openai::upload::{
    PART_ID_PREFIX, UPLOAD_ID_DRAWN, UPLOAD_ID_PREFIX, Upload, UploadState, file_of_upload,
    part_of_upload,
};
pub use openai::usage::StoredUsage;
pub use openai::view::FilePage;
pub use training::barrier::{
    BarrierEnd, BarrierFailure, BarrierMembers, BarrierSpec, Generation, Policy,
};
pub use training::checkpoint::{CheckpointOp, CheckpointState, RankReport, ShardProgress};
pub use training::dataset::{DatasetOp, DatasetSpec, DatasetView};
pub use training::dataset_epoch::DatasetEpochCounts;
pub use training::job::{Departure, DepartureReason, JobName, Participant, ParticipantDecl};
pub use training::job_overview::JobOverview;
pub use training::job_view::JobView;
pub use training::rendezvous::{ParticipantState, Rendezvous, RendezvousConfig, RoundMember};
pub use training::shard::{ShardOp, ShardRef};
pub use training::shard_order::ORDER_VERSION;
pub use training::state::{LossPolicy, TrainerRef};
pub use training::store::StoreView;
pub use training::trainer::{TrainerDecl, TrainerOp};
pub use training::training_view::{
    CheckpointView, DatasetEpochView, ShardView, TrainerView, TrainingGenerationView, TrainingView,
};
