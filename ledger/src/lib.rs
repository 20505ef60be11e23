//! The replicated state machine of `rollout`: which worker has which row of which run, and nothing else.
//!
//! Every member applies the same commands in the same order and must end in the same state, so this crate is pure: no
//! clock, no I/O, no async, no randomness, no iteration over hash maps, no floating point. Time enters in commands
//! ([`clock`]); ids come from log positions ([`id`]).
//!
//! *Invariant:* [`Ledger::apply`] is the only way to change state. A client's mistake causes a [`Rejection`], an
//! ordinary reply; a panic here would repeat on every member.
//!
//! Absent on purpose: payloads (inputs and results live in the object store; the ledger names them by digest),
//! heartbeats (the leader keeps them in memory; only their consequences arrive here), and anything that knows of
//! Raft, disks or the network.

#![deny(clippy::disallowed_types, clippy::disallowed_methods, clippy::float_arithmetic)]

mod abrupt_end;
mod apply;
mod attempts;
mod avoided;
mod barrier;
mod barrier_ops;
mod blame;
mod blocked;
mod bytes_field;
mod canary;
mod carry;
mod checkpoint;
mod checkpoint_ops;
pub mod claim;
mod client;
pub mod clock;
mod codec;
mod command;
mod complete;
mod condition;
mod cordon;
mod counted;
mod counts;
mod dataset;
mod deadline;
mod digest;
mod disjoint;
mod due;
mod duplicate;
mod eligibility;
mod eligibility_view;
mod engine_death;
mod event;
mod fail;
mod fleet;
mod fleet_guard;
mod flight_image;
mod forget;
mod gate;
mod grant;
mod heavy;
pub mod id;
mod image;
mod image_load;
mod incident;
mod incident_slots;
mod invariants;
mod item_view;
mod job;
mod job_ops;
mod job_view;
mod ledger;
pub mod limits;
mod looks;
mod marks;
mod member;
mod namespace;
mod notice;
mod outcome_image;
mod outlook;
mod pass;
mod pool_view;
mod quota;
mod remembered;
mod rendezvous;
mod reply;
mod restore;
mod retry;
mod returned;
mod revocation;
mod round_access;
mod rows;
mod run;
mod run_ops;
mod schedule;
mod second_slot;
pub mod seeded;
mod segment;
mod session_leases;
mod session_room;
mod setting;
mod settle;
mod shard;
mod shard_order;
mod shard_ring;
mod slot_image;
mod slot_incidents;
mod spec;
mod steal;
mod store;
mod store_access;
mod store_ops;
mod store_refusal;
mod tail;
mod tally;
mod token;
mod trainer;
mod training;
mod training_image;
mod training_refusal;
mod training_view;
mod trial;
mod trouble;
mod unheard;
pub mod view;
mod worker;
mod worker_ops;

pub use barrier::{Among, BarrierEnd, BarrierFailure, BarrierSpec, Generation, Policy};
pub use blocked::StuckRun;
pub use checkpoint::{CheckpointOp, CheckpointState, RankReport, ShardProgress};
pub use command::{
    BlobRef, Body, Command, Evidence, FailureClass, HeldRows, Op, OpKind, PartDecl, Registration,
    RequestId, RunAction, SegmentDecl, StoreName, StoreOp,
};
pub use dataset::{DatasetOp, DatasetSpec, DatasetView};
pub use digest::digest_records;
pub use eligibility::{CohortNo, NeedNo};
pub use eligibility_view::Tail;
pub use event::{Event, EventKind};
pub use forget::{Forgettable, Sealed};
pub use gate::{SCHEDULING_VERSION, check_body_version, check_version};
pub use image::ImageDelta;
pub use image_load::LoadError;
pub use job::{Departed, Departure, JobName, Participant, ParticipantDecl};
pub use job_view::JobView;
pub use ledger::{EntryId, Ledger, UnknownCommand};
pub use member::{LeaderCause, MemberOp, MemberState, Members, SeenMember};
pub use notice::{DueNotice, Notice};
pub use outlook::Outlook;
pub use pass::PassCounts;
#[doc(hidden)]
pub use quota::is_bounded;
pub use quota::{NamespaceView, Quota};
pub use rendezvous::{Rendezvous, RoundMember, Standing, Terms};
pub use reply::{GrantedRows, Outrun, RefusedRows, Rejection, Reply, SegmentRef, StoreAnswer};
pub use restore::ANCESTORS_MAX;
pub use revocation::{Revocation, RevocationAuthor, RevocationOp, Revoked};
pub use rows::Rows;
pub use session_room::MakesRoom;
pub use setting::{SettingOp, SettingView, Settings};
pub use shard::{ShardOp, ShardRef};
pub use shard_order::ORDER_VERSION;
pub use spec::{EngineSpec, RunSpec, SlotOffer};
pub use store::StoreView;
pub use token::{TokenOp, TokenRole, TokenSpec, TokenUse, TokenView};
pub use trainer::{TrainerDecl, TrainerOp};
pub use training::{LossPolicy, TrainerRef, TrainingName};
pub use training_refusal::TrainingRefusal;
pub use training_view::{
    CheckpointView, LineageView, PassView, ShardView, TrainerView, TrainingView,
};
